"""From features to cameras: what COLMAP is asked, what is tried again, and that nothing is done twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from photo_samples import make_truth, pycolmap_or_skip, save_photo, silent

from data.photos import features, pairs, reconstruct
from data.photos.collect import Photo
from data.photos.features import Pair
from data.photos.reconstruct import Effort, Model
from data.photos.turning import only_turned, stretch


@pytest.fixture
def pycolmap():
    return pycolmap_or_skip()


@pytest.fixture
def truth(tmp_path):
    """The true reconstruction of a synthetic capture whose database lies in `tmp_path`/work."""
    return make_truth(tmp_path / "work")


class TestPlace:
    @pytest.fixture
    def taken(self) -> list[Photo]:
        return [Photo(Path(f"{i}"), f"{i}", (240, 320), focal=1.25) for i in range(7)]

    @pytest.mark.parametrize("mapper", ["strict", "global"])
    def test_the_true_cameras_are_found(self, truth, taken, tmp_path, mapper):
        work = tmp_path / "work"
        (model,) = reconstruct.place(work / "normal.db", work, Effort("normal", mapper), taken, silent)
        assert model.registered == tuple(range(7)) and model.sound and not model.focal_differs
        assert model.error < 0.1
        placed = reconstruct.read_cameras(pycolmap_or_skip().Reconstruction(model.path))
        true = reconstruct.read_cameras(truth)
        found, expected = (np.stack([c.c2w[:3, 3] for c in cameras]) for cameras in (placed, true))
        distances = [np.linalg.norm(p[:, None] - p, axis=-1) for p in (found, expected)]
        np.testing.assert_allclose(distances[0] / distances[0].max(), distances[1] / distances[1].max(), atol=1e-3)
        for a, b in zip(placed, true, strict=True):
            np.testing.assert_allclose(a.intrinsics, b.intrinsics, rtol=1e-2)

    def test_a_focal_length_far_from_exif_is_noticed(self, truth, taken, tmp_path):
        """The true focal length is 1.25 times the width."""
        work, claims = tmp_path / "work", [replace(photo, focal=2.5) for photo in taken]
        (model,) = reconstruct.place(work / "normal.db", work, Effort("normal", "strict"), claims, silent)
        assert model.focal_differs

    def test_finished_placing_is_not_done_again(self, truth, taken, tmp_path, monkeypatch):
        work, effort = tmp_path / "work", Effort("normal", "strict")
        before = reconstruct.place(work / "normal.db", work, effort, taken, silent)
        monkeypatch.setattr(reconstruct, "_map", None)
        assert reconstruct.place(work / "normal.db", work, effort, taken, silent) == before


class TestEfforts:
    """Of 10 photos, each effort is said to place some; what is tried and kept?"""

    @pytest.fixture
    def reconstruct_with(self, monkeypatch, tmp_path):
        """Call with lists, per effort, of (photos placed, whether the lens is sound), and with the features found."""

        def run(
            results: dict[str, list[tuple[int, bool]]], features_each: int = 5000
        ) -> tuple[Model | None, list[str]]:
            tried = []

            def place(database: Path, work: Path, effort: Effort, *_: object) -> list[Model]:
                tried.append(effort.name)
                return [
                    Model(work, database, effort.name, tuple(range(n)), 100, 0.5, sound, focal_differs=False)
                    for n, sound in results[effort.name]
                ]

            monkeypatch.setattr(reconstruct, "place", place)
            for name in ("extract", "match"):
                monkeypatch.setattr(features, name, lambda *_, **__: None)
            monkeypatch.setattr(features, "feature_counts", lambda _: {0: features_each})
            photos = [Photo(Path("x"), "x", (48, 64))] * 10
            model, database = reconstruct.reconstruct(tmp_path, photos, 64, "auto", False, silent)
            assert model is None or database == model.database
            return model, tried

        return run

    @pytest.mark.parametrize(("features_each", "effort"), [(5000, "normal-strict"), (900, "fine-strict")])
    def test_a_good_result_is_taken_at_once(self, reconstruct_with, features_each, effort):
        model, tried = reconstruct_with({effort: [(9, True)]}, features_each)
        assert len(model.registered) == 9 and tried == [effort]

    def test_too_small_models_are_tried_again_and_the_largest_sound_one_wins(self, reconstruct_with):
        results = {
            "normal-strict": [(2, True)],
            "normal-global": [],
            "normal-relaxed": [(3, True), (6, True)],
            "fine-global": [(7, True), (10, False)],
            "fine-relaxed": [(5, True)],
            "fine-loose": [],
        }
        model, tried = reconstruct_with(results)
        assert (len(model.registered), model.effort) == (7, "fine-global")
        assert model.database.name == "fine.db"
        assert tried == list(results)

    def test_trying_stops_when_enough_photos_are_placed(self, reconstruct_with):
        model, tried = reconstruct_with({"normal-strict": [(8, True)], "normal-global": [(9, True)]})
        assert model.effort == "normal-global" and tried == ["normal-strict", "normal-global"]

    def test_nothing_found(self, reconstruct_with):
        results = {f"fine-{mapper}": [] for mapper in ("strict", "global", "relaxed", "loose")}
        model, tried = reconstruct_with(results, 900)
        assert model is None and tried == list(results)


class TestResume:
    @pytest.fixture
    def pictures(self, tmp_path) -> list[Photo]:
        paths = [save_photo(tmp_path / "pictures" / f"{i:05d}.jpg", (128, 128), seed=i) for i in range(5)]
        return [Photo(path, path.stem, (128, 128)) for path in paths]

    def test_features_and_matches_are_not_computed_again(self, pycolmap, pictures, tmp_path, monkeypatch):
        database, asked = tmp_path / "a.db", []
        genuine = pycolmap.extract_features

        def extract(path, folder, image_names, **options):
            asked.extend(image_names)
            if len(asked) > 4:
                raise KeyboardInterrupt
            genuine(path, folder, image_names=image_names, **options)

        monkeypatch.setattr(features.os, "cpu_count", lambda: 1)
        monkeypatch.setattr(pycolmap, "extract_features", extract)
        with pytest.raises(KeyboardInterrupt):
            features.extract(database, tmp_path / "pictures", pictures, 128, fine=False, on_step=silent)
        assert sorted(features.feature_counts(database)) == [0, 1, 2, 3]
        asked.clear()
        features.extract(database, tmp_path / "pictures", pictures, 128, fine=False, on_step=silent)
        assert asked == ["00004.jpg"]
        wanted = pairs.choose_pairs("exhaustive", 5, [])
        features.match(database, wanted, silent)
        with features.open_database(database) as db:
            assert db.num_cameras() == 1
            assert db.num_matched_image_pairs() == 10
        monkeypatch.setattr(pycolmap, "match_image_pairs", None)
        features.match(database, wanted, silent)


class TestTurning:
    """Homographies between photos of a lens of 280 pixels focal length, 240x320 pixels."""

    lens = np.array([[280.0, 0, 160], [0, 280, 120], [0, 0, 1]])

    def relate(self, angle: float, shift: tuple[float, float, float], tilt: float) -> np.ndarray:
        """The camera turns by `angle` and moves by `shift` before a wall at distance 1 that is tilted by `tilt`."""
        cos, sin = np.cos(angle), np.sin(angle)
        rotation = np.array([[cos, 0, sin], [0, 1, 0], [-sin, 0, cos]])
        normal = np.array([np.sin(tilt), 0, np.cos(tilt)])
        return -3.0 * self.lens @ (rotation + np.outer(shift, normal)) @ np.linalg.inv(self.lens)

    @pytest.mark.parametrize(("step", "turned"), [(0.0, True), (0.1, False)])
    def test_turning_on_the_spot_is_told_from_passing_a_wall(self, step, turned):
        angles = np.linspace(-0.4, 0.4, 6)
        pairs = [
            Pair(a, b, self.relate(angles[b] - angles[a], (step * (b - a), 0, 0), 0.3))
            for a in range(6)
            for b in range(a + 1, 6)
        ]
        assert only_turned(pairs, [(240, 320)] * 6) == turned
        with_depth = [Pair(pair.first, pair.second, None) for pair in pairs[:5]] + pairs[5:]
        assert not only_turned(with_depth, [(240, 320)] * 6)

    def test_the_focal_length_shows_in_the_rotation(self):
        pair = Pair(0, 1, self.relate(0.3, (0, 0, 0), 0))
        assert stretch(pair, 280 / 320, [(240, 320)] * 2) == pytest.approx(0, abs=1e-9)
        assert stretch(pair, 1.3 * 280 / 320, [(240, 320)] * 2) > 0.01

    def test_no_pairs(self):
        assert not only_turned([], [(240, 320)] * 3)
