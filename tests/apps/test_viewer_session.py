"""What one tab can do with a scene, and that tabs keep apart; with a tiny model and no page."""

import json
import math
import threading
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from viewer_samples import SESSION, finish, home, make_viewer, opened

import nvs
from apps.render import render as render_command
from apps.viewer.frames import read_shot
from apps.viewer.progress import step_by_step
from apps.viewer.workspace import Limits
from data import UserError, open_scene
from nvs.metrics import psnr

pytest.importorskip("gradio", reason="needs package gradio")


@pytest.fixture
def viewer(capture):
    found = make_viewer([capture])
    yield found
    found.close()


def as_tensor(picture: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1).float() / 255


def test_opening_tells_steps_and_shows_the_scene(viewer):
    session = viewer.find(SESSION)
    messages = []
    session.listen(messages.append)
    steps = finish(session.open("given:0", 3))
    assert steps[0].text == "opening the capture"
    assert ("reading photos", 1, 3) in [(s.text, s.done, s.total) for s in steps]
    assert messages[-1]["t"] == "scene"
    assert messages[-1]["why"] == "opened"
    scene = messages[-1]["scene"]
    json.dumps(scene, allow_nan=False)
    assert sum(photo["role"] == "input" for photo in scene["photos"]) == 3
    assert len(scene["photos"]) == 8
    assert scene["size"] == [24, 32]
    assert all(h % 8 == w % 8 == 0 and abs(w / h * 24 / 32 - 1) < 0.04 for h, w in scene["sizes"])
    assert not scene["hints"]


def test_a_picture_is_what_the_model_renders(viewer, capture):
    session = opened(viewer)
    scene = session.describe()
    photo = scene["photos"][5]
    picture = session.render(photo)
    inputs = [p["i"] for p in scene["photos"] if p["role"] == "input"]
    found = open_scene(capture).normalize(inputs)
    state = viewer.model.encode(found.load(inputs, image_size=(24, 32)))
    (expected,) = nvs.Renderer(viewer.model, state).frames(found.cameras([5], image_size=(24, 32)))
    assert (as_tensor(picture) - expected).abs().max() < 1.5 / 255
    assert session.render(photo, (48, 64)).size == (64, 48)
    with pytest.raises(UserError, match="size"):
        session.render(photo, (47, 64))


def test_the_remarks_hold_the_likeness_to_the_photo(viewer, capture):
    scene = opened(viewer).scene
    photo = scene.capture
    described = viewer.find(SESSION).describe()["photos"][2]
    shot = read_shot({**described, "photo": 2}, scene.full_sizes)
    pixels = viewer.engine.run(lambda: scene.picture(shot, (24, 32)))
    remarks = scene.remarks(shot, pixels)
    expected = psnr(torch.from_numpy(pixels).permute(2, 0, 1) / 255, photo.load([2], image_size=(24, 32)).images[0])
    assert remarks["psnr"] == pytest.approx(float(expected), abs=0.1)
    assert scene.remarks(shot._replace(photo=99), pixels)["psnr"] is None


def test_cameras_far_from_the_photos_are_told_of(viewer):
    session = opened(viewer)
    scene, camera = session.scene, home(session)
    near = read_shot(camera, scene.full_sizes)
    assert scene.surroundings.notes(near, (24, 32)) == []
    c2w = near.c2w.clone()
    c2w[:3, 3] *= 2
    assert "farther away" in scene.surroundings.notes(near._replace(c2w=c2w), (24, 32))[0]
    c2w[:3, 3] /= 5
    assert "closer" in scene.surroundings.notes(near._replace(c2w=c2w), (24, 32))[0]
    away = near.c2w.clone()
    away[:3, :3] = away[:3, :3] @ torch.diag(torch.tensor([-1.0, 1.0, -1.0], dtype=torch.float64))
    assert any("looks away" in note for note in scene.surroundings.notes(near._replace(c2w=away), (24, 32)))
    wide = read_shot({"c2w": camera["c2w"], "fov": 100}, scene.full_sizes)
    notes = scene.surroundings.notes(wide, (48, 64))
    assert any("field of view is 100" in note for note in notes)
    assert any("48x64" in note for note in notes)


