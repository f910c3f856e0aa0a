"""Which photos are shown and which are predicted: spread over the scene for evaluation, at random for training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar

import numpy as np
from jaxtyping import Float

from data.errors import UserError
from data.normalization import NO_EXTENT

Count = int | tuple[int, int]
InputSelection = Literal["random", "kmeans", "spread"]
T = TypeVar("T")


def spread(positions: Float[np.ndarray, "n d"], count: int) -> list[int]:
    """Indices of `count` points that cover all points evenly, in rising order; the same points give the same answer.

    Farthest-point choice gives the start, k-means evens it out, and each mean is replaced by the nearest free point.
    """
    if not 1 <= count <= len(positions):
        raise ValueError(f"cannot choose {count} of {len(positions)} points")
    points = np.asarray(positions, dtype=np.float64)
    points = points - points.mean(0)
    chosen = [int(np.argmin(np.linalg.norm(points, axis=1)))] if count == 1 else _farthest(points, count)
    centers, _ = _kmeans(points, points[chosen])
    free = np.ones(len(points), dtype=bool)
    result = []
    for center in centers:
        distance = np.where(free, np.linalg.norm(points - center, axis=1), np.inf)
        result.append(int(distance.argmin()))
        free[result[-1]] = False
    return sorted(result)


def draw_count(rng: np.random.Generator, count: Count) -> int:
    """A number, or one drawn from a range (lowest, highest), both included."""
    return count if isinstance(count, int) else int(rng.integers(count[0], count[1] + 1))


def draw_views(
    rng: np.random.Generator, num_frames: int, inputs: Count, targets: Count, overlap: bool = False
) -> tuple[list[int], list[int]]:
    """Random input and target frames; counts may be ranges; targets are other frames than inputs unless `overlap`."""
    num_inputs, num_targets = draw_count(rng, inputs), draw_count(rng, targets)
    needed = max(num_inputs, num_targets) if overlap else num_inputs + num_targets
    if needed > num_frames:
        raise UserError(
            f"the scene has {num_frames} frames, but {num_inputs} input and {num_targets} target views are asked for. "
            "Ask for fewer views or leave the scene out."
        )
    order = rng.permutation(num_frames)
    rest = rng.permutation(num_frames) if overlap else order[num_inputs:]
    return order[:num_inputs].tolist(), rest[:num_targets].tolist()


def draw_inputs(
    rng: np.random.Generator, c2w: Float[np.ndarray, "n 4 4"], count: int, selection: Literal["kmeans", "spread"]
) -> list[int]:
    """Random cameras: one of each of `count` groups ("kmeans"), or far from each other ("spread")."""
    points = _points(c2w)
    if selection == "spread":
        return _farthest(points, count, int(rng.integers(len(points))))
    _, group = _kmeans(points, points[_farthest(points, count, int(rng.integers(len(points))))])
    chosen = [int(rng.choice(np.flatnonzero(group == i))) for i in range(count) if (group == i).any()]
    # Cameras that coincide make fewer groups than asked for.
    others = [i for i in rng.permutation(len(points)).tolist() if i not in chosen]
    return chosen + others[: count - len(chosen)]


def draw_stretch(
    rng: np.random.Generator, frames: Sequence[int], distance: tuple[int, int], needed: int
) -> tuple[int, int] | None:
    """First and last position in `frames` (rising frame numbers) of a random stretch of a clip.

    The two frames are `distance` (fewest, most) apart in number, and the stretch has `needed` frames or more. All such
    stretches are equally likely; None if there is none.
    """
    numbers = np.asarray(frames)
    starts = np.arange(len(numbers))
    lows = np.maximum(np.searchsorted(numbers, numbers + distance[0]), starts + needed - 1)
    counts = np.maximum(np.searchsorted(numbers, numbers + distance[1], side="right") - lows, 0)
    total = int(counts.sum())
    if not total:
        return None
    chosen = int(rng.integers(total))
    start = int(np.searchsorted(counts.cumsum(), chosen, side="right"))
    return start, int(lows[start] + chosen - counts[:start].sum())


def spread_cameras(c2w: Float[np.ndarray, "n 4 4"], count: int) -> list[int]:
    """Indices of `count` cameras (OpenCV axes) spread over their positions, or over their gaze if they coincide."""
    return spread(_points(c2w), count)


def every(items: Sequence[T], count: int) -> list[T]:
    """`count` of the items at even steps, the first and the last among them; all if there are fewer."""
    if count >= len(items):
        return list(items)
    if count < 2:
        return [items[len(items) // 2]][:count]
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def _points(c2w: np.ndarray) -> np.ndarray:
    """What tells cameras apart: their positions, or where they look if they stand together."""
    positions = c2w[:, :3, 3]
    together = np.ptp(positions, axis=0).max() < NO_EXTENT * max(1.0, np.abs(positions).max())
    return c2w[:, :3, 2] if together else positions


def _kmeans(points: np.ndarray, centers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The means that these centres move to, and for each point the number of its mean."""
    nearest = np.zeros(len(points), dtype=int)
    for _ in range(20):
        nearest = np.linalg.norm(points[:, None] - centers, axis=-1).argmin(1)
        moved = np.stack([points[nearest == i].mean(0) if (nearest == i).any() else c for i, c in enumerate(centers)])
        if np.allclose(moved, centers):
            break
        centers = moved
    return centers, nearest


def _farthest(points: np.ndarray, count: int, first: int | None = None) -> list[int]:
    """Start at a point, or far out, then take again and again the point farthest from all taken."""
    chosen = [int(np.linalg.norm(points, axis=1).argmax()) if first is None else first]
    distance = np.full(len(points), np.inf)
    while len(chosen) < count:
        distance = np.minimum(distance, np.linalg.norm(points - points[chosen[-1]], axis=1))
        distance[chosen] = -1
        chosen.append(int(distance.argmax()))
    return chosen
