"""Training batches of procedural scenes: batch number t is a pure function of (seed, t, rank), as with captures."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from data.augmentation import Augmentation, augment, draw_augmentation
from data.background import parse_background
from data.batches import Batch, Size
from data.config import DataConfig
from data.normalization import fit
from data.procedural import procedural_batch
from data.sampling import draw_count, draw_views
from data.views import Views, stack_views

FIRST_TRAINED = 2**32
"""Training draws scene numbers from here on; lower ones are for validation and for sets written to disk."""
END_OF_NUMBERS = 2**62


class ProceduralDraw(NamedTuple):
    """What one item of a batch shows: a scene, which of its views, at which size, and how it is varied."""

    index: int
    inputs: list[int]
    targets: list[int]
    augmentation: Augmentation
    image_size: Size


class ProceduralBatchMaker:
    """Makes batches out of nothing, on the device that they are used on."""

    def __init__(self, config: DataConfig, seed: int, device: torch.device | str = "cpu") -> None:
        self.config, self.seed, self.device = config, seed, device
        self.scenes = replace(config.procedural, background=parse_background(config.background))

    def draw(self, step: int, rank: int = 0) -> list[ProceduralDraw]:
        """Choose scenes, views and augmentation for one batch; nothing is rendered."""
        config = self.config
        rng = np.random.default_rng([self.seed, step, rank])
        inputs, targets = draw_count(rng, config.input_views), draw_count(rng, config.target_views)
        total = max(inputs, targets) if config.targets_may_be_inputs else inputs + targets
        sizes = config.all_sizes
        size = sizes[0] if len(sizes) == 1 else sizes[int(rng.integers(len(sizes)))]
        draws = []
        for index in rng.integers(FIRST_TRAINED, END_OF_NUMBERS, config.batch_size):
            chosen = draw_views(rng, total, inputs, targets, config.targets_may_be_inputs)
            draws.append(ProceduralDraw(int(index), *chosen, draw_augmentation(rng, config), size))
        return draws

    def batch(self, step: int, rank: int = 0) -> Batch:
        """Render the batch that `draw` chose."""
        return self.render(self.draw(step, rank))

    def render(self, draws: list[ProceduralDraw]) -> Batch:
        """Render scenes that have the same numbers of input and target views and one size."""
        needed = 1 + max(max(d.inputs + d.targets) for d in draws)
        made = procedural_batch(self.scenes, [d.index for d in draws], needed, draws[0].image_size, self.device)
        scenes = [self._normalized(_scene(made, i), draw) for i, draw in enumerate(draws)]
        pairs = list(zip(scenes, draws, strict=True))
        return Batch(
            stack_views([views.select(draw.inputs) for views, draw in pairs]),
            stack_views([views.select(draw.targets) for views, draw in pairs]),
        )

    def _normalized(self, views: Views, draw: ProceduralDraw) -> Views:
        """The world as the input views alone tell it, then turned and scaled."""
        inputs = views.c2w[draw.inputs].cpu().double().numpy()
        similarity = torch.from_numpy(fit(inputs, self.config.normalization))
        moved = replace(views.transform(similarity), world_to_scene=similarity)
        up = "y" if self.config.normalization == "mean_pose" else "z"
        return augment(moved, draw.augmentation, up, self.scenes.background)


def _scene(batch: Views, index: int) -> Views:
    alpha = None if batch.alpha is None else batch.alpha[index]
    return Views(batch.c2w[index], batch.intrinsics[index], batch.image_size, batch.images[index], alpha)
