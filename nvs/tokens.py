"""Between pictures and tokens: rays and colours of each patch in, colours of each patch out.

The numbers of a pixel and their order are those of `kernels.embed_rays`, the published ones (LaCT, arXiv 2505.23884).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from data import Cameras, UserError
from kernels import embed_rays

TOKEN_CHANNELS = 12
"""Per pixel: ray origin, unit direction, origin x direction, colour in -1..1."""


def check_patches(image_size: tuple[int, int], patch: int) -> None:
    """Raise UserError with the nearest size if an image size (h, w) cannot be cut into patches."""
    h, w = image_size
    if h < 1 or w < 1 or h % patch or w % patch:
        near = tuple(max(patch, round(s / patch) * patch) for s in image_size)
        raise UserError(
            f"an image size of {h}x{w} cannot be cut into patches of {patch}x{patch} pixels; "
            f"the nearest size is {near[0]}x{near[1]}"
        )


def unpatchify(
    patches: Float[Tensor, "*b v t p"], image_size: tuple[int, int], patch: int
) -> Float[Tensor, "*b v c h w"]:
    """Put square patches back together, row by row; a patch is flattened pixel by pixel, channels last."""
    rows = image_size[0] // patch
    return rearrange(patches, "... (i j) (p q c) -> ... c (i p) (j q)", i=rows, p=patch, q=patch)


def blend_patches(
    patches: Float[Tensor, "*b v t p"], image_size: tuple[int, int], patch: int, overlap: int
) -> Float[Tensor, "*b v 3 h w"]:
    """Put patches together that reach `overlap` pixels into their neighbours on all sides; there they fade over.

    Along each axis a patch counts linearly less from `overlap` pixels inside its border to as many outside.
    """
    if overlap == 0:
        return unpatchify(patches, image_size, patch)
    patches = patches.to(torch.promote_types(patches.dtype, torch.float32))
    if patches.numel() == 0:  # no views
        return patches.new_zeros((*patches.shape[:-2], 3, *image_size))
    side = patch + 2 * overlap
    steps = (torch.arange(side, device=patches.device, dtype=patches.dtype) + 0.5) / (2 * overlap)
    ramp = torch.minimum(steps, steps.flip(0)).clamp(max=1)
    total_h, total_w = (_overlap_add(ramp.expand(n // patch, -1), patch) for n in image_size)
    wide = (image_size[0] + 2 * overlap, image_size[1] + 2 * overlap)
    crop = (..., slice(overlap, -overlap), slice(overlap, -overlap))
    share = (ramp[:, None] * ramp).flatten().repeat(3)[:, None]
    weight = (total_h[:, None] * total_w)[crop]
    images = []
    for view in patches.flatten(0, -3):  # one after the other, for the sake of memory
        columns = rearrange(view, "t (p q c) -> (c p q) t", p=side, q=side) * share
        images.append(F.fold(columns[None], wide, side, stride=patch)[0][crop] / weight)
    return torch.stack(images).unflatten(0, patches.shape[:-2])


def _overlap_add(rows: Float[Tensor, "n s"], stride: int) -> Float[Tensor, " l"]:
    """Sum of rows that lie `stride` apart."""
    n, side = rows.shape
    length = (n - 1) * stride + side
    return F.fold(rows.T[None].contiguous(), (1, length), (1, side), stride=(1, stride))[0, 0, 0]


def widen_decoder(weight: Float[Tensor, "o d"], patch: int, before: int, after: int) -> Float[Tensor, "p d"]:
    """The decoder of patches that overlap by `before` pixels as one for `after`: what is new repeats their edge."""
    side = patch + 2 * before
    kept = torch.arange(-after, patch + after, device=weight.device).clamp(-before, patch + before - 1) + before
    pixels = rearrange(weight, "(p q c) d -> p q c d", p=side, q=side)
    return pixels[kept][:, kept].flatten(0, 2)


def embed_patches(
    weight: Float[Tensor, "d p"], cameras: Cameras, images: Float[Tensor, "*b v 3 h w"] | None, patch: int
) -> Float[Tensor, "*b v t d"]:
    """Project the Plücker rays and colours of every patch; without images (views to be rendered) colours are 0."""
    check_patches(cameras.image_size, patch)
    views, flat = cameras.c2w.shape[:-2], None if images is None else images.flatten(0, -4)
    c2w, intrinsics = cameras.c2w.flatten(0, -3), cameras.intrinsics.flatten(0, -2)
    return embed_rays(weight, c2w, intrinsics, flat, cameras.image_size, patch).unflatten(0, views)


def frustum_features(
    cameras: Cameras, patch: int, points: int, frequencies: int, near: float, far: float
) -> Float[Tensor, "*b v t f"]:
    """Sine and cosine of points along each patch's central ray: they tell tokens which space they look at.

    `points` depths lie evenly between `near` and `far` (scene units); frequencies are pi/2 times 1, 2, 4, ...
    """
    h, w = cameras.image_size
    origins, directions = cameras.resize((h // patch, w // patch)).rays()
    depths = torch.linspace(near, far, points, device=origins.device, dtype=origins.dtype)
    at = origins[..., None, :] + directions[..., None, :] * depths[:, None]
    bands = 2.0 ** torch.arange(frequencies, device=at.device, dtype=at.dtype) * (math.pi / 2)
    phases = rearrange(at[..., None] * bands, "... v h w k c f -> ... v (h w) (k c f)")
    return torch.cat([phases.sin(), phases.cos()], dim=-1)
