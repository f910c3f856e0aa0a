"""Quality against the number of input views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from data import spread
from nvs.analysis.probe import Case, OnStep, quality
from nvs.model import LaCT


@dataclass(frozen=True)
class ViewCurve:
    """PSNR on the same held-out photos, in dB, for each number of input views."""

    counts: tuple[int, ...]
    psnr: tuple[float, ...]
    trained: tuple[int, int] | None
    """Fewest and most input views in training, where that is known."""


def view_curve(
    model: LaCT, cases: Sequence[Case], counts: Sequence[int], on_step: OnStep = lambda done: None
) -> ViewCurve:
    """Give the model more and more of the photos that are not compared, spread over their cameras.

    `on_step` counts the numbers of photos that were tried.
    """
    pools = [[i for i in case.scene.input_pool if i not in case.targets] for case in cases]
    possible = [count for count in counts if count <= min(map(len, pools))]
    scores = []
    for index, count in enumerate(possible):
        on_step(index)
        chosen = []
        for case, pool in zip(cases, pools, strict=True):
            positions = case.scene.world_c2w[pool][:, :3, 3]
            chosen.append(replace(case, inputs=[pool[i] for i in spread(positions, count)]))
        scores.append(quality(model, chosen))
    return ViewCurve(tuple(possible), tuple(scores), model.trained.views if model.trained else None)
