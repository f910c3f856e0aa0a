"""Tokens of rays in Triton: rays, colours and their patches exist only as tiles on their way into the projection.

Plain PyTorch writes the 12-channel picture of every view several times before one product reads it. Here a program
makes the numbers of its tile from the camera, so that cameras, photos and weights are all that is read.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import choices, family_of, launch, processors
from kernels.triton_tiles import load_tile, tile_of


@triton.jit
def ray_tile(
    c2w, intrinsics, images, tokens, numbers, t, across, i_c, i_h, i_w, PATCH: tl.constexpr, HAS_IMAGES: tl.constexpr
):
    """Numbers (columns) of patches (rows) of one view, in fp32: per pixel origin, direction, their product, colour.

    The pointers are those of the view; a row holds `across` patches; `t` patches in all. Zeros beyond the last number.
    """
    pixels = numbers // 12
    channels = numbers % 12
    left = tokens % across * PATCH
    top = tokens // across * PATCH
    column = left[:, None] + (pixels % PATCH)[None, :]
    row = top[:, None] + (pixels // PATCH)[None, :]
    u = (column + 0.5 - tl.load(intrinsics + 2)) / tl.load(intrinsics)
    v = (row + 0.5 - tl.load(intrinsics + 3)) / tl.load(intrinsics + 1)
    x = tl.load(c2w) * u + tl.load(c2w + 1) * v + tl.load(c2w + 2)
    y = tl.load(c2w + 4) * u + tl.load(c2w + 5) * v + tl.load(c2w + 6)
    z = tl.load(c2w + 8) * u + tl.load(c2w + 9) * v + tl.load(c2w + 10)
    length = tl.sqrt(x * x + y * y + z * z)
    x, y, z = x / length, y / length, z / length
    at_x, at_y, at_z = tl.load(c2w + 3), tl.load(c2w + 7), tl.load(c2w + 11)
    group = (channels // 3)[None, :]
    axis = (channels % 3)[None, :]
    origin = tl.where(axis == 0, at_x, tl.where(axis == 1, at_y, at_z))
    direction = tl.where(axis == 0, x, tl.where(axis == 1, y, z))
    moment = tl.where(axis == 0, at_y * z - at_z * y, tl.where(axis == 1, at_z * x - at_x * z, at_x * y - at_y * x))
    known = ((tokens < t)[:, None]) & ((numbers < PATCH * PATCH * 12)[None, :])
    result = tl.where(group == 0, origin, tl.where(group == 1, direction, moment))
    if HAS_IMAGES:
        place = axis * i_c + row.to(tl.int64) * i_h + column * i_w
        colour = tl.load(images + place, mask=known & (group == 3), other=0.0).to(tl.float32) * 2 - 1
        result = tl.where(group == 3, colour, result)
    else:
        result = tl.where(group == 3, 0.0, result)
    return tl.where(known, result, 0.0)


@triton.jit
def embed_rays_kernel(
    c2w, intrinsics, images, weight, out, t, o, across, i_b, i_c, i_h, i_w, w_o, w_p,
    PATCH: tl.constexpr, HAS_IMAGES: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out [b t o] = numbers of each patch of each view times weight^T, for weight [o, 12 PATCH PATCH]."""
    view, tokens, cols = tile_of(t, o, BM, BN)
    wide: tl.constexpr = PATCH * PATCH * 12
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, wide, BK):
        numbers = start + tl.arange(0, BK)
        rays = ray_tile(
            c2w + view * 16, intrinsics + view * 4, images + view * i_b, tokens.to(tl.int32), numbers, t, across,
            i_c, i_h, i_w, PATCH, HAS_IMAGES,
        )  # fmt: skip
        right = load_tile(weight, numbers, cols, wide, o, w_p, w_o)
        total = tl.dot(rays.to(right.dtype), right, total, input_precision=PRECISION)
    inside = (tokens < t)[:, None] & (cols < o)[None, :]
    tl.store(out + (view * t + tokens)[:, None] * o + cols[None, :], total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def ray_weight_kernel(
    c2w, intrinsics, images, grad, out, b, t, o, across, i_b, i_c, i_h, i_w, views,
    PATCH: tl.constexpr, HAS_IMAGES: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out [parts, o, 12 PATCH PATCH] = sum over a part of `views` views of grad^T rays, for contiguous grad [b t o]."""
    wide: tl.constexpr = PATCH * PATCH * 12
    part, rows, numbers = tile_of(o, wide, BM, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for view in range(part * views, tl.minimum(part * views + views, b)):
        for start in range(0, t, BK):
            tokens = start + tl.arange(0, BK)
            left = load_tile(grad + view * t * o, rows, tokens, o, t, 1, o)
            rays = ray_tile(
                c2w + view * 16, intrinsics + view * 4, images + view * i_b, tokens, numbers, t, across,
                i_c, i_h, i_w, PATCH, HAS_IMAGES,
            )  # fmt: skip
            total = tl.dot(left, rays.to(left.dtype), total, input_precision=PRECISION)
    inside = (rows < o)[:, None] & (numbers < wide)[None, :]
    tl.store(out + (part * o + rows)[:, None] * wide + numbers[None, :], total, mask=inside)


@torch.library.custom_op("nvs_kernels::embed_rays", mutates_args=())
def embed_rays(
    weight: Tensor, c2w: Tensor, intrinsics: Tensor, images: Tensor | None, height: int, width: int, patch: int
) -> Tensor:
    """Patches of rays and colours times weight^T, [b t o] in the dtype of weight."""
    (b, o), t = (c2w.shape[0], weight.shape[0]), (height // patch) * (width // patch)
    out = weight.new_empty(b, t, o)
    launch(
        "rays", embed_rays_kernel, lambda s: b * triton.cdiv(t, s.m) * triton.cdiv(o, s.n), weight,
        *_cameras(c2w, intrinsics), weight if images is None else images, weight, out, t, o, width // patch,
        *_strides(images), *weight.stride(), PATCH=patch, HAS_IMAGES=images is not None,
    )  # fmt: skip
    return out


@embed_rays.register_fake
def _(weight, c2w, intrinsics, images, height, width, patch):
    return weight.new_empty(c2w.shape[0], (height // patch) * (width // patch), weight.shape[0])


@torch.library.custom_op("nvs_kernels::embed_rays_backward", mutates_args=())
def embed_rays_backward(
    weight: Tensor, c2w: Tensor, intrinsics: Tensor, images: Tensor | None, grad: Tensor, width: int, patch: int
) -> Tensor:
    """Gradient of `embed_rays` for weight, from rays that are made again."""
    b, t, o = grad.shape
    wide = 12 * patch * patch
    first = choices("ray_weight", family_of(grad.device), grad.dtype == torch.float32)[0]
    tiles = triton.cdiv(o, first.m) * triton.cdiv(wide, first.n)
    views = triton.cdiv(b, max(1, min(b, 2 * processors(grad.device) // max(tiles, 1))))
    parts = triton.cdiv(b, views) if b else 0
    out = torch.empty(parts, o, wide, dtype=torch.float32, device=grad.device)
    launch(
        "ray_weight", ray_weight_kernel, lambda s: parts * triton.cdiv(o, s.m) * triton.cdiv(wide, s.n), grad,
        *_cameras(c2w, intrinsics), grad if images is None else images, grad.contiguous(), out, b, t, o,
        width // patch, *_strides(images), views, PATCH=patch, HAS_IMAGES=images is not None,
    )  # fmt: skip
    return out.sum(dim=0).to(weight.dtype)


@embed_rays_backward.register_fake
def _(weight, c2w, intrinsics, images, grad, width, patch):
    return torch.empty_like(weight, memory_format=torch.contiguous_format)


def _cameras(c2w: Tensor, intrinsics: Tensor) -> tuple[Tensor, Tensor]:
    return c2w.float().contiguous(), intrinsics.float().contiguous()


def _strides(images: Tensor | None) -> tuple[int, ...]:
    return (0, 0, 0, 0) if images is None else images.stride()


def _save(ctx, inputs, output) -> None:
    weight, c2w, intrinsics, images, ctx.height, ctx.width, ctx.patch = inputs
    ctx.save_for_backward(weight, c2w, intrinsics, images)


def _backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
    weight, c2w, intrinsics, images = ctx.saved_tensors
    d_weight = d_images = None
    if ctx.needs_input_grad[0]:
        d_weight = embed_rays_backward(weight, c2w, intrinsics, images, grad.to(weight.dtype), ctx.width, ctx.patch)
    if images is not None and ctx.needs_input_grad[3]:
        p, rows, columns = ctx.patch, ctx.height // ctx.patch, ctx.width // ctx.patch
        colours = grad.to(weight.dtype) @ weight.unflatten(1, (p * p, 12))[..., 9:].flatten(1)
        pixels = colours.view(-1, rows, columns, p, p, 3).permute(0, 5, 1, 3, 2, 4)
        d_images = (pixels.reshape(images.shape) * 2).to(images.dtype)
    return d_weight, None, None, d_images, None, None, None


embed_rays.register_autograd(_backward, setup_context=_save)
