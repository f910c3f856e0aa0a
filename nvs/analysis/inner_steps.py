"""Quality and inner loss against the number of inner steps.

A memory that memorises should render better the better it fits its keys and values (arXiv 2602.21204, section 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from nvs.analysis.probe import Case, OnStep, changed, memories, quality, trace
from nvs.model import LaCT


@dataclass(frozen=True)
class StepCurve:
    """One value for each number of inner steps; losses are means over blocks, scenes and tokens."""

    trained_steps: int
    """Inner steps that the model was trained with."""
    steps: tuple[int, ...]
    psnr: tuple[float, ...]
    """PSNR on held-out photos in dB."""
    inner_loss: tuple[float, ...]
    """Inner loss after the steps."""
    loss_before: float
    """Inner loss of the initial state."""


def inner_step_curve(
    model: LaCT, cases: Sequence[Case], steps: Sequence[int], on_step: OnStep = lambda done: None
) -> StepCurve:
    """Run the model with other numbers of inner steps than it was trained with; `on_step` counts these."""
    memories(model, "inner_loss", "has no inner loss that more steps could lower")
    scores, losses = [], []
    for index, count in enumerate(steps):
        on_step(sum(steps[:index]))
        other = changed(model, inner_steps=count)
        scores.append(quality(other, cases))
        losses.append(mean_inner_loss(other, cases)[1])
    trained = vars(model.config.memory)["inner_steps"]
    return StepCurve(trained, tuple(steps), tuple(scores), tuple(losses), mean_inner_loss(model, cases)[0])


@torch.no_grad()
def mean_inner_loss(model: LaCT, cases: Sequence[Case]) -> tuple[float, float]:
    """Inner loss on the tokens of the input views before and after they were absorbed, mean over blocks and cases."""
    before, after = [], []
    for case in cases:
        inputs, targets = case.views(model)
        for layer, seen in zip(memories(model), trace(model, inputs, targets.cameras.select(0)), strict=True):
            before.append(layer.inner_loss(seen.before, seen.written, seen.written_grid).mean().item())
            after.append(layer.inner_loss(seen.after, seen.written, seen.written_grid).mean().item())
    return sum(before) / len(before), sum(after) / len(after)
