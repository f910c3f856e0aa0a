"""`nvs prepare` as a person runs it on photos, and what it chooses to do with which input."""

from __future__ import annotations

import dataclasses
import inspect
import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from apps.cli import main
from apps.prepare import function_for, prepare
from apps.prepare_meshes import prepare_meshes
from apps.prepare_photos import prepare_photos
from data import PhotoSceneConfig, open_scene

ROOM = np.array([3.0, 3.0, 1.5])
"""Half the size of a room around the origin."""


@pytest.fixture(scope="module", autouse=True)
def pycolmap():
    pytest.importorskip("pycolmap", reason="needs package pycolmap")


class TestChoice:
    @pytest.fixture(autouse=True)
    def files(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        names = (
            "photos/a.jpg",
            "photos/model/cloud.ply",
            "chair/chair.obj",
            "chair/wood.png",
            "set/1/a.glb",
            "b/1/a.JPG",
        )
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()

    @pytest.mark.parametrize(
        "words", ["photos", "b -o set", "photos/a.jpg x.png", "walk.MOV --frames 9", "gone", "a.zip"]
    )
    def test_photos(self, words):
        assert function_for(words.split()) is prepare_photos

    @pytest.mark.parametrize("words", ["chair", "set", "chair.glb -o photos", "--layout orbit chair", "list.txt"])
    def test_meshes(self, words):
        assert function_for(words.split()) is prepare_meshes

    @pytest.mark.parametrize("words", ["", "--help", "-o photos"])
    def test_nothing_yet(self, words):
        assert function_for(words.split()) is prepare

    def test_help_tells_the_options_of_the_kind(self, capsys):
        told = {}
        for words in ([], ["photos"], ["chair"]):
            assert main(["prepare", *words, "--help"]) == 0
            told[" ".join(words)] = capsys.readouterr().out
        assert "--max-size" in told["photos"] and "--views" not in told["photos"]
        assert "--views" in told["chair"] and "--max-size" not in told["chair"]
        assert "nvs prepare photos/" in told[""]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["gone", "-o", "x"], "gone does not exist"),
        (["empty", "-o", "x"], "empty holds no photos"),
        (["note.mp4", "-o", "x"], "cannot be read as a video"),
        (["two", "-o", "x"], "2 readable photos"),
        (["broken", "-o", "x"], "c.jpg: unreadable"),
        (["two", "-o", "x", "--max-size", "5"], "--max-size is 5"),
        (["note.mp4", "-o", "x", "--frames", "1"], "--frames is 1"),
    ],
)
def test_bad_input_is_told_in_plain_words(tmp_path, capsys, monkeypatch, words, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "note.mp4").write_text("hello\n")
    for name in ("two/a.png", "two/b.png", "broken/a.png", "broken/b.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (64, 48)).save(tmp_path / name)
    (tmp_path / "broken" / "c.jpg").write_text("no picture")
    assert main(["prepare", *words]) == 1
    error = capsys.readouterr().err.strip()
    assert told in error
    lines = [line for line in error.splitlines() if not line.startswith("checking photos: ")]
    assert "Traceback" not in error and len(lines) <= 2
    assert not (tmp_path / "x").exists() and not (tmp_path / ".x.part").exists()


def test_wrong_usage_is_exit_code_two(tmp_path, capsys):
    assert main(["prepare", str(tmp_path), "-o", "x", "--matching", "all"]) == 2
    assert main(["prepare", str(tmp_path)]) == 2
    assert "-o FOLDER" in capsys.readouterr().err
    assert main(["prepare"]) == 2


def test_defaults_of_the_command_are_those_of_the_config():
    parameters = inspect.signature(prepare_photos).parameters
    for field in dataclasses.fields(PhotoSceneConfig):
        assert parameters[field.name].default == field.default, field.name


def test_pycolmap_is_not_imported_before_it_is_needed():
    code = "import sys, data, apps.prepare; sys.exit('pycolmap' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_photos_without_detail_are_told_what_to_photograph(tmp_path, capsys):
    (tmp_path / "grey").mkdir()
    for i in range(3):
        Image.new("RGB", (160, 120), (100, 100, 100 + i)).save(tmp_path / "grey" / f"{i}.png")
    assert main(["prepare", str(tmp_path / "grey"), "-o", str(tmp_path / "scene")]) == 1
    error = capsys.readouterr().err
    assert "no cameras were found" in error and "texture" in error
    assert [p.name for p in tmp_path.iterdir()] == ["grey"]


@pytest.mark.slow
def test_cameras_of_a_room_are_found(tmp_path, capsys, look_at):
    """Nine photos, 240x320 pixels, of a papered room through a lens that bends: 280 px focal length, k = -0.05."""
    rng = np.random.default_rng(0)
    walls = [make_wallpaper(rng) for _ in range(6)]
    true = [look_at((-1.5 + 0.3 * i, -1.5 + 0.1 * (i % 3), 0.2 * (i % 2)), (0.5 - 0.05 * i, 2.5, 0)) for i in range(9)]
    (tmp_path / "photos").mkdir()
    for i, c2w in enumerate(true):
        Image.fromarray(photograph(c2w, 280.0, -0.05, (240, 320), walls)).save(tmp_path / "photos" / f"{i}.png")
    assert main(["prepare", str(tmp_path / "photos"), "-o", str(tmp_path / "scene")]) == 0
    assert "9 of 9 photos registered (100 %)" in capsys.readouterr().out
    report = json.loads((tmp_path / "scene" / "report.json").read_text())
    assert report["reprojection_error"] < 0.5 and report["advice"] == ""

    scene = open_scene(tmp_path / "scene")
    assert len(scene) == 9 and not scene.warnings
    np.testing.assert_allclose([f.intrinsics[:2] for f in scene.frames], 280, rtol=0.01)
    scale, rotation, shift = align(scene.world_c2w[:, :3, 3], np.stack(true)[:, :3, 3])
    for frame, expected in zip(scene.frames, true, strict=True):
        moved = scale * rotation @ frame.c2w[:3, 3] + shift
        assert np.linalg.norm(moved - expected[:3, 3]) < 0.02  # of a path 2.4 long
        turn = (rotation @ frame.c2w[:3, :3]).T @ expected[:3, :3]
        assert np.degrees(np.arccos(np.clip((np.trace(turn) - 1) / 2, -1, 1))) < 0.5
        # The straightened picture is what a lens without bend sees from there.
        straight = photograph(expected, frame.intrinsics[0], 0.0, (240, 320), walls)
        shown = np.asarray(Image.open(frame.path))
        assert np.abs(shown.astype(float) - straight).mean() < 0.5 * np.abs(shown.astype(float) - shown.mean()).mean()


def make_wallpaper(rng: np.random.Generator, size: int = 256) -> np.ndarray:
    """Coloured squares of three sizes, laid over each other."""
    layers = [np.kron(rng.random((n, n, 3)), np.ones((size // n, size // n, 1))) for n in (8, 32, 128)]
    return np.mean(layers, axis=0)


def photograph(
    c2w: np.ndarray, focal: float, bend: float, size: tuple[int, int], walls: list[np.ndarray], samples: int = 2
) -> np.ndarray:
    """The room with `samples` x `samples` rays a pixel; a ray at radius r lands at r (1 + bend r^2)."""
    h, w = size
    y, x = (np.mgrid[0 : h * samples, 0 : w * samples] + 0.5) / samples
    bent = np.stack([(x - w / 2) / focal, (y - h / 2) / focal], -1)
    flat = bent.copy()
    for _ in range(20):
        flat = bent / (1 + bend * (flat**2).sum(-1, keepdims=True))
    rays = np.concatenate([flat, np.ones((*x.shape, 1))], -1) @ c2w[:3, :3].T
    distance = (np.sign(rays) * ROOM - c2w[:3, 3]) / rays
    axis, nearest = distance.argmin(-1), distance.min(-1)
    hit = c2w[:3, 3] + rays * nearest[..., None]
    pixels = np.zeros((*axis.shape, 3))
    for wall, paper in enumerate(walls):
        here = (axis == wall // 2) & (np.sign(rays[..., wall // 2]) == 2 * (wall % 2) - 1)
        along = np.delete(hit[here], wall // 2, axis=1)
        column, row = np.clip(((along + 3) / 6 * len(paper)).astype(int), 0, len(paper) - 1).T
        pixels[here] = paper[row, column]
    return (pixels.reshape(h, samples, w, samples, 3).mean((1, 3)) * 255).round().astype(np.uint8)


def align(points: np.ndarray, onto: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Scale, rotation and shift that take points nearest to others (Umeyama 1991)."""
    a, b = points - points.mean(0), onto - onto.mean(0)
    u, stretch, vt = np.linalg.svd(b.T @ a)
    flip = np.diag([1, 1, np.sign(np.linalg.det(u @ vt))])
    rotation = u @ flip @ vt
    scale = float(np.trace(np.diag(stretch) @ flip) / (a**2).sum())
    return scale, rotation, onto.mean(0) - scale * rotation @ points.mean(0)
