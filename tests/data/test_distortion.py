"""Lens distortion against pycolmap's lens models, and against photos drawn through a bent lens."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.distortion import PINHOLE, Distortion, distort, undistort, zoom_to_fill

# Our order is OpenCV's (k1 k2 p1 p2 k3 k4 k5 k6), which is also COLMAP's.
LENSES = {
    "OPENCV": Distortion("opencv", (0.08, -0.05, 0.002, -0.001)),
    "FULL_OPENCV": Distortion("opencv", (0.3, -0.1, 0.001, 0.002, 0.02, 0.05, -0.02, 0.01)),
    "OPENCV_FISHEYE": Distortion("fisheye", (0.05, -0.02, 0.01, -0.003)),
}


@pytest.mark.parametrize("model", LENSES)
def test_distort_agrees_with_pycolmap(model):
    pycolmap = pytest.importorskip("pycolmap", reason="needs package pycolmap")
    lens = LENSES[model]
    camera = pycolmap.Camera(model=model, width=10, height=10, params=[1.0, 1.0, 0.0, 0.0, *lens.parameters])
    points = np.random.default_rng(0).uniform(-0.6, 0.6, (50, 2))
    rays = np.concatenate([points, np.ones((50, 1))], axis=1)
    expected = np.stack([np.asarray(camera.img_from_cam(r.reshape(1, 3))).reshape(2) for r in rays])
    found = distort(torch.from_numpy(points), lens)
    torch.testing.assert_close(found, torch.from_numpy(expected), atol=1e-9, rtol=0)


@pytest.mark.parametrize("model", LENSES)
def test_undistorted_photo_shows_a_pattern_where_a_pinhole_would(model):
    lens, (h, w), intrinsics = LENSES[model], (96, 128), (110.0, 100.0, 66.0, 45.0)
    zoom = zoom_to_fill(lens, intrinsics, (h, w))
    truth = _pattern(_ideal(intrinsics, (h, w), zoom))
    # The distorted photo: every pixel shows the ray whose distorted position it is, found by fixed-point iteration.
    target = _ideal(intrinsics, (h, w), 1.0)
    ray = target.clone()
    for _ in range(200):
        ray = ray + target - distort(ray, lens)
    photo = _pattern(ray).reshape(1, h, w).float()
    straight = undistort(photo, lens, intrinsics, zoom)
    error = (straight - truth.reshape(1, h, w)).abs()
    assert error.mean() < 0.003
    ignored = (photo - _pattern(target).reshape(1, h, w)).abs()
    assert ignored.mean() > 10 * error.mean()


def test_pinhole_needs_no_zoom():
    assert zoom_to_fill(PINHOLE, (50.0, 50.0, 32.0, 24.0), (48, 64)) == 1
    assert Distortion("opencv", (0.0,) * 4).is_pinhole
    assert not Distortion("fisheye", (0.0,) * 4).is_pinhole


@given(st.floats(-0.15, 0.3), st.floats(-0.05, 0.05), st.floats(-0.01, 0.01), st.floats(0.4, 0.6))
@settings(max_examples=40, deadline=None)
def test_zoom_is_the_smallest_without_empty_pixels(k1, k2, p1, center):
    lens, intrinsics, (h, w) = Distortion("opencv", (k1, k2, p1, 0.0)), (60.0, 60.0, 64 * center, 24.0), (48, 64)
    zoom = zoom_to_fill(lens, intrinsics, (h, w))

    def seen(zoom):
        at = distort(_ideal(intrinsics, (h, w), zoom), lens)
        at = at * torch.tensor([60.0, 60.0]) + torch.tensor([64 * center, 24.0])
        return bool(((at >= 0) & (at <= torch.tensor([64.0, 48.0]))).all())

    assert seen(zoom)
    assert zoom == 1 or not seen(max(1.0, zoom - 1e-3))


def test_numbers_that_fold_the_photo_are_refused():
    with pytest.raises(ValueError, match="onto itself"):
        zoom_to_fill(Distortion("opencv", (-80.0, 0.0, 0.0, 0.0)), (50.0, 50.0, 32.0, 24.0), (48, 64))


def _ideal(intrinsics, size, zoom):
    fx, fy, cx, cy = intrinsics
    y, x = torch.meshgrid(*(torch.arange(n, dtype=torch.float64) + 0.5 for n in size), indexing="ij")
    return torch.stack([(x - cx) / (fx * zoom), (y - cy) / (fy * zoom)], -1).reshape(-1, 2)


def _pattern(points):
    """A smooth picture of the plane at depth 1."""
    return 0.5 + 0.25 * torch.sin(25 * points[:, 0]) + 0.25 * torch.cos(21 * points[:, 1])
