"""How near a rendering is to the photo: one number per image, so that means are taken over images and never pooled.

Papers report the mean over images of the PSNR of each image; the PSNR of the pooled error is another, lower number.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from data import UserError

PSNR_CAP = 100.0
SSIM_WINDOW = 11


def psnr(pred: Float[Tensor, "*b 3 h w"], target: Float[Tensor, "*b 3 h w"]) -> Float[Tensor, "*b"]:
    """Peak signal-to-noise ratio of each image in dB for values in 0..1; identical images get the cap of 100 dB."""
    error = (pred - target).square().mean(dim=(-3, -2, -1))
    return _decibel(error)


def psnr_inside(
    pred: Float[Tensor, "*b 3 h w"], target: Float[Tensor, "*b 3 h w"], mask: Float[Tensor, "*b 1 h w"]
) -> Float[Tensor, "*b"]:
    """PSNR in dB over the pixels that a mask (weights 0..1) covers; NaN for an image whose mask is empty."""
    error = (pred - target).square().mean(dim=-3, keepdim=True)
    return _decibel(_weighted_mean(error, mask))


def ssim(pred: Float[Tensor, "*b 3 h w"], target: Float[Tensor, "*b 3 h w"]) -> Float[Tensor, "*b"]:
    """Structural similarity of each image (at most 1) for values in 0..1, reflect-padded.

    Wang et al. 2004: Gaussian window of 11 pixels, sigma 1.5. Borders are mirrored; the variant that looks only at
    whole windows gives other numbers.
    """
    h, w = pred.shape[-2:]
    if min(h, w) < SSIM_WINDOW:
        raise UserError(
            f"SSIM needs images of at least {SSIM_WINDOW}x{SSIM_WINDOW} pixels, but these have {h}x{w}; "
            "choose a larger image size."
        )
    half = SSIM_WINDOW // 2
    x, y = (F.pad(image.reshape(-1, 1, h, w), (half,) * 4, mode="reflect") for image in (pred, target))
    offsets = torch.arange(-half, half + 1, device=pred.device, dtype=pred.dtype)
    window = torch.softmax(-offsets.square() / (2 * 1.5**2), dim=0)

    def blur(image: Tensor) -> Tensor:
        return F.conv2d(F.conv2d(image, window.view(1, 1, -1, 1)), window.view(1, 1, 1, -1))

    mean_x, mean_y = blur(x), blur(y)
    var_x = (blur(x * x) - mean_x.square()).clamp(min=0)
    var_y = (blur(y * y) - mean_y.square()).clamp(min=0)
    covariance = blur(x * y) - mean_x * mean_y
    c1, c2 = 0.01**2, 0.03**2
    luminance = (2 * mean_x * mean_y + c1) / (mean_x.square() + mean_y.square() + c1)
    structure = (2 * covariance + c2) / (var_x + var_y + c2)
    return (luminance * structure).reshape(*pred.shape[:-3], -1).mean(dim=-1)


def chroma_error(
    pred: Float[Tensor, "*b 3 h w"],
    target: Float[Tensor, "*b 3 h w"],
    mask: Float[Tensor, "*b 1 h w"] | None = None,
) -> Float[Tensor, "*b"]:
    """Mean distance of the colours without their lightness, in the a*b* plane of CIELAB (0 best; 2 is just visible).

    PSNR hardly sees a missing colour; this does. With a mask (weights 0..1) only the pixels that it covers count.
    """
    distance = torch.linalg.vector_norm(_chroma(pred) - _chroma(target), dim=-3, keepdim=True)
    return _weighted_mean(distance, torch.ones_like(distance) if mask is None else mask)


def _decibel(squared_error: Tensor) -> Tensor:
    return -10 * squared_error.clamp(min=10 ** (-PSNR_CAP / 10)).log10()


def _weighted_mean(values: Float[Tensor, "*b 1 h w"], weights: Float[Tensor, "*b 1 h w"]) -> Float[Tensor, "*b"]:
    return (values * weights).sum(dim=(-3, -2, -1)) / weights.sum(dim=(-3, -2, -1))


def _chroma(rgb: Float[Tensor, "*b 3 h w"]) -> Float[Tensor, "*b 2 h w"]:
    """CIELAB a* and b* of sRGB colours under the white D65 (IEC 61966-2-1, CIE 15)."""
    linear = torch.where(rgb > 0.04045, ((rgb.clamp(min=0) + 0.055) / 1.055) ** 2.4, rgb / 12.92)
    to_xyz = rgb.new_tensor([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    to_xyz = to_xyz / to_xyz.sum(dim=1, keepdim=True)
    xyz = torch.einsum("ij,...jhw->...ihw", to_xyz, linear)
    root = torch.where(xyz > (6 / 29) ** 3, xyz.clamp(min=1e-6) ** (1 / 3), xyz * (29 / 6) ** 2 / 3 + 4 / 29)
    x, y, z = root.unbind(dim=-3)
    return torch.stack([500 * (x - y), 200 * (y - z)], dim=-3)
