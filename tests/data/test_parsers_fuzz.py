"""Whatever stands in a capture file, the answer is a scene with sound cameras or a UserError."""

import copy
import json
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data import UserError, open_scene

NASTY = [
    None, True, 0, -1, 1e-320, 1e308, 10**40, float("nan"), float("inf"), "", "x", "\0", "\ud800", "..", 3.7, "1.5",
    "images/000.png", [], {}, [[]], [None], [[1, 2], [3, 4]], np.eye(4).tolist(), [["a"] * 4] * 4, {"w": 1},
    "OPENCV_FISHEYE",
]  # fmt: skip
KEYS = ["w", "h", "fl_x", "fl_y", "cx", "cy", "k1", "k4", "p1", "camera_model", "camera_angle_x", "frames"]
KEYS += ["file_path", "transform_matrix", "train_filenames", "is_fisheye", "w2c", "fx", "fxfycxcy", "image_path"]


def mutate(value, rng):
    """Replace, drop, double or wrap some part of a JSON value."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        action = rng.random()
        if action < 0.15:
            value.pop(key)
        elif action < 0.3:
            value[rng.choice(KEYS)] = copy.deepcopy(rng.choice(NASTY))
        else:
            value[key] = mutate(value[key], rng)
        return value
    if isinstance(value, list) and value and rng.random() < 0.85:
        i = rng.randrange(len(value))
        action = rng.random()
        if action < 0.1:
            del value[i]
        elif action < 0.2:
            value.append(copy.deepcopy(value[i]))
        else:
            value[i] = mutate(value[i], rng)
        return value
    if isinstance(value, float) and rng.random() < 0.5:
        return value * rng.choice([-1, 0, 1e-9, 1e9, 1e200, float("nan")])
    return copy.deepcopy(rng.choice(NASTY))


def check(folder):
    try:
        scene = open_scene(folder)
    except UserError as error:
        assert "\n" not in str(error).replace(str(folder), "")
        return
    views = scene.load([0], (8, 8))
    assert np.isfinite(scene.world_to_scene).all()
    assert views.c2w.isfinite().all() and views.intrinsics.isfinite().all()
    rotation = scene.world_c2w[:, :3, :3]
    np.testing.assert_allclose(rotation @ rotation.transpose(0, 2, 1), [np.eye(3)] * len(scene), atol=1e-6)
    assert all("\n" not in line for line in (*scene.warnings, *scene.notes))


def rewrite(name, content, make):
    if make is None:
        return content
    frames = []
    for frame in content["frames"]:
        w2c = np.linalg.inv(np.array(frame["transform_matrix"]) * [1, -1, -1, 1]).tolist()
        path = frame["file_path"]
        frames.append(make(path, w2c))
    return frames if name == "opencv_cameras.json" else {"frames": frames}


FORMATS = {
    "transforms.json": None,
    "transforms_train.json": None,
    "opencv_cameras.json": lambda path, w2c: {
        "w": 64, "h": 48, "fx": 70.0, "fy": 70.0, "cx": 32.0, "cy": 24.0, "w2c": w2c, "file_path": path
    },
    "metadata/a.json": lambda path, w2c: {"image_path": path, "fxfycxcy": [70.0, 70.0, 32.0, 24.0], "w2c": w2c},
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_mutated_files_never_end_in_a_traceback(capture_by_format, name, seed):
    folder, content = capture_by_format(name)
    rng = random.Random(seed)
    content = copy.deepcopy(content)
    for _ in range(rng.randint(1, 4)):
        content = mutate(content, rng)
    (folder / name).write_text(json.dumps(content))
    check(folder)


@pytest.mark.parametrize("name", FORMATS)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_mutated_bytes_never_end_in_a_traceback(capture_by_format, name, seed):
    folder, content = capture_by_format(name)
    rng = random.Random(seed)
    text = bytearray(json.dumps(content).encode())
    for _ in range(rng.randint(1, 5)):
        at = rng.randrange(len(text))
        text[at : at + rng.randint(0, 3)] = rng.choice(
            [b"", b"\xff", b"}", b"]", b'"', b"NaN", b"1e999", b"\0", b"9" * 30]
        )
    (folder / name).write_bytes(bytes(text))
    check(folder)


@pytest.fixture
def capture_by_format(write_capture):
    """A small capture written in a format, and the content of its camera file."""
    made = {}

    def make(name):
        if name not in made:
            folder = write_capture(name.replace("/", "-"), frames=3)
            content = json.loads((folder / "transforms.json").read_text())
            (folder / "transforms.json").unlink()
            (folder / name).parent.mkdir(exist_ok=True)
            made[name] = folder, rewrite(name, content, FORMATS[name])
        return made[name]

    return make
