"""Photos as a scene: what is written, kept, told and refused, without long runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from photo_samples import make_truth, pycolmap_or_skip, save_photo, silent, write_film
from PIL import Image

from data import PhotoSceneConfig, UserError, open_scene, write_photo_scene
from data.photos import collect, export, features, reconstruct, report, scene
from data.photos.collect import Photo
from data.photos.features import Pair
from data.photos.reconstruct import Model


@pytest.fixture
def photos(tmp_path) -> Path:
    folder = tmp_path / "photos"
    for i in range(7):
        save_photo(folder / f"photo {i + 8}.jpg", seed=i)
    return folder


@pytest.fixture
def pycolmap():
    return pycolmap_or_skip()


@pytest.fixture
def truth(tmp_path):
    """The true reconstruction of a synthetic capture whose database lies in `tmp_path`/work."""
    return make_truth(tmp_path / "work")


def draw(points: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Soft spots at (x, y) on black, (h, w) pixels, pixel centres at +0.5."""
    y, x = np.mgrid[0 : size[0], 0 : size[1]] + 0.5
    squared = (x[..., None] - points[:, 0]) ** 2 + (y[..., None] - points[:, 1]) ** 2
    return (255 * np.exp(-squared / 4).max(-1)).round().astype(np.uint8)


class TestExport:
    @pytest.fixture
    def exported(self, truth, tmp_path) -> Path:
        """A scene whose photos show a few of the true points as spots, with one photo that has alpha."""
        photos = []
        for index in range(7):
            image = next(i for i in truth.images.values() if i.name == features.picture_name(index))
            spots = draw(np.array([p.xy for p in image.points2D if p.has_point3D()][:6]), (240, 320))
            path = tmp_path / f"{index}.png"
            picture = Image.fromarray(spots).convert("RGB")
            if index == 3:
                picture.putalpha(255)
            picture.save(path)
            photos.append(Photo(path, f"in order/photo {index}", (240, 320)))
        (tmp_path / "model").mkdir()
        truth.write_binary(tmp_path / "model")
        (tmp_path / "scene").mkdir()
        export.export(tmp_path / "model", photos, tmp_path / "scene", {"made": "by a test"}, silent)
        return tmp_path / "scene"

    def test_pictures_and_cameras_agree(self, truth, exported):
        opened = open_scene(exported)
        assert opened.format == "nerfstudio / instant-ngp"
        assert not opened.warnings and len(opened) == 7
        for index, frame in enumerate(opened.frames):
            assert frame.path.suffix == (".png" if index == 3 else ".jpg")
            assert frame.image_size == (240, 320) and frame.distortion.is_pinhole
            image = next(i for i in truth.images.values() if i.name == features.picture_name(index))
            ids = [p.point3D_id for p in image.points2D if p.has_point3D()][:6]
            world = np.array([truth.points3D[i].xyz for i in ids])
            local = (world - frame.c2w[:3, 3]) @ frame.c2w[:3, :3]
            fx, fy, cx, cy = frame.intrinsics
            expected = local[:, :2] / local[:, 2:] * [fx, fy] + [cx, cy]
            inside = expected[((expected > 4) & (expected < [316, 236])).all(1)]
            assert len(inside)
            shown = np.asarray(Image.open(frame.path).convert("L")).astype(float)
            drawn = draw(inside, (240, 320)).astype(float)
            # Where a spot is expected the picture has one: the two peak together.
            for x, y in inside:
                window = np.s_[int(y) - 3 : int(y) + 4, int(x) - 3 : int(x) + 4]
                if (np.linalg.norm(inside - [x, y], axis=1) < 12).sum() == 1:
                    assert np.abs(center_of(shown[window]) - center_of(drawn[window])).max() < 0.15

    def test_the_colmap_model_agrees_with_transforms(self, pycolmap, truth, exported):
        model = pycolmap.Reconstruction(exported / "sparse" / "0")
        opened = {
            frame.path.relative_to(exported / "images").as_posix(): frame for frame in open_scene(exported).frames
        }
        assert model.num_points3D() == truth.num_points3D()
        assert model.compute_mean_reprojection_error() < 1e-3
        assert {image.name for image in model.images.values()} == set(opened)
        for image in model.images.values():
            frame, camera = opened[image.name], model.cameras[image.camera_id]
            assert camera.model == pycolmap.CameraModelId.PINHOLE
            np.testing.assert_allclose(camera.params, frame.intrinsics, rtol=1e-9)
            np.testing.assert_allclose(
                image.cam_from_world().matrix() @ frame.c2w, np.eye(4)[:3], atol=1e-9 * np.abs(frame.c2w).max()
            )

    def test_different_lenses_keep_their_numbers(self):
        cameras = [
            reconstruct.PlacedCamera(i, np.eye(4), (f, f, 32.0, 24.0), reconstruct.Distortion(), (48, 64))
            for i, f in enumerate((50.0, 60.0))
        ]
        content = export.describe(cameras, {0: "a.jpg", 1: "b.jpg"})
        assert "fl_x" not in content
        assert [frame["fl_x"] for frame in content["frames"]] == [50.0, 60.0]


