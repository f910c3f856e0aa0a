"""Uploads are hostile until they are checked."""

import json
import shutil
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import make_model, make_views
from viewer_samples import SESSION, finish, make_viewer, opened

from apps.viewer import opening
from apps.viewer.workspace import Limits
from data import UserError
from nvs.scene_state import SceneState

pytest.importorskip("gradio", reason="needs package gradio")


@pytest.fixture
def viewer(capture):
    found = make_viewer([capture], Limits(files=40, photo_pixels=10_000, unpacked_bytes=10**6, upload_bytes=10**6))
    yield found
    found.close()


def pack(folder: Path, archive: Path, **renamed: str) -> str:
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(folder.rglob("*.*")):
            name = path.relative_to(folder).as_posix()
            file.write(path, renamed.get(path.name, name))
    return str(archive)


def refuse(viewer, files: list[str], words: str) -> str:
    session = viewer.find(SESSION)
    with pytest.raises(UserError, match=words) as caught:
        finish(session.open_files(files))
    assert session.scene is None
    assert str(viewer.workspace.root) not in str(caught.value)
    assert not [path for path in viewer.workspace.root.rglob("work*/*") if path.is_file()]
    return str(caught.value)


def test_an_archive_opens_and_its_files_go_with_it(viewer, capture, tmp_path):
    session = viewer.find(SESSION)
    finish(session.open_files([pack(capture, tmp_path / "balls.zip")]))
    scene = session.describe()
    assert scene["name"] == "balls"
    assert len(scene["photos"]) == 8
    assert scene["source"].startswith("upload:")
    assert session.choices() == [*viewer.choices(), ("balls (uploaded)", scene["source"])]
    assert viewer.find("session-two").choices() == viewer.choices()
    folder = session.scene.folder.path
    assert folder.is_relative_to(viewer.workspace.root)
    finish(viewer.find("session-two").open(scene["source"]))  # as a page does that is loaded again
    session.close()
    assert folder.exists()
    viewer.find("session-two").close()
    del session
    assert not folder.exists()
    with pytest.raises(UserError, match="upload it again"):
        finish(viewer.find("session-three").open(scene["source"]))


def test_an_archive_of_several_captures_is_told(viewer, write_capture, tmp_path):
    for name in ("left", "right"):
        write_capture(f"set/{name}", frames=3)
    told = refuse(viewer, [pack(tmp_path / "set", tmp_path / "set.zip")], "holds 2")
    assert told == "set.zip is not a capture itself, but holds 2 (left, right). Give one of them, such as left."


def test_the_same_upload_is_in_memory_once(viewer, capture, tmp_path):
    archive = pack(capture, tmp_path / "balls.zip")
    for name in ("session-one", "session-two"):
        finish(viewer.find(name).open_files([archive]))
    assert len(viewer.store) == 1


def test_names_that_lead_out_stay_in(viewer, capture, tmp_path):
    archive = tmp_path / "slip.zip"
    pack(capture, archive)
    with zipfile.ZipFile(archive, "a") as file:
        file.writestr("../../slipped.txt", "x")
        file.writestr("/tmp/slipped-absolute.txt", "x")
    finish(viewer.find(SESSION).open_files([str(archive)]))
    assert not list(tmp_path.parent.rglob("slipped.txt"))
    assert not [path for path in viewer.workspace.root.glob("*.txt")]
    assert not Path("/tmp/slipped-absolute.txt").exists()


def test_photos_outside_of_the_archive_are_not_shown(viewer, capture, tmp_path):
    secret = tmp_path / "secret.png"
    Image.new("RGB", (64, 48), "red").save(secret)
    for number, place in enumerate([str(secret), f"../../../../../../../../{secret.relative_to('/')}"]):
        folder = tmp_path / f"hostile{number}"
        shutil.copytree(capture, folder)
        content = json.loads((folder / "transforms.json").read_text())
        content["frames"][0]["file_path"] = place
        (folder / "transforms.json").write_text(json.dumps(content))
        session = viewer.find(f"session-{number}")
        finish(session.open_files([pack(folder, tmp_path / f"hostile{number}.zip")]))
        assert len(session.scene.capture) == 7
        assert "secret" not in json.dumps([p["name"] for p in session.describe()["photos"]])


def test_links_do_not_lead_out(viewer, capture, tmp_path):
    archive = tmp_path / "link.zip"
    pack(capture, archive)
    with zipfile.ZipFile(archive, "a") as file:
        entry = zipfile.ZipInfo("images/link.png")
        entry.external_attr = 0o120777 << 16
        file.writestr(entry, "/etc/passwd")
    finish(viewer.find(SESSION).open_files([str(archive)]))
    assert not [path for path in viewer.workspace.root.rglob("*") if path.is_symlink()]


def test_what_is_too_much_is_refused(viewer, capture, tmp_path):
    bomb = tmp_path / "bomb.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("zeros.png", bytes(2 * 10**6))
    refuse(viewer, [str(bomb)], "too much")
    many = tmp_path / "many.zip"
    with zipfile.ZipFile(many, "w") as file:
        for i in range(41):
            file.writestr(f"{i}.txt", "x")
    refuse(viewer, [str(many)], "41 files")
    large = tmp_path / "large.zip"
    large.write_bytes(np.random.default_rng(0).bytes(10**6 + 1))
    refuse(viewer, [str(large)], "at most 1 MiB")
    huge = tmp_path / "huge"
    shutil.copytree(capture, huge)
    Image.new("L", (101, 100)).save(huge / "images/000.png")
    refuse(viewer, [pack(huge, tmp_path / "huge.zip")], "million pixels")
    refuse(viewer, [pack(huge / "images", tmp_path / "loose.zip")], "million pixels")
    refuse(viewer, [str(capture / "images/000.png")] * 41, "at most 40")


