"""Backgrounds behind transparent photos: laid under them, and taken off again."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from data.errors import UsageError

Color = tuple[float, float, float]
COLORS: dict[str, Color] = {"white": (1.0, 1.0, 1.0), "black": (0.0, 0.0, 0.0)}


def parse_background(background: str | Color) -> Color:
    """A colour in 0..1 from "white", "black", "#rrggbb", "r,g,b" in 0..255, or three floats in 0..1."""
    if isinstance(background, str):
        if background in COLORS:
            return COLORS[background]
        try:
            if background.startswith("#") and len(background) == 7:
                values = tuple(v / 255 for v in bytes.fromhex(background[1:]))
            else:
                values = tuple(float(v) / 255 for v in background.split(","))
        except ValueError:
            values = ()
    else:
        values = tuple(float(v) for v in background)
    if len(values) != 3 or not all(0 <= v <= 1 for v in values):
        raise UsageError(
            f"background {background!r} is no colour. Give white, black, #rrggbb, or r,g,b with numbers 0 to 255."
        )
    return values


def composite(
    pixels: Float[Tensor, "c h w"], background: Color
) -> tuple[Float[Tensor, "3 h w"], Float[Tensor, "1 h w"]]:
    """Lay RGB with straight alpha over a background; returns the picture and its alpha (1 for opaque photos)."""
    if len(pixels) == 3:
        return pixels, torch.ones_like(pixels[:1])
    color, alpha = pixels[:3], pixels[3:]
    return color * alpha + pixels.new_tensor(background)[:, None, None] * (1 - alpha), alpha


def lift_off(pixels: Float[Tensor, "4 h w"], background: Color) -> Float[Tensor, "4 h w"]:
    """Colour and alpha that give these pixels when they are laid over the background again.

    Where straightening has overshot, no colour does that with the given alpha; there alpha becomes as large as needed.
    """
    behind = pixels.new_tensor(background)[:, None, None]
    change = pixels[:3] - behind
    room = torch.where(change > 0, 1 - behind, behind)
    needed = (change.abs() / room.clamp_min(1e-6)).amax(0, keepdim=True)
    alpha = (torch.maximum(pixels[3:], needed).clamp(max=1) * 255).ceil() / 255
    return torch.cat([(behind + change / alpha.clamp_min(1 / 255)).clamp(0, 1), alpha])
