"""Rendering camera paths: order, batches, sizes that are no whole patches, and case 11 from path file to film."""

import importlib.util
import json

import numpy as np
import pytest
import torch
from PIL import Image

from data import Cameras, UserError, Views
from nvs import LaCT, ModelConfig, Renderer, SceneState, trajectory
from nvs.memory import LaCTConfig
from nvs.renderer import reframe
from nvs.video import open_video


class RayModel(LaCT):
    """Paints each pixel with its ray's direction, and takes whole patches only, as the real model does."""

    def __init__(self, patch_size=8):
        memory = LaCTConfig(head_dim=8)
        super().__init__(ModelConfig(dim=8, layers=1, patch_size=patch_size, attention_head_dim=8, memory=memory))
        self.batches = []

    def render(self, state, cameras, slice_tokens=None):
        assert torch.is_inference_mode_enabled()
        assert all(side % self.config.patch_size == 0 for side in cameras.image_size)
        self.batches.append(cameras.num_views)
        return (cameras.rays()[1].movedim(-1, -3) + 1) / 2


class BallModel(RayModel):
    """Traces the rays into the scene that the photos of the case were made of, 5x5 rays per pixel."""

    def __init__(self, shared):
        super().__init__()
        spec = importlib.util.spec_from_file_location("scene", shared / "cases/_tools/scene.py")
        self.scene = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.scene)

    def render(self, state, cameras, slice_tokens=None):
        (h, w), fine = cameras.image_size, 5
        origins, directions = cameras.resize((h * fine, w * fine)).rays()
        images = []
        for origin, rays in zip(origins, directions, strict=True):
            colours, _, _ = self.scene.shade(origin[0, 0].double().numpy(), rays.reshape(-1, 3).double().numpy())
            images.append(torch.from_numpy(colours).reshape(h, fine, w, fine, 3).mean((1, 3)).movedim(-1, 0) / 255)
        return torch.stack(images)


def empty_state(batch=None):
    """A state for models that look at the cameras only."""
    shape = () if batch is None else (batch,)
    cameras = Cameras(torch.zeros(*shape, 1, 4, 4), torch.ones(*shape, 1, 4), (8, 8))
    world = torch.eye(4, dtype=torch.float64).expand(*shape, 4, 4)
    return SceneState(
        (), world, cameras, torch.zeros(*shape, 1, 3, 4, 4, dtype=torch.uint8), fingerprint="", num_inputs=1
    )


def path(count=5, size=(35, 61)):
    return trajectory.orbit(None, count, radius=2.0, elevation=20.0, image_size=size)


class TestSizes:
    @pytest.mark.parametrize("size", [(35, 61), (64, 64), (8, 16), (1, 1), (7, 9), (40, 41)])
    @pytest.mark.parametrize("patch_size", [8, 14])
    def test_each_pixel_shows_its_own_ray(self, size, patch_size):
        cameras = path(3, size)
        images = torch.stack(list(Renderer(RayModel(patch_size), empty_state()).frames(cameras)))
        assert images.shape == (3, 3, *size)
        assert torch.allclose(images * 2 - 1, cameras.rays()[1].movedim(-1, -3), atol=1e-5)

    def test_reframing_keeps_the_shape_of_pixels(self):
        cameras = path(2, (48, 64))
        wide, tall, double = reframe(cameras, (24, 64)), reframe(cameras, (96, 64)), reframe(cameras, (96, 128))
        assert torch.allclose(wide.intrinsics, cameras.crop(12, 0, (24, 64)).intrinsics)
        assert torch.allclose(tall.intrinsics, cameras.resize((96, 128)).crop(0, 32, (96, 64)).intrinsics)
        assert torch.allclose(double.intrinsics, cameras.resize((96, 128)).intrinsics)
        with pytest.raises(UserError, match="0x64"):
            reframe(cameras, (0, 64))