def center_of(pixels: np.ndarray) -> np.ndarray:
    """Centre of brightness (x, y) in pixels."""
    y, x = np.mgrid[0 : pixels.shape[0], 0 : pixels.shape[1]]
    return np.array([(x * pixels).sum(), (y * pixels).sum()]) / pixels.sum()


class TestScene:
    @pytest.fixture
    def found(self, pycolmap, photos, truth, tmp_path, monkeypatch) -> Callable[..., report.Report]:
        """`found(**options)`: writes the scene with six of the seven photos placed, without looking at them."""

        def pretend(work: Path, *_: object) -> tuple[Model, Path]:
            for image_id in [i.image_id for i in truth.images.values() if features.photo_index(i.name) > 5]:
                truth.deregister_frame(truth.images[image_id].frame_id)
            for camera in truth.cameras.values():
                camera.rescale(64, 48)
            (work / "model").mkdir(exist_ok=True)
            truth.write_binary(work / "model")
            database = tmp_path / "work" / "normal.db"
            return Model(
                work / "model", database, "normal-strict", tuple(range(6)), 80, 0.5, sound=True, focal_differs=False
            ), database

        monkeypatch.setattr(scene, "reconstruct", pretend)
        return lambda **options: write_photo_scene([photos], tmp_path / "scene", PhotoSceneConfig(), **options)

    def test_a_scene_and_its_report_are_written(self, found, tmp_path):
        made = found()
        assert {p.name for p in (tmp_path / "scene").iterdir()} == {
            "images",
            "sparse",
            "transforms.json",
            "report.json",
        }
        assert not (tmp_path / ".scene.part").exists()
        assert len(open_scene(tmp_path / "scene")) == 6
        assert made.registered == 6 and made.photos == 7
        assert [name for name, _ in made.not_registered] == ["photo 14.jpg"]
        content = json.loads((tmp_path / "scene" / "report.json").read_text())
        assert report.Report.from_json(content) == made
        assert content["not_registered"][0]["photo"] == "photo 14.jpg"

    def test_a_finished_scene_is_kept_unless_told_otherwise(self, found, photos, tmp_path):
        made = found()
        stamp = (tmp_path / "scene" / "report.json").stat().st_mtime_ns
        assert found() == made
        assert (tmp_path / "scene" / "report.json").stat().st_mtime_ns == stamp
        save_photo(photos / "photo 15.jpg", seed=9)
        with pytest.raises(UserError, match=r"made another way.*--overwrite"):
            found()
        assert found(overwrite=True).photos == 8

    def test_other_files_are_never_written_over(self, found, tmp_path):
        (tmp_path / "scene").mkdir()
        (tmp_path / "scene" / "diary.txt").write_text("dear")
        with pytest.raises(UserError, match="holds other files"):
            found(overwrite=True)
        assert [p.name for p in (tmp_path / "scene").iterdir()] == ["diary.txt"]

    def test_a_place_that_cannot_be_written(self, pycolmap, photos, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(UserError, match="Choose another place"):
            write_photo_scene([photos], tmp_path / "file" / "scene", PhotoSceneConfig())

    def test_damage_inside_a_photo_is_told(self, tmp_path):
        work = tmp_path / "work"
        work.mkdir()
        paths = [save_photo(tmp_path / f"{i}.png", (256, 256), seed=i) for i in range(4)]
        content = bytearray(paths[1].read_bytes())
        content[len(content) // 2 : len(content) // 2 + 200] = b"\0" * 200
        paths[1].write_bytes(content)
        read, unreadable = collect.read_photos([(p.name, p) for p in paths], silent)
        assert not unreadable
        for _ in range(2):
            intact, damaged = scene._write_pictures(read, work, 128, silent)
            assert [photo.path for photo in intact] == [paths[0], *paths[2:]]
            assert [name for name, _ in damaged] == ["1.png"]
        assert sorted(p.name for p in (work / "pictures").iterdir()) == ["00000.jpg", "00001.jpg", "00002.jpg"]

    @pytest.mark.parametrize("options", [{"max_size": 10}, {"frames": 1}, {"matching": "all"}])
    def test_options_out_of_range(self, options):
        with pytest.raises(UserError):
            PhotoSceneConfig(**options)

    def test_without_pycolmap_the_command_to_install_it_is_told(self, photos, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "pycolmap", None)
        with pytest.raises(UserError, match="pip install"):
            write_photo_scene([photos], tmp_path / "scene", PhotoSceneConfig())
        assert not (tmp_path / ".scene.part").exists()

    def test_an_interrupted_scene_goes_on_and_appears_when_complete(self, pycolmap, photos, tmp_path, monkeypatch):
        output, asked = tmp_path / "scene", []

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(scene, "reconstruct", interrupt)
        with pytest.raises(KeyboardInterrupt):
            write_photo_scene([photos], output, PhotoSceneConfig())
        assert not output.exists()
        kept = tmp_path / ".scene.part" / "work" / "pictures"
        assert len(list(kept.iterdir())) == 7

        monkeypatch.setattr(scene, "load_scaled", lambda *a: asked.append(a) or collect.load_scaled(*a))
        with pytest.raises(KeyboardInterrupt):
            write_photo_scene([photos], output, PhotoSceneConfig())
        assert not asked
        with pytest.raises(KeyboardInterrupt):
            write_photo_scene([photos], output, PhotoSceneConfig(max_size=256))
        assert len(asked) == 7

    def test_frames_of_a_video_are_taken_once_and_said_to_be_in_order(self, pycolmap, tmp_path, monkeypatch):
        frames = [np.asarray(Image.open(save_photo(tmp_path / "f.png", (64, 96), i)).convert("L")) for i in range(20)]
        film, asked = write_film(tmp_path / "walk.mp4", [frame / 255 for frame in frames]), []

        def interrupt(
            work: Path, photos: list[Photo], max_size: int, matching: str, in_order: bool, *_: object
        ) -> None:
            asked.append(([photo.size for photo in photos], in_order))
            raise KeyboardInterrupt

        monkeypatch.setattr(scene, "reconstruct", interrupt)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                write_photo_scene([film], tmp_path / "scene", PhotoSceneConfig(frames=5))
            monkeypatch.setattr(scene, "extract_frames", None)
        assert asked == [([(64, 96)] * 5, True)] * 2

    def test_a_video_stands_alone(self, pycolmap, photos, tmp_path):
        (tmp_path / "walk.mp4").write_bytes(b"")
        with pytest.raises(UserError, match="a video among other inputs"):
            write_photo_scene([photos, tmp_path / "walk.mp4"], tmp_path / "scene", PhotoSceneConfig())


class TestReport:
    photos = tuple(Photo(Path(f"{i}.jpg"), f"{i}", (48, 64)) for i in range(5))
    model = Model(Path(), Path(), "normal-strict", (0, 1), 10, 0.5, sound=True, focal_differs=False)

    def test_each_missing_photo_has_its_reason(self):
        counts = {0: 900, 1: 900, 2: 12, 3: 900, 4: 900}
        found = [Pair(0, 1), Pair(1, 4)]
        missing = dict(report.explain_missing(self.photos, self.model, counts, found))
        assert list(missing) == ["2.jpg", "3.jpg", "4.jpg"]
        assert "only 12 features" in missing["2.jpg"]
        assert "nothing that another photo shows" in missing["3.jpg"]
        assert "not well enough" in missing["4.jpg"]

    @pytest.mark.parametrize(
        ("features_each", "found", "advice"),
        [
            (40, [(0, 1)], "texture"),
            (900, [(0, 1), (1, 2)], "3 groups that share no view"),
            (900, [(0, 1), (1, 2), (2, 3), (3, 4)], "move sideways"),
        ],
    )
    def test_advice_names_the_likely_cause(self, features_each, found, advice):
        counts = dict.fromkeys(range(5), features_each)
        told = report.explain_failure(self.model, 5, counts, [Pair(a, b) for a, b in found])
        assert "only 2 of 5 photos" in told and advice in told

    def test_two_photos_of_many_are_no_scene(self):
        assert not report.is_enough(self.model, 5)
        three = replace(self.model, registered=(0, 1, 2))
        assert report.is_enough(three, 5) and not report.is_enough(three, 30)
