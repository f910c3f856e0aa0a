"""The three verbs of a memory layer."""

from __future__ import annotations

from typing import Any, Protocol

from jaxtyping import Float
from torch import Tensor

State = Any
"""A NamedTuple of tensors, each with the scenes as first axis."""


class MemoryLayer(Protocol):
    """Absorbs tokens of input views into a state of fixed size and reads that state for any token."""

    def init_state(self, batch: int) -> State:
        """The learned state of `batch` scenes that have seen nothing."""
        ...

    def update_state(self, state: State, x: Float[Tensor, "b n d"], slice_tokens: int | None = None) -> State:
        """Absorb one chunk of tokens; `slice_tokens` bounds the memory used and does not change the result."""
        ...

    def apply_state(self, state: State, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """Read the state for each token."""
        ...
