"""Two answers that need no model; a model that does not beat both has learned nothing about the scene."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from data import Cameras, Views


def nearest_input(inputs: Views, targets: Cameras) -> Float[Tensor, "t 3 h w"]:
    """For each target the input photo whose camera stands nearest to it, copied as it is."""
    return inputs.images[nearest_input_index(inputs, targets)]


def mean_input(inputs: Views, targets: Cameras) -> Float[Tensor, "t 3 h w"]:
    """For every target the mean of all input photos, pixel by pixel."""
    return inputs.images.mean(dim=0, keepdim=True).expand(targets.num_views, -1, -1, -1)


def nearest_input_index(inputs: Cameras, targets: Cameras) -> Int[Tensor, " t"]:
    """For each target the index of the input camera at the smallest distance; of equally near ones the first."""
    return torch.cdist(targets.positions.double(), inputs.positions.double()).argmin(dim=1)