def test_scenes_outside_the_trained_range_have_hints(viewer):
    session = viewer.find(SESSION)
    finish(session.open("given:0", 7))
    assert any("7 input views" in hint for hint in session.describe()["hints"])


def test_choosing_and_adding_photos_changes_the_scene(viewer):
    session = opened(viewer)
    first = session.scene
    before = session.render(home(session))
    finish(session.choose_inputs([0, 3, 4]))
    chosen = session.scene
    assert chosen.inputs == (0, 3, 4)
    assert chosen.capture_key == first.capture_key
    assert chosen.key != first.key
    finish(session.add_photos([6]))
    assert session.scene.inputs == (0, 3, 4, 6)
    with torch.inference_mode():
        expected = viewer.model.extend(chosen.state, chosen.capture.load([6], image_size=(24, 32)))
    assert torch.allclose(session.scene.state.layers[0][0], expected.layers[0][0], atol=1e-5)
    assert np.abs(np.asarray(before, float) - np.asarray(session.render(home(session)), float)).max() > 1
    assert len(viewer.store) == 1  # those before are gone
    for wrong in ([99], [-1], ["0"], [True], [], None):
        with pytest.raises(UserError):
            finish(session.choose_inputs(wrong))
    with pytest.raises(UserError, match="already"):
        finish(session.add_photos([0]))
    assert session.scene.inputs == (0, 3, 4, 6)


def test_a_saved_state_opens_again_and_looks_the_same(viewer, tmp_path):
    session = opened(viewer)
    picture = session.render(home(session))
    place = tmp_path / "mine.safetensors"
    place.write_bytes(Path(session.state_file()).read_bytes())
    other = viewer.find("session-two")
    finish(other.open_files([str(place)]))
    scene = other.describe()
    assert scene["format"] == "scene state"
    assert not scene["editable"]
    assert not any(photo["pixels"] for photo in scene["photos"])
    assert other.render(home(session)) == picture
    assert [name for _, name in other.thumbnails()] == ["photo 0", "photo 1", "photo 2", "photo 3"]
    with pytest.raises(UserError, match="holds no photos"):
        finish(other.choose_inputs([]))


def test_photos_in_the_same_world_can_be_added_by_upload(viewer, write_capture, tmp_path):
    session = opened(viewer)
    archive = tmp_path / "more.zip"
    with zipfile.ZipFile(archive, "w") as file:
        folder = write_capture("more", frames=3)
        for path in folder.rglob("*.*"):
            file.write(path, path.relative_to(folder))
        file.write(folder / "transforms.json", "damaged.json")
    before = session.scene
    state = Path(session.state_file()).rename(tmp_path / "mine.safetensors")
    finish(session.add_files([str(archive)]))
    after = session.scene
    assert len(after.capture) == len(before.capture) + 3
    assert after.inputs == (*before.inputs, 8, 9, 10)
    more = open_scene(folder)
    world = before.state.world_to_scene.numpy() @ more.frames[0].c2w
    assert np.allclose(after.cameras().c2w[8, :3, 3], world[:3, 3], atol=1e-5)
    session.render(session.describe()["photos"][9])
    other = viewer.find("session-two")
    finish(other.open_files([str(state)]))
    finish(other.add_files([str(archive)]))
    assert [photo["role"] for photo in other.describe()["photos"]] == ["input"] * 7


def test_two_sessions_share_the_scene_but_not_what_they_do(viewer):
    one, two = opened(viewer), opened(viewer, "session-two")
    assert one.scene is two.scene
    heard = []
    two.listen(heard.append)
    finish(one.choose_inputs([1, 2]))
    assert not heard
    assert two.scene.inputs != (1, 2)
    one.close()
    assert two.render(home(two))
    assert len(viewer.store) == 1
    two.close()
    assert len(viewer.store) == 0
    with pytest.raises(UserError, match="No scene is open"):
        two.shown()


