"""Sizes, cameras and frames of the viewer."""

import io
import math
import struct

import numpy as np
import pytest
import torch
from PIL import Image

import nvs
from apps.viewer.frames import Shot, encode_frame, read_json, read_shot
from apps.viewer.sizes import Speed, allowed_sizes, full_sizes
from data import UserError


@pytest.mark.parametrize(
    ("size", "patch"), [((64, 64), 8), ((256, 384), 16), ((536, 960), 8), ((24, 32), 8), ((7, 14), 7)]
)
def test_sizes_are_whole_patches_of_one_shape(size, patch):
    sizes = allowed_sizes(size, patch)
    assert size in sizes
    assert size in full_sizes(size, patch)
    assert set(full_sizes(size, patch)) <= set(sizes)
    for h, w in sizes:
        assert h % patch == w % patch == 0
        assert w / h == pytest.approx(size[1] / size[0], rel=0.031)


def test_previews_keep_the_pace():
    speed, sizes = Speed(), allowed_sizes((256, 256), 8)
    assert speed.preview((256, 256), sizes, 1) == (256, 256)
    for _ in range(30):
        speed.add((256, 256), 0.2)
    h, w = speed.preview((256, 256), sizes, 1)
    assert h * w <= 256 * 256 / 0.2 / 15 < (h + 8) * (w + 8)
    assert speed.preview((256, 256), sizes, 4) < (h, w)
    assert speed.preview((256, 256), sizes, 100) == (88, 88)  # no smaller than a third
    for _ in range(60):
        speed.add((88, 88), 0.001)
    assert speed.preview((256, 256), sizes, 4) == (256, 256)
    assert speed.preview((64, 64), sizes, 1) == (64, 64)


def test_a_camera_keeps_its_view_at_every_size():
    camera = nvs.trajectory.orbit(None, 1, radius=2.7, elevation=20.0, fov=50.0, image_size=(48, 64))
    c2w = camera.c2w[0].double().flatten().tolist()
    by_angle = read_shot({"c2w": c2w, "fov": 50}, [])
    fx, fy, cx, cy = camera.intrinsics[0].tolist()
    by_lens = read_shot({"c2w": c2w, "lens": [fx / 64, fy / 48, cx / 64, cy / 48]}, [])
    assert by_lens.fov == pytest.approx(50, abs=1e-4)
    for size in ((48, 64), (24, 32), (96, 128)):
        expected = camera.resize(size)
        for shot in (by_angle, by_lens):
            assert torch.allclose(shot.cameras(size).intrinsics.float(), expected.intrinsics, atol=1e-3)
            assert torch.allclose(shot.cameras(size).c2w.float(), expected.c2w, atol=1e-6)
    assert math.isclose(2 * math.degrees(math.atan(32 / fx)), 50, abs_tol=1e-4)


@pytest.mark.parametrize(
    "change",
    [
        {"c2w": None},
        {"c2w": [0.0] * 16},
        {"c2w": [1, 0, 0]},
        {"c2w": "identity"},
        {"c2w": [1e9 if i == 3 else float(i % 5 == 0) for i in range(16)]},
        {"c2w": [-1.0 if i == 0 else float(i % 5 == 0) for i in range(16)]},
        {"c2w": [math.inf, *[0.0] * 15]},
        {"c2w": [True] * 16},
        {"fov": 0},
        {"fov": 180},
        {"fov": "50"},
        {"fov": None},
        {"lens": [1, 1, 0.5]},
        {"lens": [0, 1, 0.5, 0.5]},
        {"lens": [1, 1, math.nan, 0.5]},
        {"seq": -1},
        {"seq": 2**32},
        {"seq": 1.5},
        {"size": [64, 65]},
        {"size": "64"},
        {"size": [[64], 64]},
        {"photo": -1},
        {"photo": []},
    ],
)
def test_cameras_that_cannot_be_are_refused(change):
    good = {"c2w": [float(i % 5 == 0) for i in range(16)], "fov": 50, "seq": 1, "size": [64, 64], "photo": 0}
    assert read_shot(good, [(64, 64)]).size == (64, 64)
    with pytest.raises(UserError):
        read_shot({**good, **change}, [(64, 64)])


@pytest.mark.parametrize("text", ["", "[1]", "{", b"\xff", "[" * 100_000, "null"])
def test_messages_that_are_no_objects_are_refused(text):
    with pytest.raises(UserError):
        read_json(text)


def test_frames_are_packed_as_documented():
    y, x = np.mgrid[0:160, 0:240] / 240
    pixels = (np.stack([x, y, (np.sin(20 * x * y) + 1) / 2], -1) * 255).astype(np.uint8)
    shot = Shot(torch.eye(4), None, 50.0, seq=70_000)
    for change, flags, kind, least in (
        ({"moving": True}, 0, "JPEG", 30),
        ({}, 1, "JPEG", 40),
        ({"lossless": True}, 3, "PNG", 90),
    ):
        packed = encode_frame(shot._replace(**change), pixels, 0.0125, None).packed()
        assert struct.unpack("<BBHIHH", packed[:12]) == (1, flags, 0, 70_000, 240, 160)
        assert struct.unpack("<f", packed[12:16])[0] == pytest.approx(12.5)
        picture = Image.open(io.BytesIO(packed[16:]))
        assert picture.format == kind
        error = np.square(np.asarray(picture, float) - pixels).mean()
        assert 10 * np.log10(255**2 / max(error, 1e-6)) > least
    small = encode_frame(shot, pixels[:64, :64], 0.01, {"psnr": None})
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(small.data))), pixels[:64, :64])
