"""How much memory a training step takes, told before the first step."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from data import Cameras, Views
from nvs.model import LaCT, ModelConfig


class StepShape(NamedTuple):
    """What decides how much a training step keeps in memory, apart from the model."""

    batch: int
    """Scenes."""
    inputs: int
    """Input views of each scene."""
    targets: int
    """Rendered views of each scene."""
    image_size: tuple[int, int]
    """Height and width in pixels."""
    bfloat16: bool = False
    """Whether products are computed in bfloat16."""
    activation_checkpointing: bool = False
    """Whether blocks are computed again in the backward pass."""


def training_bytes(config: ModelConfig, shape: StepShape, copies: int = 5) -> tuple[int, int]:
    """Bytes of weights and of activations in a training step.

    `copies` counts the weights, their gradients, the optimiser's moments and the running mean. The step is played
    through on tensors without content, for models of one and of two blocks: each further block adds the same.
    """
    (weights, kept), (weights_of_two, kept_of_two) = (_measure(config, shape, layers) for layers in (1, 2))
    further = config.layers - 1
    weights += further * (weights_of_two - weights)
    kept += further * (kept_of_two - kept)
    if shape.activation_checkpointing:
        plain = shape._replace(activation_checkpointing=False)
        kept += _measure(config, plain, 2)[1] - _measure(config, plain, 1)[1]
    return copies * weights, kept


def free_bytes(device: torch.device) -> int | None:
    """Free memory of a device in bytes; None where it is not known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if device.type == "cpu" else None
    except (ValueError, OSError, AttributeError):  # not Linux
        return None


def _measure(config: ModelConfig, shape: StepShape, layers: int) -> tuple[int, int]:
    """Bytes of the weights, and of what the forward pass keeps for the backward pass beside them."""
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage
        return tensor

    with FakeTensorMode():
        model = LaCT(replace(config, layers=layers))
        model.activation_checkpointing = shape.activation_checkpointing
        inputs, targets = (
            Cameras(torch.ones(shape.batch, n, 4, 4), torch.ones(shape.batch, n, 4), shape.image_size)
            for n in (shape.inputs, shape.targets)
        )
        photos = torch.ones(shape.batch, shape.inputs, 3, *shape.image_size)
        views = Views(inputs.c2w, inputs.intrinsics, shape.image_size, photos)
        with (
            torch.autocast("cpu", torch.bfloat16, enabled=shape.bfloat16),
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        ):
            model(views, targets).sum()
        own = {p.untyped_storage()._cdata: p.untyped_storage().nbytes() for p in model.parameters()}
        return sum(own.values()), sum(s.nbytes() for key, s in kept.items() if key not in own)
