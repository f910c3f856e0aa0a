"""Memory layers: what a model keeps of the input views, and how it reads it.

A memory layer has three verbs. State is a value (a NamedTuple of tensors, batch first): passed in, returned, never kept
inside the module. To put another layer in a model, write it in a file here and add one line to `LAYERS`.
"""

from nvs.memory.base import Grid, MemoryConfig, MemoryLayer, State, scan, split_tokens
from nvs.memory.deltanet import DeltaNetConfig, DeltaNetMemory, DeltaNetState
from nvs.memory.frames import RayFrames, ray_frames
from nvs.memory.lact import (
    LaCTMemory,
    LaCTMomentumState,
    LaCTState,
    LastWeightMomentumState,
    LastWeightState,
)
from nvs.memory.lact_config import VARIANTS, LaCTConfig, variant
from nvs.memory.linear import LinearConfig, LinearMemory, LinearState
from nvs.memory.softmax import SoftmaxConfig, SoftmaxMemory, SoftmaxState
from nvs.memory.ssd import SSDConfig, SSDMemory, SSDState
from nvs.memory.ttt import TTTLinearConfig, TTTLinearState, TTTMemory, TTTMLPConfig, TTTMLPState
from nvs.memory.vittt import ViTTTConfig, ViTTTMemory, ViTTTState

__all__ = [
    "CONFIG_TYPES",
    "LAYERS",
    "STATE_TYPES",
    "VARIANTS",
    "DeltaNetConfig",
    "DeltaNetMemory",
    "DeltaNetState",
    "Grid",
    "LaCTConfig",
    "LaCTMemory",
    "LaCTMomentumState",
    "LaCTState",
    "LastWeightMomentumState",
    "LastWeightState",
    "LinearConfig",
    "LinearMemory",
    "LinearState",
    "MemoryConfig",
    "MemoryLayer",
    "RayFrames",
    "SSDConfig",
    "SSDMemory",
    "SSDState",
    "SoftmaxConfig",
    "SoftmaxMemory",
    "SoftmaxState",
    "State",
    "TTTLinearConfig",
    "TTTLinearState",
    "TTTMLPConfig",
    "TTTMLPState",
    "TTTMemory",
    "ViTTTConfig",
    "ViTTTMemory",
    "ViTTTState",
    "build_memory",
    "ray_frames",
    "scan",
    "split_tokens",
    "variant",
]

LAYERS = {
    "lact": (LaCTConfig, LaCTMemory, LaCTState, LaCTMomentumState, LastWeightState, LastWeightMomentumState),
    "ttt_linear": (TTTLinearConfig, TTTMemory, TTTLinearState),
    "ttt_mlp": (TTTMLPConfig, TTTMemory, TTTMLPState),
    "vittt": (ViTTTConfig, ViTTTMemory, ViTTTState),
    "linear": (LinearConfig, LinearMemory, LinearState),
    "deltanet": (DeltaNetConfig, DeltaNetMemory, DeltaNetState),
    "softmax": (SoftmaxConfig, SoftmaxMemory, SoftmaxState),
    "ssd": (SSDConfig, SSDMemory, SSDState),
}
"""Settings, layer and state types by kind; kinds and names of state types are written into files."""
CONFIG_TYPES = {kind: config for kind, (config, *_) in LAYERS.items()}
STATE_TYPES = {state.__name__: state for _, _, *states in LAYERS.values() for state in states}


def build_memory(dim: int, config: MemoryConfig) -> MemoryLayer:
    """Make the memory layer that a configuration describes, for tokens of width `dim`."""
    _, layer, *_ = LAYERS[config.kind]
    return layer(dim, config)
