"""`nvs render` on a small capture with a small untrained model."""

import json
import shutil

import imageio_ffmpeg
import numpy as np
import pytest
import torch
from PIL import Image

from apps.cli import main
from data import open_scene
from nvs import LaCT, ModelConfig, SceneState, TrainedRange, load_model, save_model, trajectory
from nvs.memory import LaCTConfig

SIZE = (32, 40)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    torch.manual_seed(0)
    memory = LaCTConfig(head_dim=32, newton_schulz_dtype="float32")
    model = LaCT(ModelConfig(dim=32, layers=2, attention_head_dim=32, memory=memory)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3.0 if weight.dim() > 1 else 1.0)  # an untrained model is grey everywhere otherwise
        colours = model.decode.weight.view(64, 3, 32)
        colours.copy_(colours[:1].clone().expand_as(colours))  # one colour per patch: noise is nothing for a film
    model.trained = TrainedRange(views=(2, 4), image_size=SIZE, fov_degrees=(30.0, 70.0))
    file = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    save_model(model, file)
    return str(file)


@pytest.fixture
def capture(shared):
    return str(shared / "cases/11-odd-size-video/input")


@pytest.fixture
def state(checkpoint, capture, tmp_path_factory):
    file = tmp_path_factory.mktemp("state") / "scene.safetensors"
    assert main(["encode", checkpoint, capture, "-o", str(file), "--views", "3"]) == 0
    return str(file)


def pictures(folder):
    levels = []
    for file in sorted(folder.iterdir()):
        with Image.open(file) as image:
            levels.append(torch.from_numpy(np.array(image)).movedim(-1, 0) / 255)
    return torch.stack(levels)


def rendered(checkpoint, state_file, cameras):
    with torch.inference_mode():
        return load_model(checkpoint).render(SceneState.load(state_file), cameras)


def assert_shown(folder, images):
    shown = pictures(folder)
    assert shown.shape == images.shape
    assert (shown - images).abs().max() <= 0.51 / 255
    assert shown.std(dim=0).max() > 2 / 255, "the pictures of a moving camera differ"


class TestPaths:
    def test_orbit_of_a_state(self, checkpoint, state, tmp_path):
        assert main(["render", checkpoint, state, "--frames", "5", "-o", f"{tmp_path}/out/"]) == 0
        cameras = trajectory.orbit(SceneState.load(state).cameras, 5)
        assert_shown(tmp_path / "out", rendered(checkpoint, state, cameras))

    @pytest.mark.parametrize(
        ("words", "count"),
        [
            (["spiral", "--frames", "4"], 4),
            (["turntable", "--frames", "4", "--zoom", "1.5"], 4),
            (["interpolate", "--frames", "6"], 6),
            (["interpolate", "--frames", "2"], 2),
            (["interpolate", "--frames", "7", "--loop"], 7),
            (["interpolate", "--frames", "2", "--loop"], 2),
        ],
    )
    def test_others_of_a_state(self, checkpoint, state, tmp_path, words, count):
        assert main(["render", checkpoint, state, "-o", f"{tmp_path}/out/", "--trajectory", *words]) == 0
        shown = pictures(tmp_path / "out")
        assert shown.shape == (count, 3, *SIZE)
        assert shown.std(dim=0).max() > 2 / 255

    def test_interpolation_starts_and_ends_with_input_cameras(self, checkpoint, state, tmp_path):
        words = ["--trajectory", "interpolate", "--frames", "5", "-o", f"{tmp_path}/out/"]
        assert main(["render", checkpoint, state, *words]) == 0
        at_keyframes = rendered(checkpoint, state, SceneState.load(state).cameras)
        assert (pictures(tmp_path / "out")[::2] - at_keyframes).abs().max() <= 0.51 / 255

    def test_interpolation_goes_evenly_along_its_whole_length(self, checkpoint, state, tmp_path):
        """4 pictures of a path through 3 cameras stand at thirds: 0, 2/3, 4/3 and 2 segments from the start."""
        words = ["--trajectory", "interpolate", "--frames", "4", "-o", f"{tmp_path}/out/"]
        assert main(["render", checkpoint, state, *words]) == 0
        dense = trajectory.interpolate(SceneState.load(state).cameras, 12)
        assert dense.num_views == 25
        assert_shown(tmp_path / "out", rendered(checkpoint, state, dense.select([0, 8, 16, 24])))

    def test_interpolation_of_one_camera_or_to_one_picture(self, checkpoint, capture, state, tmp_path):
        words = ["--trajectory", "interpolate", "--frames"]
        assert main(["render", checkpoint, state, *words, "1", "-o", f"{tmp_path}/one/"]) == 0
        assert len(pictures(tmp_path / "one")) == 1
        assert main(["render", checkpoint, capture, *words, "3", "--views", "1", "-o", f"{tmp_path}/still/"]) == 0
        still = pictures(tmp_path / "still")
        assert len(still) == 3 and still.std(dim=0).max() == 0

    def test_held_out_photos_are_those_not_given(self, checkpoint, capture, tmp_path):
        words = ["--trajectory", "held-out", "--input-views", "1", "4", "6", "-o", f"{tmp_path}/out/"]
        assert main(["render", checkpoint, capture, *words]) == 0
        scene = open_scene(capture).normalize([1, 4, 6])
        file = tmp_path / "s.safetensors"
        load_model(checkpoint).encode(scene.load([1, 4, 6], image_size=SIZE)).save(file)
        wanted = scene.cameras([0, 2, 3, 5, 7], image_size=SIZE)
        assert_shown(tmp_path / "out", rendered(checkpoint, file, wanted))
        assert main(["render", checkpoint, capture, *words[:6], "--frames", "2", "-o", f"{tmp_path}/two/"]) == 0
        assert len(pictures(tmp_path / "two")) == 2

    def test_path_files_are_in_the_world_of_the_capture(self, checkpoint, capture, state, tmp_path):
        words = ["--trajectory", f"{capture}/transforms.json", "-o", f"{tmp_path}/out/"]
        assert main(["render", checkpoint, state, *words]) == 0
        scene = open_scene(capture).normalize(sorted(open_scene(capture).choose(3)[0]))
        assert_shown(tmp_path / "out", rendered(checkpoint, state, scene.cameras(range(8), image_size=(48, 64))))