def test_the_scene_used_least_recently_goes_and_its_owner_is_told(capture, write_capture):
    probe = make_viewer([capture])
    size = opened(probe).scene.num_bytes
    probe.close()
    viewer = make_viewer(
        [capture, write_capture("other", 5), write_capture("third", 6)], Limits(scene_bytes=int(2.5 * size))
    )
    one, two, three = (viewer.find(name) for name in ("session-one", "session-two", "session-three"))
    heard = []
    one.listen(lambda message: heard.append(("one", message)))
    two.listen(lambda message: heard.append(("two", message)))
    finish(one.open("given:0"))
    finish(two.open("given:1"))
    one.render(home(one))  # so that the scene of the second was not used for longer
    finish(three.open("given:2"))
    lost = [(who, message) for who, message in heard if message["why"] == "evicted"]
    assert [who for who, _ in lost] == ["two"]
    assert "removed from memory" in lost[0][1]["message"]
    assert lost[0][1]["source"] == "given:1"
    assert viewer.store.num_bytes <= 2.5 * size
    with pytest.raises(UserError, match="removed from memory"):
        two.shown()
    finish(two.open("given:1"))
    assert two.render(home(two))
    viewer.close()


def test_stopping_ends_the_work_and_keeps_the_scene(viewer):
    session = opened(viewer)
    before = session.scene
    steps = session.choose_inputs([1, 2, 3])
    next(steps)
    steps.close()
    assert session.scene is before
    finish(session.choose_inputs([1, 2]))  # the next one is not held up
    assert session.scene.inputs == (1, 2)


