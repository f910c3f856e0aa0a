"""Memory layers: what a model keeps of the input views, and how it reads it.

A memory layer has three verbs. State is a value (a NamedTuple of tensors, batch first): passed in, returned, never kept
inside the module. To put another layer in a model, write it in a file here and add it to `build_memory`.
"""

from nvs.memory.base import MemoryLayer, State
from nvs.memory.lact import LaCTConfig, LaCTMemory, LaCTState

__all__ = [
    "STATE_TYPES",
    "LaCTConfig",
    "LaCTMemory",
    "LaCTState",
    "MemoryConfig",
    "MemoryLayer",
    "State",
    "build_memory",
]

MemoryConfig = LaCTConfig
STATE_TYPES = {"LaCTState": LaCTState}
"""State types by the name that scene-state files carry."""


def build_memory(dim: int, config: MemoryConfig) -> LaCTMemory:
    """Make the memory layer that a configuration describes, for tokens of width `dim`."""
    return LaCTMemory(dim, config)
