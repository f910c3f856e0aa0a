"""`nvs prepare` as a person runs it on meshes."""

from __future__ import annotations

import dataclasses
import inspect
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from apps.cli import main
from apps.prepare_meshes import prepare_meshes
from data import MeshSceneConfig, open_scene
from data.meshes import rendering

pytest.importorskip("open3d", reason="needs package open3d")

PYRAMID = "v -1 -1 0\nv 1 -1 0\nv 1 1 0\nv -1 1 0\nv 0 0 1.5\nf 4 3 2 1\nf 1 2 5\nf 2 3 5\nf 3 4 5\nf 4 1 5\n"
SMALL = ["--views", "2", "--size", "16", "24"]


@pytest.fixture
def mesh(tmp_path) -> Path:
    path = tmp_path / "pyramid.obj"
    path.write_text(PYRAMID)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a folder by their relative path."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def run(*words: object) -> int:
    return main(["prepare", *map(str, words), *SMALL])


def test_one_mesh_becomes_a_scene(mesh, tmp_path, capsys):
    assert run(mesh, "-o", tmp_path / "deep" / "scene") == 0
    assert "2 views" in capsys.readouterr().out
    assert list(contents(tmp_path / "deep" / "scene")) == ["images/0000.png", "images/0001.png", "transforms.json"]
    scene = open_scene(tmp_path / "deep" / "scene")
    views = scene.load([0, 1], image_size=(16, 24))
    assert views.alpha is not None
    assert 0.05 < float(views.alpha.mean()) < 0.9
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["scene"]


def test_same_seed_same_bytes_and_other_seed_other_cameras(mesh, tmp_path):
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        assert run(mesh, "-o", tmp_path / name, "--seed", seed) == 0
    a, b, c = (contents(tmp_path / name) for name in "abc")
    assert a == b
    assert a["images/0000.png"] != c["images/0000.png"]
    assert a["transforms.json"] != c["transforms.json"]


@pytest.mark.parametrize("layout", ["random-sphere", "orbit", "fibonacci"])
def test_options_reach_the_cameras(mesh, tmp_path, layout):
    options = ["--fov-range", "60", "60", "--radius-range", "3", "3", "--elevation-range", "30", "30"]
    assert run(mesh, "-o", tmp_path / "s", "--layout", layout, *options, "--aim-jitter", "0") == 0
    written = json.loads((tmp_path / "s" / "transforms.json").read_text())
    assert np.degrees(2 * np.arctan(12 / written["fl_x"])) == pytest.approx(60)
    for frame in written["frames"]:
        position = np.array(frame["transform_matrix"])[:3, 3]
        assert np.linalg.norm(position) == pytest.approx(3)
        assert position[2] == pytest.approx(1.5)


def test_a_finished_scene_is_kept_and_another_is_not_replaced(mesh, tmp_path, capsys):
    scene = tmp_path / "scene"
    assert run(mesh, "-o", scene) == 0
    before, stamp = contents(scene), (scene / "transforms.json").stat().st_mtime_ns
    capsys.readouterr()
    assert run(mesh, "-o", scene) == 0
    assert "already there" in capsys.readouterr().out
    assert (scene / "transforms.json").stat().st_mtime_ns == stamp
    assert run(mesh, "-o", scene, "--seed", 1) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert contents(scene) == before
    assert run(mesh, "-o", scene, "--seed", 1, "--overwrite") == 0
    assert contents(scene) != before
    mesh.write_text(PYRAMID.replace("1.5", "2.5"))
    assert run(mesh, "-o", scene, "--seed", 1) == 1, "a changed mesh is another scene"


@pytest.mark.parametrize("foreign", ["letter.txt", "transforms.json"])
def test_files_of_others_are_never_removed(mesh, tmp_path, capsys, foreign):
    scene = tmp_path / "scene"
    scene.mkdir()
    (scene / foreign).write_text("{}")
    assert run(mesh, "-o", scene, "--overwrite") == 1
    assert "kept" in capsys.readouterr().err
    assert contents(scene) == {foreign: b"{}"}


def test_an_added_file_saves_a_scene_from_being_replaced(mesh, tmp_path):
    scene = tmp_path / "scene"
    assert run(mesh, "-o", scene) == 0
    (scene / "notes.txt").write_text("mine")
    assert run(mesh, "-o", scene, "--seed", 1, "--overwrite") == 1
    assert (scene / "notes.txt").read_text() == "mine"


