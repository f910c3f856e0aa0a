"""What a model is trained on, and what each training batch shows of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from data.normalization import Normalization
from data.procedural import ProceduralConfig
from data.sampling import InputSelection


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
    image_sizes: list[tuple[int, int]] | None = None
    """More sizes (height and width in pixels): a capture is shown at the one, of these and `image_size`, whose aspect
    is nearest to that of its photos, a procedural scene at any; each batch has one size."""
    batch_size: int = 8
    """Captures per step on each device."""
    input_views: tuple[int, int] = (2, 6)
    """Fewest and most input views; one number is drawn for each batch."""
    target_views: tuple[int, int] = (4, 4)
    """Fewest and most views to be rendered; one number is drawn for each batch."""
    targets_may_be_inputs: bool = False
    """Whether a view to be rendered may also be an input view."""
    input_selection: InputSelection = "random"
    """random: any photos. kmeans: one photo from each of as many groups of cameras as there are inputs. spread: from a
    random photo on, always the one farthest from those chosen."""
    frame_distance: tuple[int, int] | None = None
    """For clips: fewest and most frames from the first to the last photo of a draw. With random inputs, these two are
    inputs (with one input, the first). None: photos from anywhere in the capture."""
    normalization: Normalization = "focus"
    """How the world is moved and scaled; fitted on the drawn input views only."""
    background: str = "white"
    """Colour behind photos with alpha: white, black, or #rrggbb."""
    rotate_world: bool = False
    """Turn each drawn capture about the up axis by a random angle."""
    roll_degrees: float = 0.0
    """Roll each drawn capture out of the level by up to so many degrees, about a random horizontal axis."""
    scale_jitter: float = 0.0
    """Scale each drawn capture by a random factor between 1 / (1 + x) and 1 + x."""
    flip_share: float = 0.0
    """Share (0..1) of the drawn captures that are mirrored: photos, cameras and world together."""
    color_jitter: float = 0.0
    """Change brightness, contrast and saturation of each drawn capture by random factors between 1 / (1 + x) and 1 + x,
    and its hue by up to 60 x degrees, the same for all its photos."""
    holdout_every: int = 0
    """Hold out every k-th photo of captures whose files do not tell which are for training; 0 holds out none. `nvs
    eval` judges the model by these photos."""
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
    source: Literal["captures", "procedural", "shards"] = "captures"
    """captures: those given above. procedural: random scenes made on the fly, without end and without files. shards:
    captures packed by `nvs convert --to shards`, read as a stream."""
    procedural: ProceduralConfig = field(default_factory=ProceduralConfig)
    """What procedural scenes are like."""
    shards: list[str] | None = None
    """For source shards: folders of shards or .tar files, as paths or as any address that fsspec reads (s3://, gs://,
    https://), with patterns such as `*.tar` or `{000000..000099}.tar`."""
    shard_shuffle: int = 64
    """Captures of a shard stream that are mixed at a time, beside the order of the shards; 1 keeps their order."""

    @property
    def all_sizes(self) -> list[tuple[int, int]]:
        """`image_size` and `image_sizes`, each once."""
        return list(dict.fromkeys([self.image_size, *map(tuple, self.image_sizes or [])]))  # type: ignore[list-item]

    @property
    def views_needed(self) -> int:
        """Photos that a capture must have to serve for the largest draw."""
        inputs, targets = self.input_views[1], self.target_views[1]
        return max(inputs, targets) if self.targets_may_be_inputs else inputs + targets

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for name in ("input_views", "target_views"):
            low, high = getattr(self, name)
            if not 1 <= low <= high:
                raise ValueError(f"data.{name} must be two numbers, 1 <= fewest <= most, got {low} and {high}")
        for name in ("batch_size", "validation_max_scenes", "shard_shuffle"):
            if getattr(self, name) < 1:
                raise ValueError(f"data.{name} must be 1 or more, got {getattr(self, name)}")
        for name in ("scale_jitter", "color_jitter", "roll_degrees", "holdout_every", "workers", "cache_gb"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"data.{name} must be 0 or a positive number, got {getattr(self, name)}")
        if not 0 <= self.flip_share <= 1:
            raise ValueError(f"data.flip_share must be a number from 0 to 1, got {self.flip_share}")
        if min(min(map(min, self.all_sizes)), *self.validation_views) < 1:
            raise ValueError("data.image_size, image_sizes and validation_views must hold numbers of 1 or more")
        if self.holdout_every == 1:
            raise ValueError("data.holdout_every 1 would hold out every photo; use 2 or more, or 0 for none")
        if self.weights is not None and (
            len(self.weights) != len(self.scenes or []) or min(self.weights, default=0.0) <= 0
        ):
            raise ValueError("data.weights needs one number above 0 for each entry of data.scenes")
        self._check_frame_distance()
        self._check_source()

    def _check_frame_distance(self) -> None:
        if self.frame_distance is None:
            return
        low, high = self.frame_distance
        if not 1 <= low <= high:
            raise ValueError(f"data.frame_distance must be two numbers, 1 <= fewest <= most, got {low} and {high}")
        if high < self.views_needed - 1:
            raise ValueError(
                f"data.frame_distance {high} leaves {high + 1} frames for {self.views_needed} views; raise it or lower "
                "data.input_views and data.target_views"
            )

    def _check_source(self) -> None:
        if self.source != "captures" and (self.scene or self.scenes):
            raise ValueError(f"data.source {self.source} takes no captures; leave out data.scene and data.scenes")
        if self.source != "shards" and self.shards:
            raise ValueError("data.shards needs data.source shards")
        if self.source == "shards" and self.image_sizes:
            raise ValueError("data.image_sizes is not for shards, whose photos have one size; leave it out")
        if self.source == "procedural" and (self.input_selection != "random" or self.frame_distance):
            raise ValueError(
                "data.input_selection and data.frame_distance choose among photos, which procedural scenes do not "
                "have; leave them out"
            )
