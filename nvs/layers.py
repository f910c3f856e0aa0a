"""The linear layer of the network's blocks."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

import kernels
from kernels import Activation


class Linear(nn.Linear):
    """A linear layer without bias that also applies the activation behind it.

    `LaCT.use_precision` stores its weight in 16 bits; layers that must stay precise are plain `nn.Linear`.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: Float[Tensor, "*b k"], then: Activation = "none") -> Float[Tensor, "*b m"]:
        """Transform each token on its own."""
        return kernels.linear(x, self.weight, then)
