"""Picture sheets: what the model saw, and each held-out photo beside its rendering."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from data import every
from nvs.metrics import psnr

TILE = 208
MARGIN = 28
GAP = 12
PAIR_GAP = 3
CAPTION = 32
PAPER, INK, GREY, FRAME = (255, 255, 255), (32, 34, 38), (112, 116, 124), (214, 217, 222)


def picture_sheet(
    inputs: Float[Tensor, "v 3 h w"],
    targets: Float[Tensor, "t 3 h w"],
    predictions: Float[Tensor, "t 3 h w"],
    title: str = "",
    note: str = "",
    input_names: Sequence[str] = (),
    target_names: Sequence[str] = (),
    max_inputs: int = 16,
    max_pairs: int = 12,
    kind: str = "held-out photo",
) -> Image.Image:
    """Draw input views, then photo and rendering side by side with the PSNR (dB) of each; images in 0..1.

    `kind` says what the photos are, in the singular.
    """
    h, w = inputs.shape[-2:]
    tile = _tile_size(h, w)
    scores = psnr(predictions.float().cpu(), targets.float().cpu())
    columns = min(max(4, len(inputs) + len(inputs) % 2), 8)
    shown_inputs, shown = every(range(len(inputs)), max_inputs), every(range(len(targets)), max_pairs)

    size = f"{w}x{h} pixels" + (f", shown {tile[0] / w:g}x" if tile != (w, h) else "")
    sheet = _Sheet(columns, tile)
    sheet.heading(title, f"{note}{', ' if note else ''}{size}")
    sheet.section(_count("input view", len(inputs), len(shown_inputs)))
    sheet.row_of_tiles([(inputs[i], _name(input_names, i), "") for i in shown_inputs])
    average = f" (mean {scores.mean().item():.1f} dB)" if len(scores) else ""
    sheet.section(_count(kind, len(targets), len(shown)) + f" beside our rendering{average}")
    sheet.row_of_pairs(
        [(targets[i], predictions[i], _name(target_names, i), f"{scores[i].item():.1f} dB") for i in shown]
    )
    return sheet.image()


def stack_sheets(sheets: Sequence[Image.Image]) -> Image.Image:
    """Put sheets below each other, for example one for each scene."""
    canvas = Image.new("RGB", (max(s.width for s in sheets), sum(s.height for s in sheets)), PAPER)
    top = 0
    for sheet in sheets:
        canvas.paste(sheet, (0, top))
        top += sheet.height
    return canvas


def to_picture(image: Float[Tensor, "3 h w"]) -> Image.Image:
    """An 8-bit picture of one image in 0..1; values outside are clipped, NaN becomes black."""
    levels = image.detach().float().cpu().nan_to_num(0.0).clamp(0, 1).mul(255).round().to(torch.uint8)
    return Image.fromarray(np.ascontiguousarray(levels.permute(1, 2, 0).numpy()))


class _Sheet:
    """Draws from top to bottom on strips, which are joined at the end."""

    def __init__(self, columns: int, tile: tuple[int, int]) -> None:
        self.columns, self.tile = columns, tile
        self.width = 2 * MARGIN + columns * tile[0] + (columns - 1) * GAP
        self.strips: list[Image.Image] = []

    def _strip(self, height: int) -> ImageDraw.ImageDraw:
        self.strips.append(Image.new("RGB", (self.width, height), PAPER))
        return ImageDraw.Draw(self.strips[-1])

    def heading(self, title: str, note: str) -> None:
        draw = self._strip(MARGIN + (32 if title else 0) + 22)
        inner = self.width - 2 * MARGIN
        if title:
            draw.text((MARGIN, MARGIN - 6), _shorten(title, 24, inner), INK, font=_font(24))
        draw.text((MARGIN, MARGIN + (28 if title else -6)), _shorten(note, 14, inner), GREY, font=_font(14))

    def section(self, text: str) -> None:
        draw = self._strip(44)
        draw.text((MARGIN, 15), _shorten(text, 17, self.width - 2 * MARGIN), INK, font=_font(17))

    def row_of_tiles(self, tiles: list[tuple[Tensor, str, str]]) -> None:
        step = self.tile[0] + GAP
        for start in range(0, len(tiles), self.columns):
            draw = self._strip(self.tile[1] + CAPTION)
            for column, (image, left, right) in enumerate(tiles[start : start + self.columns]):
                self._put(draw, image, MARGIN + column * step, left, right)

    def row_of_pairs(self, pairs: list[tuple[Tensor, Tensor, str, str]]) -> None:
        """Photo and rendering nearly touch, so that the eye can jump between them."""
        per_row = self.columns // 2
        pair = 2 * self.tile[0] + PAIR_GAP
        step = (self.width - 2 * MARGIN - pair) / (per_row - 1)
        for start in range(0, len(pairs), per_row):
            draw = self._strip(self.tile[1] + CAPTION)
            for column, (photo, rendering, name, score) in enumerate(pairs[start : start + per_row]):
                left = MARGIN + round(column * step)
                self._put(draw, photo, left, name or "photo", "")
                self._put(draw, rendering, left + self.tile[0] + PAIR_GAP, "ours", score)

    def _put(self, draw: ImageDraw.ImageDraw, image: Tensor, left: int, caption: str, score: str) -> None:
        w, h = self.tile
        picture = to_picture(image)
        if picture.size != self.tile:
            picture = picture.resize(self.tile, Image.Resampling.BICUBIC)
        self.strips[-1].paste(picture, (left, 0))
        draw.rectangle((left, 0, left + w - 1, h - 1), outline=FRAME)
        room = w - draw.textlength(score, font=_font(14)) - 8
        draw.text((left + 1, h + 4), _shorten(caption, 13, room), GREY, font=_font(13))
        draw.text((left + w - 1, h + 4), score, INK, font=_font(14), anchor="ra")

    def image(self) -> Image.Image:
        whole = stack_sheets(self.strips)
        return stack_sheets([whole, Image.new("RGB", (1, GAP), PAPER)])


def _tile_size(h: int, w: int) -> tuple[int, int]:
    """Shown size (width, height): small images grow by a whole number, very large ones shrink."""
    longest = max(h, w)
    scale = max(1, round(TILE / longest)) if longest <= 2 * TILE else 1.5 * TILE / longest
    return max(1, round(w * scale)), max(1, round(h * scale))


def _count(noun: str, total: int, shown: int) -> str:
    text = f"{total} {noun}{'' if total == 1 else 's'}"
    return text if shown == total else f"{text} ({shown} shown)"


def _name(names: Sequence[str], index: int) -> str:
    return names[index] if index < len(names) else ""


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _shorten(text: str, size: int, room: float) -> str:
    """Cut out the middle of a text that is wider than `room` pixels."""
    font = _font(size)
    keep = len(text)
    shorter = text
    while keep > 2 and font.getlength(shorter) > room:
        keep -= 1
        shorter = f"{text[: (keep + 1) // 2]}…{text[len(text) - keep // 2 :]}"
    return shorter