class TestFrames:
    @pytest.mark.parametrize(("per_batch", "batches"), [(1, [1] * 5), (2, [2, 2, 1]), (5, [5]), (8, [5])])
    def test_come_in_order_whatever_the_batches(self, per_batch, batches):
        model, cameras = RayModel(), path(5)
        images = torch.stack(list(Renderer(model, empty_state(), per_batch).frames(cameras)))
        assert model.batches == batches
        assert torch.allclose(images * 2 - 1, cameras.rays()[1].movedim(-1, -3), atol=1e-5)

    def test_are_rendered_when_asked_for(self):
        model = RayModel()
        frames = Renderer(model, empty_state(), 1).frames(path(4))
        assert model.batches == []
        next(frames)
        assert model.batches == [1]
        assert not torch.is_inference_mode_enabled(), "the mode must not leak to the caller"

    def test_double_precision_cameras_are_taken(self):
        cameras = path(2)
        images = next(Renderer(RayModel(), empty_state()).frames(cameras.to(torch.float64)))
        assert images.dtype == torch.float32

    def test_a_batch_of_one_scene_is_taken(self):
        cameras = path(3)
        images = torch.stack(list(Renderer(RayModel(), empty_state(batch=1)).frames(cameras)))
        assert torch.equal(images, torch.stack(list(Renderer(RayModel(), empty_state()).frames(cameras))))
        with pytest.raises(ValueError, match="one scene"):
            Renderer(RayModel(), empty_state(batch=2))

    def test_needs_a_positive_batch(self):
        with pytest.raises(UserError, match="1 or more"):
            Renderer(RayModel(), empty_state(), 0)

    def test_are_those_of_the_model(self):
        torch.manual_seed(0)
        memory = LaCTConfig(head_dim=32)
        model = LaCT(ModelConfig(dim=32, layers=2, attention_head_dim=32, memory=memory)).eval().requires_grad_(False)
        seen = path(3, (16, 24))
        state = model.encode(Views(seen.c2w, seen.intrinsics, seen.image_size, images=torch.rand(3, 3, 16, 24)))
        cameras = path(5, (24, 16))
        images = torch.stack(list(Renderer(model, state, 2).frames(cameras)))
        assert torch.allclose(images, model.render(state, cameras), atol=1e-5)
        assert next(Renderer(model, state).frames(path(1, (13, 21)))).shape == (3, 13, 21)


class TestOddSizeVideo:
    """Case 11: a 61x35 path of a browser viewer, from the JSON file to pictures and film."""

    @pytest.fixture
    def case(self, shared):
        return shared / "cases/11-odd-size-video"

    def render(self, shared, case, output):
        path = trajectory.read_path(case / "input/camera_path.json")
        renderer = Renderer(BallModel(shared), empty_state(), 3)
        with open_video(output, path.cameras.image_size, path.cameras.num_views, path.fps) as video:
            for image in renderer.frames(path.cameras):
                video.write(image)

    def read(self, file):
        with Image.open(file) as image:
            return torch.from_numpy(np.array(image.convert("RGB"))).double()

    def test_pictures_show_the_true_views(self, shared, case, tmp_path):
        self.render(shared, case, f"{tmp_path}/frames/")
        files = sorted((tmp_path / "frames").iterdir())
        assert len(files) == json.loads((case / "expected.json").read_text())["frames"]
        for i, file in enumerate(files):
            shown, true = self.read(file), self.read(case / f"expected/true_view_{i}.png")
            assert shown.shape == (35, 61, 3)
            off = (shown - true).abs().amax(-1)
            assert off.mean() < 0.05, "rays that graze an edge may differ, the rest may not"

    def test_film_shows_the_pictures(self, shared, case, tmp_path):
        import imageio_ffmpeg

        expected = json.loads((case / "expected.json").read_text())
        self.render(shared, case, f"{tmp_path}/frames/")
        self.render(shared, case, tmp_path / "film.mp4")
        reader = imageio_ffmpeg.read_frames(str(tmp_path / "film.mp4"))
        about = next(reader)
        assert list(about["source_size"]) in expected["mp4_allowed_sizes"]
        assert about["fps"] == expected["fps"] and about["codec"] == "h264" and "yuv420p" in about["pix_fmt"]
        shown = [np.frombuffer(raw, np.uint8).reshape(36, 62, 3)[:35, :61] for raw in reader]
        assert len(shown) == expected["frames"]
        for i, image in enumerate(shown):
            png = self.read(tmp_path / f"frames/frame_{i:04d}.png")
            error = ((torch.from_numpy(image.copy()).double() - png) ** 2).mean()
            assert 10 * torch.log10(255**2 / error) >= 30
