"""Picture sheets: what is where, at which size."""

import numpy as np
import pytest
import torch
from PIL import Image

from nvs import sheet
from nvs.sheet import picture_sheet, stack_sheets, to_picture


def _flat(colours, h=64, w=64):
    return torch.tensor(colours, dtype=torch.float32).view(-1, 3, 1, 1).expand(-1, 3, h, w).contiguous()


def _first_x(picture, colour):
    """Left edge of the area with this colour."""
    return np.argwhere((np.asarray(picture) == colour).all(-1))[:, 1].min()


def test_sheet_shows_inputs_above_photo_and_rendering():
    red, green, blue = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    picture = picture_sheet(_flat([[1, 0, 0]] * 4), _flat([[0, 1, 0]]), _flat([[0, 0, 1]]), title="scene", note="note")
    pixels = np.asarray(picture)
    tops = [np.argwhere((pixels == c).all(-1))[:, 0].min() for c in (red, green, blue)]
    assert tops[0] < tops[1] == tops[2]
    assert _first_x(picture, green) < _first_x(picture, blue)
    counts = [(pixels == c).all(-1).sum() for c in (red, green, blue)]
    inside = (192 - 2) ** 2
    assert counts == [4 * inside, inside, inside]


@pytest.mark.parametrize(
    ("h", "w", "expected"), [(64, 64, (192, 192)), (24, 32, (192, 144)), (128, 128, (256, 256)), (256, 256, (256, 256))]
)
def test_small_images_grow_by_a_whole_number(h, w, expected):
    assert sheet._tile_size(h, w) == expected


def test_very_large_images_shrink_and_keep_their_shape():
    width, height = sheet._tile_size(1080, 1920)
    assert width < 400
    assert width / height == pytest.approx(1920 / 1080, rel=0.01)


def test_many_views_are_thinned_evenly():
    many = picture_sheet(torch.rand(40, 3, 8, 8), torch.rand(50, 3, 8, 8), torch.rand(50, 3, 8, 8))
    few = picture_sheet(torch.rand(16, 3, 8, 8), torch.rand(12, 3, 8, 8), torch.rand(12, 3, 8, 8))
    assert many.size == few.size


def test_shown_inputs_reach_from_the_first_to_the_last():
    inputs = _flat([[1, 0, 0]] + [[1, 1, 1]] * 38 + [[0, 0, 1]])
    pixels = np.asarray(picture_sheet(inputs, _flat([[0, 1, 0]]), _flat([[0, 1, 0]])))
    assert all((pixels == colour).all(-1).any() for colour in ((255, 0, 0), (0, 0, 255)))


def test_long_names_keep_their_ends_and_fit():
    name = "a/very/long/folder/name/with/photo_000123.png"
    short = sheet._shorten(name, 13, 150)
    assert sheet._font(13).getlength(short) <= 150
    assert short.startswith("a/ve") and short.endswith(".png") and "…" in short
    assert sheet._shorten("short.png", 13, 150) == "short.png"


def test_a_sheet_without_targets_is_still_drawn():
    assert picture_sheet(torch.rand(2, 3, 16, 16), torch.rand(0, 3, 16, 16), torch.rand(0, 3, 16, 16)).height > 100


def test_to_picture_rounds_clips_and_survives_nan():
    image = torch.tensor([0.5, 2.0, float("nan")]).view(3, 1, 1)
    assert to_picture(image).getpixel((0, 0)) == (128, 255, 0)


def test_stacked_sheets_stand_below_each_other():
    stacked = stack_sheets([Image.new("RGB", (10, 5), "red"), Image.new("RGB", (6, 7), "blue")])
    assert stacked.size == (10, 12)
    assert stacked.getpixel((0, 0)) == (255, 0, 0) and stacked.getpixel((0, 11)) == (0, 0, 255)
    assert stacked.getpixel((9, 11)) == (255, 255, 255)