def test_two_that_take_each_others_room_do_not_wait_for_each_other(viewer):
    """Each shows a scene at a time when the other loses its own."""
    one, two = opened(viewer), opened(viewer, "session-two")
    finish(one.choose_inputs([0, 1]))
    finish(two.choose_inputs([0, 2]))
    scenes = [one.scene, two.scene]
    viewer.store.max_bytes = int(1.5 * scenes[0].num_bytes)
    barrier = threading.Barrier(2)

    def show(session, scene):
        barrier.wait()
        for _ in range(200):
            session._show(scene, "opened")

    threads = [threading.Thread(target=show, args=pair, daemon=True) for pair in zip((one, two), scenes, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert len(viewer.store) == 1
    shown = [session.scene for session in (one, two) if session.scene is not None]
    assert [scene.key for scene in shown] == list(viewer.store._scenes)


def test_closing_a_generator_stops_its_thread():
    going, ended = threading.Event(), threading.Event()

    def work(tell):
        try:
            while True:
                tell("working", 1, 10)
                going.set()
                time.sleep(0.001)
        finally:
            ended.set()

    steps = step_by_step(work)
    assert next(steps).total == 10
    assert going.wait(5)
    steps.close()
    assert ended.wait(5)


def test_keyframes_become_the_cameras_of_a_path_and_of_its_file(viewer):
    session = opened(viewer)
    scene = session.describe()
    keys = [{"c2w": scene["photos"][i]["c2w"], "fov": 50 + i} for i in (0, 2, 4)]
    path = {"keyframes": keys, "loop": False, "seconds": 2, "fps": 10, "smoothness": 0.5}
    poses = session.path_poses(path)
    assert len(poses) == 20  # 2 seconds of 10
    for key, pose in zip((keys[0], keys[2]), (poses[0], poses[-1]), strict=True):
        assert np.allclose(pose["c2w"], key["c2w"], atol=1e-5)
        assert pose["fov"] == pytest.approx(key["fov"], abs=1e-4)
    again = session.load_path(session.save_path(path))
    assert again["seconds"] == 2
    assert again["fps"] == 10
    assert again["smoothness"] == 0.5
    file = {**json.loads(session.save_path(path)), "frames_per_segment": 10}
    del file["num_frames"]
    assert session.load_path(json.dumps(file))["seconds"] == 2.1  # the last keyframe has a picture of its own
    assert np.allclose([k["c2w"] for k in again["keyframes"]], [k["c2w"] for k in keys], atol=1e-5)
    assert len(session.path_poses({**path, "loop": True})) == 20
    for name in ("orbit", "spiral"):
        ready = session.preset(name, 2, 12)
        radii = [np.linalg.norm(np.reshape(pose["c2w"], (4, 4))[:3, 3]) for pose in session.path_poses(ready)]
        assert len(radii) == 24
        assert max(radii) < 2 * min(radii)


@pytest.mark.parametrize(
    "change",
    [
        {"keyframes": []},
        {"keyframes": [{"c2w": [0] * 16, "fov": 50}]},
        {"keyframes": [{"c2w": [1, 2], "fov": 50}]},
        {"keyframes": "x"},
        {"fps": 0},
        {"fps": math.nan},
        {"seconds": 1e9},
        {"smoothness": 2},
        {"keyframes": [{"c2w": list(np.eye(4).flatten()), "fov": 180}]},
    ],
)
def test_paths_that_cannot_be_are_refused(viewer, change):
    session = opened(viewer)
    path = {"keyframes": [{**home(session), "fov": 50}], "seconds": 1, "fps": 10, **change}
    with pytest.raises(UserError):
        session.path_poses(path)
    for text in ("", "[]", "{}", '{"format": "nvs-camera-path", "keyframes": 3, "image_size": [1, 1]}', "[" * 10**5):
        with pytest.raises(UserError):
            session.load_path(text)


def test_a_film_shows_exactly_what_nvs_render_does(viewer, tmp_path):
    session = opened(viewer)
    photos = session.describe()["photos"]
    path = {
        "keyframes": [{"c2w": photos[i]["c2w"], "fov": 50} for i in (1, 5, 6)],
        "loop": True,
        "seconds": 1,
        "fps": 6,
        "smoothness": 1,
    }
    steps = finish(session.export(path, "png", [30, 44], 6))
    assert [step.done for step in steps[:-1]] == list(range(7))
    assert steps[-1].file.endswith(".zip")
    nvs.save_model(viewer.model, tmp_path / "model.safetensors")
    (tmp_path / "path.json").write_text(session.save_path(path))
    folder = tmp_path / "pictures"
    render_command(
        str(tmp_path / "model.safetensors"),
        session.state_file(),
        str(tmp_path / "path.json"),
        str(folder),
        image_size=(30, 44),
        views_per_batch=1,
        device="cpu",
    )
    with zipfile.ZipFile(steps[-1].file) as archive:
        ours = {name: archive.read(name) for name in archive.namelist() if name.endswith(".png")}
    assert ours == {file.name: file.read_bytes() for file in folder.iterdir()}
    assert len(ours) == 6


def test_films_play_and_stopped_ones_leave_nothing(viewer):
    import imageio_ffmpeg

    session = opened(viewer)
    path = session.preset("orbit", 1, 8)
    for kind in ("mp4", "gif"):
        file = finish(session.export(path, kind, [24, 32], 8))[-1].file
        frames, _ = imageio_ffmpeg.count_frames_and_secs(file)
        assert frames == 8
    steps = session.export(path, "mp4", [24, 32], 8)
    next(steps), next(steps)
    steps.close()
    assert not [file for file in session._results[-1].path.rglob("*") if file.is_file()]
    for kind, size, fps in (("exe", [24, 32], 8), ("mp4", [9999, 9999], 8), ("mp4", [24], 8), ("gif", [24, 32], 100)):
        with pytest.raises(UserError):
            finish(session.export(path, kind, size, fps))


def test_temporary_files_go_with_the_session(viewer):
    session = opened(viewer)
    place = Path(session.state_file())
    assert place.exists()
    for _ in range(5):
        session.state_file()
    assert not place.exists()  # only the last few are kept
    session.close()
    viewer._sessions.clear()
    del session
    assert not [path for path in viewer.workspace.root.rglob("*") if path.is_file()]


def test_sessions_are_bounded(capture):
    viewer = make_viewer([capture], Limits(sessions=2))
    first = opened(viewer, "session-one")
    stop = viewer.find("session-two").listen(lambda message: None)
    viewer.find("session-three")
    assert first.closed  # it had no page
    viewer.find("session-three").listen(lambda message: None)
    with pytest.raises(UserError, match="Too many people"):
        viewer.find("session-four")
    stop()
    viewer.find("session-four")
    with pytest.raises(UserError):
        viewer.find("../../etc")
    viewer.close()
