"""Every kind of memory layer learns, in both precisions that training knows."""

from dataclasses import replace

import pytest
import torch
from tiny import TINY, make_views

import nvs
from nvs.memory import CONFIG_TYPES


@pytest.mark.slow
@pytest.mark.parametrize("bfloat16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kind", CONFIG_TYPES)
def test_thirty_steps_on_one_batch_lower_the_loss(kind, bfloat16):
    torch.manual_seed(0)
    memory = CONFIG_TYPES[kind](head_dim=16)  # type: ignore[call-arg]
    model = nvs.LaCT(replace(TINY, layers=2, memory=memory)).train()
    inputs, targets = make_views(3, batch=2), make_views(2, batch=2, seed=1)
    # Each scene has a colour of its own, which only the memory can tell.
    colours = torch.tensor([[0.9, 0.2, 0.1], [0.1, 0.3, 0.8]])[:, None, :, None, None]
    photos, wanted = (0.9 * colours + 0.1 * views.images for views in (inputs, targets))
    inputs = replace(inputs, images=photos)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    losses = []
    for _ in range(30):
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            loss = (model(inputs, targets.cameras) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    # One colour for both scenes would leave a loss of about 0.08; noise alone is 0.001.
    assert all(loss == loss for loss in losses)
    assert losses[-1] < 0.03, losses[::5]
