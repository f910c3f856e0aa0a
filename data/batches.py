"""Training batches: batch number t is a pure function of (seed, t, rank), so that a resumed run sees the same views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from data.augmentation import Augmentation, augment, draw_augmentation
from data.background import parse_background
from data.config import DataConfig
from data.errors import UserError
from data.sampling import draw_count, draw_inputs, draw_stretch, draw_views
from data.scene import Scene
from data.views import Views, stack_views

Size = tuple[int, int]


@dataclass(frozen=True)
class TrainingScene:
    """A capture with the photos that may be trained on, those held out, and its share of the draws."""

    scene: Scene
    train: list[int]
    held_out: list[int]
    weight: float = 1.0


def part_photos(scene: Scene, holdout_every: int = 0) -> TrainingScene:
    """Part the photos: those that the files keep from training, or else every k-th, are never trained on."""
    scene = scene.hold_out(holdout_every)
    split, everything = scene.split, list(range(len(scene)))
    kept_back = {*split.get("val", []), *split.get("test", [])}
    train = sorted(set(split.get("train") or everything) - kept_back)
    held_out = split.get("val") or split.get("test") or [i for i in everything if i not in set(train)]
    return TrainingScene(scene, train, held_out)


class Draw(NamedTuple):
    """What one item of a batch shows: a capture, its input and target frames, at which size, and how it is varied."""

    scene: int
    inputs: list[int]
    targets: list[int]
    augmentation: Augmentation
    image_size: Size


class Batch(NamedTuple):
    """Input views and the views to be rendered, with the captures as first axis."""

    inputs: Views
    targets: Views


class BatchMaker:
    """Makes training batches out of captures; the same (seed, step, rank) always gives the same batch."""

    def __init__(self, scenes: list[TrainingScene], config: DataConfig, seed: int) -> None:
        self.scenes, self.config, self.seed = scenes, config, seed
        self.buckets = fill_buckets(scenes, config.all_sizes)

    def draw(self, step: int, rank: int = 0) -> list[Draw]:
        """Choose captures, views and augmentation for one batch; nothing is loaded."""
        config = self.config
        rng = np.random.default_rng([self.seed, step, rank])
        counts = draw_count(rng, config.input_views), draw_count(rng, config.target_views)
        bucket = self.buckets[0] if len(self.buckets) == 1 else self.buckets[_choose(rng, self.buckets)]
        draws = []
        for index in rng.choice(len(self.scenes), size=config.batch_size, p=bucket.chances):
            inputs, targets = draw_frames(rng, self.scenes[index], counts, config)
            draws.append(Draw(int(index), inputs, targets, draw_augmentation(rng, config), bucket.image_size))
        return draws

    def batch(self, step: int, rank: int = 0) -> Batch:
        """Load the batch that `draw` chose."""
        return stack_batch(
            [load_draw(self.scenes[draw.scene].scene, draw, self.config) for draw in self.draw(step, rank)]
        )


class Bucket(NamedTuple):
    """An image size, its share of the batches, and the chance of each capture in a batch of this size."""

    image_size: Size
    share: float
    chances: np.ndarray


def fill_buckets(scenes: Sequence[TrainingScene], sizes: Sequence[Size]) -> list[Bucket]:
    """Put each capture into the size whose aspect is nearest to that of its photos, or evenly into several such."""
    weights = np.array([s.weight for s in scenes], dtype=np.float64)
    photos = np.array([np.median([np.log(w / h) for h, w in (f.image_size for f in s.scene.frames)]) for s in scenes])
    distance = np.abs(photos[:, None] - np.array([np.log(w / h) for h, w in sizes]))
    nearest = distance <= distance.min(1, keepdims=True) + 1e-9
    parts = weights[:, None] * nearest / nearest.sum(1, keepdims=True)
    shares = parts.sum(0)
    filled = [i for i in range(len(sizes)) if shares[i] > 0]
    return [Bucket(sizes[i], shares[i] / weights.sum(), parts[:, i] / shares[i]) for i in filled]


def nearest_size(scene: Scene, sizes: Sequence[Size]) -> Size:
    """The size that a capture is shown at."""
    return fill_buckets([TrainingScene(scene, [], [])], sizes)[0].image_size


def usable(train: list[int], config: DataConfig) -> bool:
    """Whether these frames are enough for the largest draw."""
    if config.frame_distance is None:
        return len(train) >= config.views_needed
    rng = np.random.default_rng(0)
    return draw_stretch(rng, train, config.frame_distance, config.views_needed) is not None


def draw_frames(
    rng: np.random.Generator, scene: TrainingScene, counts: tuple[int, int], config: DataConfig
) -> tuple[list[int], list[int]]:
    """Frames of a capture as inputs and targets, as many as `counts` says of each."""
    frames, ends, overlap = scene.train, [], config.targets_may_be_inputs
    if config.frame_distance is not None:
        needed = max(counts) if overlap else sum(counts)
        stretch = draw_stretch(rng, frames, config.frame_distance, needed)
        if stretch is None:
            raise UserError(f"{scene.scene.name} has no {needed} photos within data.frame_distance. Leave it out.")
        frames = frames[stretch[0] : stretch[1] + 1]
        ends = [0, len(frames) - 1][: counts[0]]
    if config.input_selection == "random" and not ends:
        inputs, targets = draw_views(rng, len(frames), *counts, overlap)
    else:
        inputs = _draw_inputs(rng, scene, frames, ends, counts[0], config)
        rest = range(len(frames)) if overlap else [i for i in range(len(frames)) if i not in inputs]
        targets = rng.permutation(rest)[: counts[1]].tolist()
    return [frames[i] for i in inputs], [frames[i] for i in targets]


def load_draw(scene: Scene, draw: Draw, config: DataConfig) -> tuple[Views, Views]:
    """The input and target views of one item, in the frame that the input views alone tell, varied as drawn."""
    scene = scene.normalize(draw.inputs, config.normalization)
    views = scene.load(draw.inputs + draw.targets, draw.image_size)
    if views.alpha is None:  # photos without alpha are all foreground, so that they stack with those that have it
        views = replace(views, alpha=torch.ones_like(views.images[:, :1]))
    up = "y" if config.normalization == "mean_pose" else "z"
    views = augment(views, draw.augmentation, up, parse_background(config.background))
    count = len(draw.inputs)
    return views.select(slice(0, count)), views.select(slice(count, None))


def stack_batch(pairs: Sequence[tuple[Views, Views]]) -> Batch:
    """Items of the same numbers of views and one size as a batch."""
    return Batch(stack_views([p[0] for p in pairs]), stack_views([p[1] for p in pairs]))


def _draw_inputs(
    rng: np.random.Generator,
    scene: TrainingScene,
    frames: list[int],
    ends: list[int],
    count: int,
    config: DataConfig,
) -> list[int]:
    if config.input_selection != "random":
        c2w = np.stack([scene.scene.frames[i].c2w for i in frames])
        return draw_inputs(rng, c2w, count, config.input_selection)
    between = rng.permutation(range(1, len(frames) - 1))[: count - len(ends)]
    return [*ends, *between.tolist()]


def _choose(rng: np.random.Generator, buckets: Sequence[Bucket]) -> int:
    return int(rng.choice(len(buckets), p=[bucket.share for bucket in buckets]))
