"""Posed photos as tensors: cameras with their pixels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from data.cameras import Cameras, join_cameras


@dataclass(frozen=True)
class Views(Cameras):
    """Cameras with images, floats in 0..1, channels first.

    `alpha` is the photos' own coverage (0..1) where they have one. `world_to_scene` is the similarity that took the
    capture's world to the frame that these cameras are in (float64), where it is known.
    """

    images: Float[Tensor, "*b v 3 h w"]
    alpha: Float[Tensor, "*b v 1 h w"] | None = None
    world_to_scene: Float[Tensor, "*b 4 4"] | None = None

    @property
    def cameras(self) -> Cameras:
        """The cameras alone."""
        return Cameras(self.c2w, self.intrinsics, self.image_size)

    def select(self, index: int | slice | list[int] | Tensor) -> Self:
        """Take views along the view axis; a single index keeps the axis."""
        if isinstance(index, int):
            index = [index]
        alpha = None if self.alpha is None else self.alpha[..., index, :, :, :]
        cameras = self.cameras.select(index)
        images = self.images[..., index, :, :, :]
        return replace(self, c2w=cameras.c2w, intrinsics=cameras.intrinsics, images=images, alpha=alpha)

    def to(self, *args, **kwargs) -> Self:
        """Move or cast pixels and cameras as `Tensor.to` does; `world_to_scene` stays float64 where it is."""
        moved = super().to(*args, **kwargs)
        return replace(moved, world_to_scene=self.world_to_scene)


def stack_views(views: list[Views]) -> Views:
    """Stack views of several scenes along a new leading batch axis; counts and sizes must agree."""
    shapes = {(v.num_views, v.image_size) for v in views}
    if len(shapes) != 1:
        raise ValueError(f"scenes of different view counts or image sizes cannot be stacked: {sorted(shapes)}")

    def stack(name: str) -> Tensor | None:
        values = [getattr(v, name) for v in views]
        return None if any(x is None for x in values) else torch.stack(values)

    return Views(
        c2w=torch.stack([v.c2w for v in views]),
        intrinsics=torch.stack([v.intrinsics for v in views]),
        image_size=views[0].image_size,
        images=torch.stack([v.images for v in views]),
        alpha=stack("alpha"),
        world_to_scene=stack("world_to_scene"),
    )


def join_views(views: list[Views]) -> Views:
    """Join views of one scene and one image size along the view axis."""
    cameras = join_cameras(list(views))
    alphas = [v.alpha for v in views]
    return Views(
        cameras.c2w,
        cameras.intrinsics,
        cameras.image_size,
        torch.cat([v.images for v in views], dim=-4),
        None if any(a is None for a in alphas) else torch.cat(alphas, dim=-4),  # type: ignore[arg-type]
        views[0].world_to_scene,
    )
