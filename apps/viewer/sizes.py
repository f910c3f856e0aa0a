"""Picture sizes that a network can render, and how small a preview must be to keep up with a moving camera."""

from __future__ import annotations

Size = tuple[int, int]
"""Height and width in pixels."""

LARGEST = 512
"""Longest side of a picture in the live view."""
TARGET_FPS = 15.0
SQUASH = 0.03
"""By how much the shape of a size may differ from that of the photos; the lens makes up for it."""


def allowed_sizes(size: Size, patch: int, largest: int = LARGEST) -> list[Size]:
    """Sizes from small to large that can be cut into patches and have the shape of `size`, which is one of them."""
    h, w = size
    found = {(h, w)}
    for high in range(patch, max(largest, h) + 1, patch):
        wide = round(high * w / h / patch) * patch
        if patch <= wide <= max(largest, w) and abs(wide / high * h / w - 1) <= SQUASH:
            found.add((high, wide))
    return sorted(found)


def full_sizes(size: Size, patch: int) -> list[Size]:
    """The sizes that a person may choose for the picture at rest: some steps from half of `size` to the largest."""
    wanted = [size[0] * factor for factor in (0.5, 1, 1.5, 2, 3, 4, 6, 8)]
    sizes = allowed_sizes(size, patch)
    return sorted({min(sizes, key=lambda s: abs(s[0] - high)) for high in wanted})


class Speed:
    """How many pixels per second are rendered: a moving mean, so that one slow frame changes little."""

    def __init__(self) -> None:
        self.pixels_per_second: float | None = None

    def add(self, size: Size, seconds: float) -> None:
        """Take one measured render into account."""
        measured = size[0] * size[1] / max(seconds, 1e-6)
        known = self.pixels_per_second
        # Slowly upwards, quickly downwards: a preview that is too large is felt at once.
        weight = 0.2 if known is not None and measured > known else 0.4
        self.pixels_per_second = measured if known is None else (1 - weight) * known + weight * measured

    def preview(self, full: Size, sizes: list[Size], tabs: int) -> Size:
        """The largest size up to `full` that keeps `tabs` moving views at the target rate; the smallest if none does.

        Nothing below a third of the full size is taken: it would be faster, but show hardly anything.
        """
        usable = [s for s in sizes if s[0] <= full[0] and 3 * s[0] >= full[0]] or [full]
        if self.pixels_per_second is None:
            return usable[-1]
        budget = self.pixels_per_second / TARGET_FPS / max(1, tabs)
        return max((s for s in usable if s[0] * s[1] <= budget), default=usable[0])
