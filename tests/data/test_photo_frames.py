"""Frames of a video: which are sharp, how they are spread, and that they come as the film is shown."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest
from photo_samples import silent, write_film
from PIL import Image

from data import UserError
from data.photos import video

SHARP_EVERY = 5


@pytest.fixture(scope="module")
def film(tmp_path_factory) -> Path:
    """60 frames of 96x128 pixels of a camera that moves over a random pattern; one in five is not blurred."""
    rng = np.random.default_rng(0)
    pattern = np.kron(rng.random((48, 400)), np.ones((2, 2)))

    def frame(index: int) -> np.ndarray:
        views = 1 if index % SHARP_EVERY == 2 else 8
        return np.mean([pattern[:, 6 * index + shift :][:, :128] for shift in range(views)], axis=0)

    return write_film(tmp_path_factory.mktemp("film") / "film.mp4", [frame(i) for i in range(60)])


def test_sharp_frames_are_chosen_evenly(film):
    sharpness, change = video.scan(film, silent)
    assert len(sharpness) == len(change) == 60
    sharp = np.arange(60) % SHARP_EVERY == 2
    assert sharpness[sharp].min() > 1.5 * sharpness[~sharp].max()
    assert video.choose_frames(sharpness, change, 12) == list(np.flatnonzero(sharp))


@pytest.mark.parametrize("rotation", [0, 90])
def test_frames_are_written_as_the_film_is_shown(film, tmp_path, rotation):
    turned = tmp_path / "turned.mp4"
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-display_rotation:v:0", str(rotation), "-i", str(film)]
    subprocess.run([*command, "-c", "copy", str(turned)], check=True)
    numbers = video.extract_frames(turned, tmp_path / "frames", 6, 64, silent)
    files = sorted((tmp_path / "frames").iterdir())
    assert [int(file.stem.removeprefix("frame_")) for file in files] == numbers
    assert len(numbers) == 6
    pictures = [Image.open(file) for file in files]
    assert {picture.size for picture in pictures} == {(48, 64) if rotation else (64, 48)}
    # The chosen numbers name the right frames: the same ones decoded one by one.
    every = list(video.read_grey(turned, 64))
    for number, picture in zip(numbers, pictures, strict=True):
        difference = np.asarray(picture.convert("L")).astype(float) - every[number]
        assert np.abs(difference).mean() < 3
    assert not (tmp_path / "frames.part").exists()


def test_stillness_is_not_sampled_as_densely_as_motion():
    change = np.array([0.0] * 100 + [1.0] * 100)
    chosen = video.choose_frames(np.ones(200), change, 20)
    assert len(chosen) == 20
    assert sum(number < 100 for number in chosen) <= 2
    assert max(np.diff([n for n in chosen if n >= 100])) <= 10


def test_frames_keep_their_distance():
    rng = np.random.default_rng(1)
    chosen = video.choose_frames(rng.random(300), np.ones(300), 30)
    assert len(chosen) == 30
    assert min(np.diff(chosen)) >= 3 and max(np.diff(chosen)) <= 17


def test_a_short_film_gives_all_its_frames():
    assert video.choose_frames(np.ones(4), np.zeros(4), 9) == [0, 1, 2, 3]


def test_non_square_pixels_become_square(tmp_path, film):
    wide = tmp_path / "wide.mp4"
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(film), "-vf", "setsar=2"]
    subprocess.run([*command, str(wide)], check=True)
    assert next(iter(video.read_grey(wide, 640))).shape == (96, 256)


def test_small_films_are_not_enlarged(film):
    assert next(iter(video.read_grey(film, 4000))).shape == (96, 128)


@pytest.mark.parametrize("write", [lambda p: p.write_text("hello\n"), lambda p: p.write_bytes(b"")])
def test_what_is_no_film_is_told(tmp_path, write: Callable[[Path], object]):
    path = tmp_path / "note.mp4"
    write(path)
    with pytest.raises(UserError, match=r"note\.mp4 cannot be read as a video"):
        video.extract_frames(path, tmp_path / "frames", 6, 64, silent)
    assert not (tmp_path / "frames").exists()
