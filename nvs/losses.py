"""What training minimises."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


def pixel_loss(
    pred: Float[Tensor, "*b 3 h w"],
    target: Float[Tensor, "*b 3 h w"],
    alpha: Float[Tensor, "*b 1 h w"] | None = None,
    foreground_weight: float = 1.0,
) -> Float[Tensor, ""]:
    """Mean squared error for values in 0..1; where `alpha` (0..1) covers a pixel it counts `foreground_weight` times.

    The weights are divided by their mean, so that a capture with a small object does not lower the loss.
    """
    error = (pred.float() - target.float()).square()
    if alpha is None or foreground_weight == 1:
        return error.mean()
    weight = 1 + (foreground_weight - 1) * alpha
    return (error * weight).mean() / weight.mean()
