"""Training batches: batch number t is a pure function of (seed, t, rank), so that a resumed run sees the same views."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
import torch

from data.normalization import Normalization
from data.procedural import ProceduralConfig
from data.sampling import draw_count, draw_views
from data.scene import Scene
from data.views import Views, stack_views


@dataclass(frozen=True)
class DataConfig:
    """Which captures a model is trained on, and what each training batch shows of them."""

    scenes: list[str] | None = None
    """Captures: paths, patterns such as `objects/*`, or .txt files with one path a line (relative to the .txt file)."""
    scene: str | None = None
    """One capture; takes the place of `scenes`."""
    weights: list[float] | None = None
    """Share of the draws for each entry of `scenes` (any scale, spread evenly over its captures); none: captures are
    equally likely."""
    description: str = ""
    """What the checkpoint says of its training data; empty: the number of captures and the entries."""
    image_size: tuple[int, int] = (64, 64)
    """Height and width in pixels; the model's patch size must divide both."""
    batch_size: int = 8
    """Captures per step on each device."""
    input_views: tuple[int, int] = (2, 6)
    """Fewest and most input views; one number is drawn for each batch."""
    target_views: tuple[int, int] = (4, 4)
    """Fewest and most views to be rendered; one number is drawn for each batch."""
    targets_may_be_inputs: bool = False
    """Whether a view to be rendered may also be an input view."""
    normalization: Normalization = "focus"
    """How the world is moved and scaled; fitted on the drawn input views only."""
    background: str = "white"
    """Colour behind photos with alpha: white, black, or #rrggbb."""
    rotate_world: bool = False
    """Turn each drawn capture about the up axis by a random angle."""
    scale_jitter: float = 0.0
    """Scale each drawn capture by a random factor between 1 / (1 + x) and 1 + x."""
    holdout_every: int = 0
    """Hold out every k-th photo of captures whose files name no val or test photos; 0 holds out none."""
    validation_scenes: list[str] | None = None
    """Captures for validation only, given like `scenes`; none: the held-out photos of the training captures."""
    validation_max_scenes: int = 4
    """Most captures looked at in each validation."""
    validation_views: tuple[int, int] = (4, 4)
    """Input views and most rendered views for each capture in validation."""
    workers: int = 0
    """Processes that prepare batches; 0 does it between the steps."""
    cache_gb: float = 1.0
    """Memory for decoded photos in GB, all workers of a device together."""
    source: Literal["captures", "procedural"] = "captures"
    """captures: those given above. procedural: random scenes made on the fly, without end and without files."""
    procedural: ProceduralConfig = field(default_factory=ProceduralConfig)
    """What procedural scenes are like."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for name in ("input_views", "target_views"):
            low, high = getattr(self, name)
            if not 1 <= low <= high:
                raise ValueError(f"data.{name} must be two numbers, 1 <= fewest <= most, got {low} and {high}")
        for name in ("batch_size", "validation_max_scenes"):
            if getattr(self, name) < 1:
                raise ValueError(f"data.{name} must be 1 or more, got {getattr(self, name)}")
        for name in ("scale_jitter", "holdout_every", "workers", "cache_gb"):
            if getattr(self, name) < 0:
                raise ValueError(f"data.{name} must not be negative, got {getattr(self, name)}")
        if min(*self.image_size, *self.validation_views) < 1:
            raise ValueError("data.image_size and data.validation_views must hold numbers of 1 or more")
        if self.holdout_every == 1:
            raise ValueError("data.holdout_every 1 would hold out every photo; use 2 or more, or 0 for none")
        if self.source == "procedural" and (self.scene or self.scenes):
            raise ValueError("data.source procedural takes no captures; leave out data.scene and data.scenes")
        if self.weights is not None and (
            len(self.weights) != len(self.scenes or []) or min(self.weights, default=0.0) <= 0
        ):
            raise ValueError("data.weights needs one number above 0 for each entry of data.scenes")


@dataclass(frozen=True)
class TrainingScene:
    """A capture with the photos that may be trained on, those held out, and its share of the draws."""

    scene: Scene
    train: list[int]
    held_out: list[int]
    weight: float = 1.0


class Draw(NamedTuple):
    """What one item of a batch shows: a capture, its input and target frames, and how its world is moved."""

    scene: int
    inputs: list[int]
    targets: list[int]
    angle: float
    scale: float


class Batch(NamedTuple):
    """Input views and the views to be rendered, with the captures as first axis."""

    inputs: Views
    targets: Views


class BatchMaker:
    """Makes training batches out of captures; the same (seed, step, rank) always gives the same batch."""

    def __init__(self, scenes: list[TrainingScene], config: DataConfig, seed: int) -> None:
        self.scenes, self.config, self.seed = scenes, config, seed
        weights = np.array([s.weight for s in scenes], dtype=np.float64)
        self.chances = weights / weights.sum()

    def draw(self, step: int, rank: int = 0) -> list[Draw]:
        """Choose captures, views and augmentation for one batch; nothing is loaded."""
        config = self.config
        rng = np.random.default_rng([self.seed, step, rank])
        counts = draw_count(rng, config.input_views), draw_count(rng, config.target_views)
        reach = math.log1p(config.scale_jitter)
        draws = []
        for index in rng.choice(len(self.scenes), size=config.batch_size, p=self.chances):
            frames = self.scenes[index].train
            inputs, targets = draw_views(rng, len(frames), *counts, config.targets_may_be_inputs)
            angle = rng.uniform(0, 2 * math.pi) if config.rotate_world else 0.0
            scale = math.exp(rng.uniform(-reach, reach))
            draws.append(Draw(int(index), [frames[i] for i in inputs], [frames[i] for i in targets], angle, scale))
        return draws

    def batch(self, step: int, rank: int = 0) -> Batch:
        """Load the batch that `draw` chose."""
        pairs = [self._load(draw) for draw in self.draw(step, rank)]
        return Batch(stack_views([p[0] for p in pairs]), stack_views([p[1] for p in pairs]))

    def _load(self, draw: Draw) -> tuple[Views, Views]:
        config = self.config
        scene = self.scenes[draw.scene].scene.normalize(draw.inputs, config.normalization)
        views = scene.load(draw.inputs + draw.targets, config.image_size)
        if views.alpha is None:  # photos without alpha are all foreground, so that they stack with those that have it
            views = replace(views, alpha=torch.ones_like(views.images[:, :1]))
        views = move_world(views, draw.angle, draw.scale, "y" if config.normalization == "mean_pose" else "z")
        count = len(draw.inputs)
        return views.select(slice(0, count)), views.select(slice(count, None))


def move_world(views: Views, angle: float, scale: float, up: Literal["y", "z"] = "z") -> Views:
    """Turn the world by `angle` (radians) about the up axis through the origin and scale it; pixels stay."""
    if angle == 0 and scale == 1:
        return views
    cos, sin = math.cos(angle), math.sin(angle)
    turn = [[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]] if up == "z" else [[cos, 0, sin], [0, 1, 0], [-sin, 0, cos]]
    similarity = torch.eye(4, dtype=torch.float64)
    similarity[:3, :3] = scale * torch.tensor(turn, dtype=torch.float64)
    moved = views.transform(similarity)
    if views.world_to_scene is None:
        return moved
    return replace(moved, world_to_scene=similarity @ views.world_to_scene)
