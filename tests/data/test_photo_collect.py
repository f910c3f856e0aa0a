"""Which photos are taken, which share a camera, and which pairs are matched."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from photo_samples import save_photo, silent
from PIL import Image

from data import UserError
from data.photos import collect, pairs
from data.photos.collect import Photo


@pytest.fixture
def photos(tmp_path) -> Path:
    folder = tmp_path / "photos"
    for i in range(7):
        save_photo(folder / f"photo {i + 8}.jpg", seed=i)
    return folder


class TestCollect:
    def test_pictures_of_a_folder_in_natural_order(self, photos):
        (photos / "notes.txt").write_text("hello")
        save_photo(photos / ".hidden.jpg")
        save_photo(photos / "small" / "thumbnail.jpg")
        assert [name for name, _ in collect.list_photos([photos])] == [f"photo {i}.jpg" for i in range(8, 15)]

    def test_a_zip_stands_for_the_folder_in_it(self, photos, tmp_path):
        loose = collect.list_photos([photos])
        packed = collect.list_photos([Path(shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path, "photos"))])
        assert [name for name, _ in packed] == [name for name, _ in loose]
        assert [path.read_bytes() for _, path in packed] == [path.read_bytes() for _, path in loose]
        (tmp_path / "broken.zip").write_bytes(b"no archive")
        with pytest.raises(UserError, match="cannot be unpacked"):
            collect.list_photos([tmp_path / "broken.zip"])

    def test_sub_folders_count_only_if_the_folder_has_none(self, tmp_path):
        for name in ("b/1.jpg", "a/1.jpg", "a/2.PNG"):
            save_photo(tmp_path / name)
        read, _ = collect.read_photos(collect.list_photos([tmp_path]), silent)
        assert [photo.name for photo in read] == ["a/1", "a/2", "b/1"]

    def test_names_stay_apart_without_suffix(self, tmp_path):
        paths = [save_photo(tmp_path / name) for name in ("a.jpg", "a.png", "A.tif")]
        read, _ = collect.read_photos(collect.list_photos(paths), silent)
        assert len({photo.name.lower() for photo in read}) == 3

    def test_exif_tells_focal_length_and_lens_and_the_stored_raster_counts(self, tmp_path):
        exif = Image.Exif()
        exif[0x0112], exif[0x010F], exif[0x0110] = 6, "Maker", "Phone 1"
        exif.get_ifd(0x8769).update({0x920A: 4.3, 0xA405: 26})
        path = save_photo(tmp_path / "a.jpg", (60, 80), exif=exif)
        photo = collect.read_photo("a.jpg", path)
        assert photo.size == (60, 80) and photo.turned
        assert photo.lens == ("Maker", "Phone 1", "4.3 mm")
        # A 26 mm lens on film of 36 x 24 mm; the diagonal of 80 x 60 pixels is 100.
        assert photo.focal == pytest.approx(26 / np.hypot(36, 24) * 100 / 80)

    def test_one_camera_per_size_and_lens(self):
        sizes_and_lenses = [((60, 80), "a"), ((80, 60), "a"), ((60, 80), "a"), ((60, 80), "b")]
        taken = [Photo(Path(f"{i}"), f"{i}", size, lens=(lens,)) for i, (size, lens) in enumerate(sizes_and_lenses)]
        assert collect.group_cameras(taken) == [[0, 2], [1], [3]]

    @pytest.mark.parametrize("suffix", [".jpg", ".png"])
    def test_a_scaled_photo_has_the_colours_of_the_whole(self, tmp_path, suffix):
        path = save_photo(tmp_path / f"a{suffix}", (480, 640), blur=80, quality=95)
        small = collect.load_scaled(path, (48, 64)).permute(1, 2, 0).numpy()
        with Image.open(path) as photo:
            expected = np.asarray(photo.convert("RGB")).reshape(48, 10, 64, 10, 3).mean((1, 3)) / 255
        assert np.abs(small - expected).mean() < 0.01

    def test_hidden_colour_does_not_bleed_into_edges(self, tmp_path):
        rows, columns = np.mgrid[:300, :300]
        inside = (rows - 150) ** 2 + (columns - 150) ** 2 < 100**2
        pixels = np.where(inside[..., None], [200, 200, 200, 255], [0, 0, 0, 0]).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "disc.png")
        small = collect.load_scaled(tmp_path / "disc.png", (70, 70))
        color, alpha = small[:3], small[3:]
        assert (color[:, alpha[0] > 0.02] - 200 / 255).abs().max() < 1 / 255
        assert alpha.mean() == pytest.approx(inside.mean(), abs=1e-3)

    def test_unreadable_photos_are_named(self, photos):
        (photos / "broken.jpg").write_bytes(b"no picture")
        read, unreadable = collect.read_photos(collect.list_photos([photos]), silent)
        assert len(read) == 7
        assert [name for name, _ in unreadable] == ["broken.jpg"]

    def test_too_few_photos(self, tmp_path):
        save_photo(tmp_path / "a.jpg"), save_photo(tmp_path / "b.jpg")
        (tmp_path / "c.jpg").write_bytes(b"")
        with pytest.raises(UserError, match=r"2 readable photos.* 3 are needed; c\.jpg: the file is empty"):
            collect.read_photos(collect.list_photos([tmp_path]), silent)

    def test_an_empty_folder(self, tmp_path):
        with pytest.raises(UserError, match="holds no photos"):
            collect.list_photos([tmp_path])

    def test_a_path_that_is_not_there(self, tmp_path):
        with pytest.raises(UserError, match="does not exist"):
            collect.list_photos([tmp_path / "nothing"])


class TestPairs:
    def test_few_photos_are_all_matched(self):
        way = pairs.resolve("auto", 59, in_order=False)
        assert way == "exhaustive"
        assert len(pairs.choose_pairs(way, 59, [])) == 59 * 58 // 2
        assert pairs.resolve("auto", 60, in_order=True) == "sequential"
        assert pairs.resolve("auto", 60, in_order=False) == "similar"
        assert pairs.resolve("exhaustive", 500, in_order=True) == "exhaustive"

    @pytest.mark.parametrize("way", ["sequential", "similar"])
    def test_places_are_recognised_when_the_camera_comes_back(self, way):
        """Photos 0..39 walk past 40 places and 40..79 walk back: photo 79 - i shows the place of photo i."""
        rng = np.random.default_rng(0)
        places = [rng.integers(0, 100, (60, 128)) for _ in range(40)]

        def look(place: int) -> np.ndarray:
            return (places[place] + rng.integers(0, 20, (60, 128))).astype(np.uint8)

        found = pairs.choose_pairs(way, 80, [look(i if i < 40 else 79 - i) for i in range(80)])
        assert found == sorted(set(found)) and all(a < b for a, b in found)
        assert all((i, 79 - i) in found for i in range(40))
        assert all((i, i + 1) in found for i in range(79))
        assert len(found) < 80 * 79 // 2
