"""Fast tensor operators for fast-weight memories, each with a plain PyTorch reference."""

from kernels.backend import Backend, BackendError, current_backend, use_backend
from kernels.dense import linear, window_attention
from kernels.onednn import Activation
from kernels.ops import (
    add_and_restore_norm,
    apply_swiglu,
    embed_rays,
    fast_weight_gradients,
    last_weight_gradient,
    linear_apply,
    linear_prefix_states,
    linear_state,
    orthogonalize,
    orthogonalize_together,
    rms_norm,
    silu_unit,
    swiglu_features,
)

__all__ = [
    "Activation",
    "Backend",
    "BackendError",
    "add_and_restore_norm",
    "apply_swiglu",
    "current_backend",
    "embed_rays",
    "fast_weight_gradients",
    "last_weight_gradient",
    "linear",
    "linear_apply",
    "linear_prefix_states",
    "linear_state",
    "orthogonalize",
    "orthogonalize_together",
    "rms_norm",
    "silu_unit",
    "swiglu_features",
    "use_backend",
    "window_attention",
]
