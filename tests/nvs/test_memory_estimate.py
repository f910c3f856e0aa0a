"""The memory estimate against what the forward pass really keeps."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import TINY, make_model, make_views

from nvs.memory_estimate import StepShape, free_bytes, training_bytes


@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_estimate_is_what_a_step_keeps(bfloat16, checkpointing):
    config = replace(TINY, layers=4)
    model = make_model(config).train()
    model.activation_checkpointing = checkpointing
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def keep(tensor):
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = (
                tensor.untyped_storage()
            )  # alive, so that no address comes twice
        return tensor

    inputs, targets = make_views(3, batch=2), make_views(2, batch=2)
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=bfloat16),
    ):
        images = model(inputs, targets.cameras)
    assert images.requires_grad
    shape = StepShape(2, 3, 2, (16, 24), bfloat16, checkpointing)
    weights, activations = training_bytes(config, shape, copies=1)
    assert weights == sum(4 * p.numel() for p in model.parameters())
    measured = sum(storage.nbytes() for storage in kept.values())
    if checkpointing:  # and the block that is being computed again
        plain = [
            training_bytes(replace(config, layers=n), shape._replace(activation_checkpointing=False))[1] for n in (1, 2)
        ]
        measured += plain[1] - plain[0]
    assert activations == pytest.approx(measured, rel=0.05)


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="only Linux tells its free memory in /proc/meminfo")
def test_free_memory_is_that_of_the_system():
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    told = {key: 1024 * int(lines[key].split()[0]) for key in ("MemFree", "MemTotal")}
    free = free_bytes(torch.device("cpu"))
    # Other programs run between the two readings.
    assert free is not None and abs(free - told["MemFree"]) < 0.2 * told["MemTotal"]


def test_free_memory_of_a_device_without_any_is_not_known():
    assert free_bytes(torch.device("meta")) is None
