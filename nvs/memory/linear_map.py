"""One step of fast weights written as linear attention: which input tokens does a read-out come from?"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from data import UserError
from nvs.memory import update_rule
from nvs.memory.lact_config import LaCTConfig
from nvs.memory.update_rule import Rates, Weights


class LinearMap(NamedTuple):
    """What m tokens read after n tokens were absorbed, before the output norm: base + scores values."""

    base: Float[Tensor, "... m d"]
    """What they would read if the n tokens had written nothing."""
    scores: Float[Tensor, "... m n"]
    """How much each reads of what each of the n tokens wrote."""
    values: Float[Tensor, "... n d"]
    """What each of the n tokens wrote."""


def linear_map(
    config: LaCTConfig,
    weights: Weights,
    velocity: Weights,
    written: tuple[Float[Tensor, "b n d"], Float[Tensor, "b n d"], Rates],
    q: Float[Tensor, "b m d"],
) -> LinearMap:
    """The map of one step on one chunk (arXiv 2602.21204, theorem 5.1).

    Orthogonalisation multiplies the summed gradient G from the left: scores have M(G) G^+ between query and key.
    Weight norm scales the columns of w1, and with them values and base. M is computed in float64: G^+ would magnify the
    rounding of bfloat16 until it drowns the scores. What is read then differs from the map by that rounding.
    """
    if config.inner_steps > 1 or config.chunks > 1:
        raise UserError("Several inner steps or chunks have no map of one linear attention; set both to 1.")
    k, v, rates = written
    summed = update_rule.gradients(config, weights, k, v, rates)
    after, _ = update_rule.step(config, weights, velocity, summed)
    w1, earlier = (
        weights["w1"],
        config.momentum * velocity["w1"] if config.momentum else torch.zeros_like(weights["w1"]),
    )
    gradient = summed["w1"] + earlier
    exact = gradient.double()
    (change,) = update_rule.directions(config, exact)
    if config.newton_schulz_steps:
        between = (change @ torch.linalg.pinv(exact, rtol=torch.finfo(w1.dtype).eps)).to(w1.dtype)
    else:
        between = torch.eye(w1.shape[1], dtype=w1.dtype, device=w1.device) * (-1 if config.direction == "ascent" else 1)
    values = (v - update_rule.read(config, weights, k)) if config.inner_loss == "squared_error" else v
    if rates is not None:
        values = values * rates[0 if config.updated == "w1" else 1].to(v.dtype)
    scale = after["w1"].norm(dim=1, keepdim=True) / (w1 + change.to(w1.dtype)).norm(dim=1, keepdim=True)
    asked = update_rule.features(config, after, q).to(w1.dtype)
    found = update_rule.features(config, weights, k).to(w1.dtype)
    base = (asked @ (w1 + between @ earlier)) * scale
    return LinearMap(base, asked @ between @ found.transpose(1, 2), values.to(w1.dtype) * scale)