def test_damaged_archives_are_told(viewer, capture, tmp_path):
    whole = Path(pack(capture, tmp_path / "whole.zip")).read_bytes()
    for number, content in enumerate([b"", b"PK\3\4nonsense", whole[: len(whole) // 2], b"x" * 1000]):
        file = tmp_path / f"damaged{number}.zip"
        file.write_bytes(content)
        assert file.name in refuse(viewer, [str(file)], "cannot be unpacked")
    empty = tmp_path / "empty.zip"
    with zipfile.ZipFile(empty, "w"):
        pass
    refuse(viewer, [str(empty)], "")


def test_python_objects_are_not_taken(viewer, capture, tmp_path):
    for suffix in (".torch", ".pt", ".pkl", ".PTH", ".tar"):
        folder = tmp_path / f"objects{suffix}"
        shutil.copytree(capture, folder)
        (folder / f"clip{suffix}").write_bytes(b"\x80\x04K\x01.")
        refuse(viewer, [pack(folder, tmp_path / f"objects{suffix}.zip")], "not taken from a browser")


def test_other_kinds_of_files_are_refused(viewer, capture, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<script>")
    for files in ([], [str(page)], [str(page), str(capture / "images/000.png")]):
        refuse(viewer, files, "photos")


def test_states_of_other_models_and_damaged_ones_are_told(viewer, tmp_path):
    other = make_model(seed=5)
    with torch.inference_mode():
        other.encode(make_views(2)).save(tmp_path / "other.safetensors")
    refuse(viewer, [str(tmp_path / "other.safetensors")], "another model")
    (tmp_path / "broken.safetensors").write_bytes(b"\xff" * 100)
    refuse(viewer, [str(tmp_path / "broken.safetensors")], "not a readable scene state")
    with torch.inference_mode():
        state = viewer.model.encode(make_views(2))
    for size in ((10**6, 10**6), (17, 24), (0, 0)):
        huge = SceneState(
            state.layers,
            state.world_to_scene,
            type(state.cameras)(state.cameras.c2w, state.cameras.intrinsics, size),
            state.thumbnails,
            state.fingerprint,
            2,
        )
        huge.save(tmp_path / "huge.safetensors")
        refuse(viewer, [str(tmp_path / "huge.safetensors")], "")


def test_photos_go_through_structure_from_motion(viewer, capture, monkeypatch, tmp_path):
    """With a stand-in for the reconstruction itself, which has tests of its own."""
    asked = []

    def stand_in(photos, place, config, on_step):
        asked.append(sorted(path.name for path in photos[0].iterdir()))
        on_step("comparing photos", 1, 2)
        shutil.copytree(capture, place)
        lines = lambda: ["8 of 9 photos registered"]  # noqa: E731
        return SimpleNamespace(not_registered=["8"], unreadable=(), advice="", lines=lines)

    monkeypatch.setattr(opening, "write_photo_scene", stand_in)
    files = [str(path) for path in sorted((capture / "images").iterdir())]
    archive = pack(capture / "images", tmp_path / "loose.zip")
    for number, upload in enumerate((files, [archive])):
        session = viewer.find(f"session-{number}")
        steps = finish(session.open_files(upload))
        assert ("comparing photos", 1, 2) in [(s.text, s.done, s.total) for s in steps]
        assert asked == [[Path(file).name for file in files]] * (number + 1)
        assert len(session.describe()["photos"]) == 8
        assert session.describe()["warnings"] == ["8 of 9 photos registered"]
    assert session.describe()["name"] == "loose"
    with pytest.raises(UserError, match="no file that tells their cameras"):
        finish(session.add_files([archive]))
    assert len(asked) == 2
    with pytest.raises(UserError, match="with cameras"):
        finish(session.add_files(files))

    stopped = session.open_files(files)
    while next(stopped).text != "comparing photos":
        pass
    stopped.close()


def test_too_many_photos_are_refused_before_their_cameras_are_searched(capture, tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "write_photo_scene", lambda *_, **__: pytest.fail("was searched"))
    viewer = make_viewer([capture], Limits(photos=7))
    files = [str(path) for path in sorted((capture / "images").iterdir())]
    for upload in (files, [pack(capture / "images", tmp_path / "loose.zip")]):
        refuse(viewer, upload, "8 photos; the viewer takes at most 7")
    viewer.close()


def test_the_room_for_uploads_is_bounded(capture, tmp_path):
    viewer = make_viewer([capture], Limits(disk_bytes=1000))
    archive = pack(capture, tmp_path / "balls.zip")
    one = viewer.find(SESSION)
    finish(one.open_files([archive]))
    with pytest.raises(UserError, match="is full"):
        finish(viewer.find("session-two").open_files([archive]))
    one.close()
    del one
    viewer._sessions.clear()
    finish(viewer.find("session-two").open_files([archive]))

    for i in range(3):
        (viewer.workspace.uploads / f"{i}.bin").write_bytes(bytes(400))
    viewer.workspace.trim()
    assert sum(path.stat().st_size for path in viewer.workspace.uploads.iterdir()) <= 1000
    viewer.close()


def test_opening_a_path_that_was_not_named_is_refused(viewer, capture):
    for source in (str(capture), "/etc/passwd", "given:7", "bundled:../secret", ""):
        with pytest.raises(UserError, match=r"There is no scene '.*' here\. There are given:0, bundled:gso_toy"):
            finish(viewer.find(SESSION).open(source))
    assert opened(viewer).scene.name == "balls"