def test_an_interrupted_run_leaves_no_scene_and_goes_on(mesh, tmp_path, monkeypatch):
    render, calls = rendering.MeshRenderer.render, []

    def interrupted(self, *args):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return render(self, *args)

    monkeypatch.setattr(rendering.MeshRenderer, "render", interrupted)
    assert run(mesh, "-o", tmp_path / "out" / "scene") == 130
    assert list((tmp_path / "out").iterdir()) == []
    leftover = tmp_path / "out" / ".scene.part" / "images"
    leftover.mkdir(parents=True)
    (leftover / "0009.png").write_text("half a picture of a run that was killed")
    assert run(mesh, "-o", tmp_path / "out" / "scene") == 0
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["scene"]
    assert len(contents(tmp_path / "out" / "scene")) == 3


@pytest.mark.slow
def test_many_meshes_at_once(tmp_path, capsys):
    meshes = tmp_path / "meshes"
    (meshes / "inner").mkdir(parents=True)
    for index in range(3):
        (meshes / f"m{index}.obj").write_text(PYRAMID.replace("1.5", f"{index + 1}"))
    (meshes / "inner" / "m0.obj").write_text(PYRAMID)
    (meshes / "broken.glb").write_bytes(b"glTF")
    out = tmp_path / "out"
    assert run(meshes, "-o", out, "--processes", 2) == 1
    told = capsys.readouterr()
    assert "4 scenes of 2 views made" in told.out
    assert "1 of 5 meshes" in told.err
    assert "broken.glb" in told.err
    assert "Traceback" not in told.err
    assert sorted(p.name for p in out.iterdir()) == ["inner-m0", "m0", "m1", "m2"]
    assert run(meshes / "m1.obj", "-o", tmp_path / "alone") == 0
    assert contents(tmp_path / "alone") == contents(out / "m1"), "a mesh does not depend on its company"
    (meshes / "broken.glb").unlink()
    capsys.readouterr()
    assert run(meshes, "-o", out, "--processes", 2) == 0
    assert "0 scenes of 2 views made, 4 were already there" in capsys.readouterr().out


def test_alpha_and_background_are_clean(mesh, tmp_path):
    assert run(mesh, "-o", tmp_path / "s", "--rays-per-side", 4) == 0
    for path in (tmp_path / "s" / "images").iterdir():
        picture = Image.open(path)
        assert picture.mode == "RGBA"
        pixels = np.asarray(picture)
        assert pixels.shape == (16, 24, 4)
        assert (pixels[pixels[..., 3] == 0] == 0).all()
        np.testing.assert_allclose(np.round(pixels[..., 3] / 255 * 16) / 16, pixels[..., 3] / 255, atol=0.5 / 255)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["gone.obj", "-o", "x"], "no mesh file"),
        (["pyramid.obj"], "-o"),
        (["empty", "-o", "x"], "holds no photos"),
        (["broken.glb", "-o", "x"], "cannot be read as a mesh"),
        (["points.obj", "-o", "x"], "no triangles"),
        (["pyramid.obj", "-o", "pyramid.obj"], "is a file"),
        (["pyramid.obj", "-o", "pyramid.obj/x"], "not a directory"),
        (["pyramid.obj", "-o", "x", "--fov-range", "90", "20"], "--fov-range"),
        (["pyramid.obj", "-o", "x", "--seed", "-1"], "seed"),
        (["pyramid.obj", "-o", "x", "--processes", "-1"], "--processes"),
        (["list.txt", "-o", "x"], "no mesh file"),
        (["noise.txt", "-o", "x"], "not a text file"),
        (["blank.txt", "-o", "x"], "names no meshes"),
    ],
)
def test_bad_input_is_told_in_one_sentence(mesh, tmp_path, capsys, monkeypatch, words, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.glb").write_bytes(b"glTF")
    (tmp_path / "points.obj").write_text("v 0 0 0\n")
    (tmp_path / "list.txt").write_text("gone.obj\n")
    (tmp_path / "blank.txt").write_text("# nothing yet\n")
    (tmp_path / "noise.txt").write_bytes(b"\xff\xfe\xff")
    assert main(["prepare", *words]) == (2 if told == "-o" else 1)
    error = capsys.readouterr().err.strip()
    assert told in error
    assert "Traceback" not in error
    assert not (tmp_path / "x").exists()


def test_wrong_usage_is_exit_code_two(mesh, tmp_path):
    assert run(mesh, "-o", tmp_path / "x", "--layout", "spiral") == 2
    assert run(mesh, "-o", tmp_path / "x", "--views", "many") == 2


def test_defaults_of_the_command_are_those_of_the_config():
    parameters = inspect.signature(prepare_meshes).parameters
    for field in dataclasses.fields(MeshSceneConfig):
        assert parameters[field.name].default == field.default, field.name


def test_open3d_is_not_imported_before_it_is_needed():
    code = "import sys, data, apps.prepare; sys.exit('open3d' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
