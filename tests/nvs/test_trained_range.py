import json

import pytest
import torch

from data import Cameras
from nvs import TrainedRange
from nvs.trained_range import horizontal_fov

RANGE = TrainedRange((2, 6), (64, 64), (40.0, 60.0), "focus", "white", "two captures", 7)


def cameras(views=4, size=(64, 64), fov=50.0):
    focal = size[1] / 2 / torch.tan(torch.deg2rad(torch.tensor(fov / 2)))
    intrinsics = torch.stack([focal, focal, torch.tensor(size[1] / 2), torch.tensor(size[0] / 2)]).float()
    return Cameras(torch.eye(4).repeat(views, 1, 1), intrinsics.repeat(views, 1), size)


def test_inside_there_is_no_warning():
    assert RANGE.warnings_for(cameras()) == ()
    assert RANGE.warnings_for(cameras(views=2, fov=39.5)) == () and RANGE.warnings_for(cameras(views=6, fov=60.5)) == ()


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (cameras(views=1), "1 input views"),
        (cameras(views=7), "7 input views, but the model was trained with 2 to 6"),
        (cameras(size=(64, 96)), "images of 64x96 pixels, but the model was trained at 64x64"),
        (cameras(fov=90.0), "view angles of 90 to 90 degrees, but the model was trained with 40 to 60"),
        (cameras(fov=20.0), "view angles of 20 to 20 degrees"),
    ],
)
def test_each_way_out_is_one_line(inputs, words):
    (warning,) = RANGE.warnings_for(inputs)
    assert words in warning and warning.startswith("outside the trained range: ") and "\n" not in warning


@pytest.mark.parametrize("every", [1, -2, "8", 2.5])
def test_shares_that_leave_no_photo_are_refused(every):
    with pytest.raises(ValueError, match="holdout_every"):
        TrainedRange.from_dict({**RANGE.to_dict(), "holdout_every": every})


def test_round_trip_through_plain_json():
    assert TrainedRange.from_dict(json.loads(json.dumps(RANGE.to_dict()))) == RANGE


def test_unknown_keys_and_impossible_values_are_refused():
    with pytest.raises(ValueError, match="unknown setting 'speed'"):
        TrainedRange.from_dict({**RANGE.to_dict(), "speed": 3})
    for change in ({"views": [0, 3]}, {"image_size": [64]}, {"normalization": "median"}, {"fov_degrees": [-1, 50]}):
        with pytest.raises(ValueError):
            TrainedRange.from_dict({**RANGE.to_dict(), **change})


def test_view_angle():
    assert horizontal_fov(cameras(fov=90.0, size=(10, 40))) == pytest.approx((90, 90), abs=1e-3)
