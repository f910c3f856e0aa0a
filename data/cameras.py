"""Pinhole cameras as tensors: where they stand, how they see, and the rays of their pixels.

Conventions, everywhere in this project: `c2w` is camera-to-world with OpenCV axes (x right, y down, z forward);
`intrinsics` are fx, fy, cx, cy in pixels; the centre of the top-left pixel is at (0.5, 0.5); sizes are (h, w).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Cameras:
    """A batch of cameras that share one image size (h, w) in pixels."""

    c2w: Float[Tensor, "*b v 4 4"]
    intrinsics: Float[Tensor, "*b v 4"]
    image_size: tuple[int, int]

    @property
    def num_views(self) -> int:
        """Number of cameras along the view axis."""
        return self.c2w.shape[-3]

    @property
    def positions(self) -> Float[Tensor, "*b v 3"]:
        """Camera centres in world units."""
        return self.c2w[..., :3, 3]

    @property
    def forward(self) -> Float[Tensor, "*b v 3"]:
        """Unit viewing directions (the cameras' z axes)."""
        return self.c2w[..., :3, 2]

    def select(self, index: int | slice | list[int] | Tensor) -> Self:
        """Take cameras along the view axis; a single index keeps the axis."""
        if isinstance(index, int):
            index = [index]
        return replace(self, c2w=self.c2w[..., index, :, :], intrinsics=self.intrinsics[..., index, :])

    def to(self, *args, **kwargs) -> Self:
        """Move or cast every tensor, as `Tensor.to` does."""
        moved = {k: v.to(*args, **kwargs) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **moved)

    def add_batch(self) -> Self:
        """Add a leading batch axis of one scene."""
        return replace(self, **{k: v[None] for k, v in vars(self).items() if isinstance(v, Tensor)})

    def resize(self, image_size: tuple[int, int]) -> Cameras:
        """The same cameras seen at another size (h, w); both axes scale on their own."""
        (h, w), (new_h, new_w) = self.image_size, image_size
        scale = self.intrinsics.new_tensor([new_w / w, new_h / h, new_w / w, new_h / h])
        return Cameras(self.c2w, self.intrinsics * scale, image_size)

    def crop(self, top: int, left: int, image_size: tuple[int, int]) -> Cameras:
        """The same cameras after cutting out the window of `image_size` that starts at (top, left)."""
        offset = self.intrinsics.new_tensor([0.0, 0.0, left, top])
        return Cameras(self.c2w, self.intrinsics - offset, image_size)

    def transform(self, similarity: Float[Tensor, "*b 4 4"]) -> Self:
        """Move the cameras by a similarity (rotation, uniform scale, shift); rotations stay orthonormal."""
        similarity = similarity.to(self.c2w)
        scale = torch.linalg.det(similarity[..., :3, :3]).abs() ** (1 / 3)
        moved = similarity[..., None, :, :] @ self.c2w
        rotation = moved[..., :3, :3] / scale[..., None, None, None]
        top = torch.cat([rotation, moved[..., :3, 3:]], dim=-1)
        return replace(self, c2w=torch.cat([top, self.c2w[..., 3:, :]], dim=-2))

    def rays(self) -> tuple[Float[Tensor, "*b v h w 3"], Float[Tensor, "*b v h w 3"]]:
        """Origins and unit directions of the rays through all pixel centres."""
        h, w = self.image_size
        fx, fy, cx, cy = (x[..., None, None] for x in self.intrinsics.unbind(-1))
        y, x = torch.meshgrid(
            torch.arange(h, device=self.c2w.device, dtype=self.c2w.dtype) + 0.5,
            torch.arange(w, device=self.c2w.device, dtype=self.c2w.dtype) + 0.5,
            indexing="ij",
        )
        u, v = (x - cx) / fx, (y - cy) / fy
        in_camera = rearrange(torch.stack([u, v, torch.ones_like(u)]), "c ... v h w -> ... v c (h w)")
        directions = rearrange(self.c2w[..., :3, :3] @ in_camera, "... v c (h w) -> ... v h w c", h=h)
        directions = directions / directions.norm(dim=-1, keepdim=True)
        return self.positions[..., None, None, :].expand_as(directions), directions


def join_cameras(cameras: list[Cameras]) -> Cameras:
    """Join cameras of one image size along the view axis."""
    sizes = {c.image_size for c in cameras}
    if len(sizes) != 1:
        raise ValueError(f"cameras of different image sizes cannot be joined: {sorted(sizes)}; resize them first")
    return Cameras(
        torch.cat([c.c2w for c in cameras], dim=-3),
        torch.cat([c.intrinsics for c in cameras], dim=-2),
        sizes.pop(),
    )
