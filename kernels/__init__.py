"""Fast tensor operators for fast-weight memories, each with a plain PyTorch reference."""

from kernels.backend import Backend, current_backend, use_backend
from kernels.ops import (
    add_and_restore_norm,
    apply_swiglu,
    fast_weight_gradients,
    last_weight_gradient,
    linear_apply,
    linear_prefix_states,
    linear_state,
    orthogonalize,
    orthogonalize_together,
    swiglu_features,
)

__all__ = [
    "Backend",
    "add_and_restore_norm",
    "apply_swiglu",
    "current_backend",
    "fast_weight_gradients",
    "last_weight_gradient",
    "linear_apply",
    "linear_prefix_states",
    "linear_state",
    "orthogonalize",
    "orthogonalize_together",
    "swiglu_features",
    "use_backend",
]