class TestOutput:
    def test_odd_size_film(self, checkpoint, capture, shared, tmp_path, capsys):
        expected = json.loads((shared / "cases/11-odd-size-video/expected.json").read_text())
        words = ["--trajectory", f"{capture}/camera_path.json", "--views-per-batch", "3", "--slice-tokens", "16"]
        assert main(["render", checkpoint, capture, *words, "-o", str(tmp_path / "film.mp4")]) == 0
        assert "8 pictures of 35x61 pixels" in capsys.readouterr().out
        assert main(["render", checkpoint, capture, *words, "-o", f"{tmp_path}/out/"]) == 0
        reader = imageio_ffmpeg.read_frames(str(tmp_path / "film.mp4"))
        about = next(reader)
        assert list(about["source_size"]) in expected["mp4_allowed_sizes"] and about["fps"] == expected["fps"]
        film = torch.stack([torch.from_numpy(np.frombuffer(raw, np.uint8).reshape(36, 62, 3).copy()) for raw in reader])
        png = pictures(tmp_path / "out")
        assert png.shape == (expected["frames"], 3, *expected["png_size"][::-1])
        error = ((film[:, :35, :61].movedim(-1, 1) / 255 - png) ** 2).flatten(1).mean(1)
        assert (-10 * error.log10()).min() >= 30

    def test_default_name_and_gif(self, checkpoint, state, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert main(["render", checkpoint, state, "--frames", "2", "--image-size", "17", "19", "--fps", "5"]) == 0
        assert main(["render", checkpoint, state, "--frames", "2", "-o", "spin.gif"]) == 0
        assert sorted(p.name for p in tmp_path.iterdir()) == ["scene_orbit.mp4", "spin.gif"]
        assert next(imageio_ffmpeg.read_frames("scene_orbit.mp4"))["fps"] == 5
        with Image.open("spin.gif") as gif:
            assert gif.n_frames == 2 and gif.size == SIZE[::-1]

    def test_name_of_the_folder_that_one_stands_in(self, checkpoint, capture, tmp_path, monkeypatch):
        shutil.copytree(capture, tmp_path / "plant.v2")
        monkeypatch.chdir(tmp_path / "plant.v2")
        assert main(["render", checkpoint, ".", "--frames", "1", "--views", "2"]) == 0
        assert list(tmp_path.rglob("*.mp4")) == [tmp_path / "plant.v2/plant.v2_orbit.mp4"]

    def test_warns_outside_the_trained_range(self, checkpoint, capture, tmp_path, capsys):
        words = ["--views", "5", "--frames", "1", "-o", f"{tmp_path}/out/"]
        assert main(["render", checkpoint, capture, *words]) == 0
        assert "warning: outside the trained range: 5 input views" in capsys.readouterr().err

    def test_warns_of_pictures_larger_than_trained_for(self, checkpoint, state, tmp_path, capsys):
        capsys.readouterr()
        assert (
            main(["render", checkpoint, state, "--frames", "1", "--image-size", "64", "80", "-o", f"{tmp_path}/out/"])
            == 0
        )
        assert "images of 64x80 pixels, but the model was trained at 32x40" in capsys.readouterr().err

    def test_enlarged_pictures_are_the_same_pictures(self, checkpoint, state, tmp_path, capsys):
        for name, more in (("small", []), ("large", ["--enlarge", "3"])):
            assert main(["render", checkpoint, state, "--frames", "2", *more, "-o", f"{tmp_path}/{name}/"]) == 0
        assert "2 pictures of 32x40 pixels (height x width) shown 3x" in capsys.readouterr().out
        small, large = pictures(tmp_path / "small"), pictures(tmp_path / "large")
        assert large.shape[-2:] == (96, 120)
        assert (torch.nn.functional.avg_pool2d(large, 3) - small).abs().mean() < 0.01

    def test_ctrl_c_leaves_nothing(self, checkpoint, state, tmp_path, monkeypatch):
        from nvs import Renderer

        def interrupted(self, cameras):
            yield torch.zeros(3, *cameras.image_size)
            raise KeyboardInterrupt

        monkeypatch.setattr(Renderer, "frames", interrupted)
        for name in ("film.mp4", "film.gif", "out/"):
            assert main(["render", checkpoint, state, "-o", f"{tmp_path}/{name}"]) == 130
        assert not list(tmp_path.iterdir())


class TestBadInput:
    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["--trajectory", "circle"], "no trajectory circle"),
            (["--trajectory", "none.json"], "does not exist"),
            (["--trajectory", "held-out"], "give the capture itself"),
            (["--trajectory", "turntable", "--zoom", "0"], "zoom of 0"),
            (["--zoom", "2"], "turntable only"),
            (["--loop"], "interpolate only"),
            (["--frames", "0"], "--frames 0 is not possible"),
            (["--enlarge", "0"], "--enlarge 0 is not possible"),
            (["--trajectory", "path.json", "--frames", "9"], "leave out --frames"),
            (["--image-size", "0", "8"], "0x8"),
            (["--views-per-batch", "0"], "1 or more"),
            (["--views", "2"], "is a scene state"),
            (["-o", "film.avi"], "ends in .avi"),
            (["--fps", "0"], "frames per second"),
            (["-o", "file/film.mp4"], "Nothing can be written"),
        ],
    )
    def test_is_one_sentence(self, checkpoint, state, tmp_path, monkeypatch, capsys, words, message):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "file").write_text("")
        trajectory.save(tmp_path / "path.json", trajectory.orbit(None, 3, radius=2.0, elevation=0.0))
        capsys.readouterr()
        assert main(["render", checkpoint, state, *words]) == (2 if "circle" in words else 1)
        told = capsys.readouterr()
        assert message in told.err and "Traceback" not in told.err and len(told.err.strip().splitlines()) == 1
        assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "path.json"]

    def test_film_is_refused_before_anything_is_loaded(self, tmp_path, monkeypatch, capsys):
        monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", lambda: "/no/such/ffmpeg")
        assert main(["render", "no_checkpoint", "no_scene", "-o", str(tmp_path / "film.mp4")]) == 1
        assert "needs ffmpeg" in capsys.readouterr().err

    def test_state_of_another_model(self, checkpoint, state, tmp_path, capsys):
        other = load_model(checkpoint)
        with torch.no_grad():
            other.decode.weight.mul_(2)
        save_model(other, tmp_path / "other.safetensors")
        assert main(["render", str(tmp_path / "other.safetensors"), state, "-o", f"{tmp_path}/out.mp4"]) == 1
        assert "another model" in capsys.readouterr().err
        assert [p.name for p in tmp_path.iterdir()] == ["other.safetensors"]


@pytest.mark.parametrize("fast", [True, False])
def test_precision(checkpoint, state, tmp_path, capsys, monkeypatch, fast):
    monkeypatch.setattr("nvs.precision.has_bfloat16", lambda device: fast)
    found = {}
    for name in ("fp32", "bf16", "auto"):
        words = ["render", checkpoint, state, "--frames", "2", "--precision", name, "-o", str(tmp_path / f"{name}/")]
        capsys.readouterr()
        assert main(words) == 0
        assert ("no instructions for bf16" in capsys.readouterr().err) == (name == "bf16" and not fast)
        found[name] = pictures(tmp_path / name)
    assert torch.equal(found["auto"], found["bf16" if fast else "fp32"])
    assert (found["bf16"] - found["fp32"]).abs().mean() < 0.02
