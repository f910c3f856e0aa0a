"""Memory layers: what a model keeps of the input views, and how it reads it.

A memory layer has three verbs. State is a value (a NamedTuple of tensors, batch first): passed in, returned, never kept
inside the module. To put another layer in a model, write it in a file here and add it to the three tables below.
"""

from nvs.memory.base import MemoryLayer, State
from nvs.memory.lact import LaCTConfig, LaCTMemory, LaCTState
from nvs.memory.softmax import SoftmaxConfig, SoftmaxMemory, SoftmaxState

__all__ = [
    "CONFIG_TYPES",
    "STATE_TYPES",
    "LaCTConfig",
    "LaCTMemory",
    "LaCTState",
    "MemoryConfig",
    "MemoryLayer",
    "SoftmaxConfig",
    "SoftmaxMemory",
    "SoftmaxState",
    "State",
    "build_memory",
]

MemoryConfig = LaCTConfig | SoftmaxConfig
CONFIG_TYPES = {"lact": LaCTConfig, "softmax": SoftmaxConfig}
"""Configurations by their `kind`."""
STATE_TYPES = {"LaCTState": LaCTState, "SoftmaxState": SoftmaxState}
"""State types by the name that scene-state files carry."""


def build_memory(dim: int, config: MemoryConfig) -> LaCTMemory | SoftmaxMemory:
    """Make the memory layer that a configuration describes, for tokens of width `dim`."""
    return SoftmaxMemory(dim, config) if isinstance(config, SoftmaxConfig) else LaCTMemory(dim, config)
