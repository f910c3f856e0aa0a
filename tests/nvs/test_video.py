"""Films and picture folders: decoded again and compared, and everything that can go wrong on the way."""

import re
import resource
import subprocess

import imageio_ffmpeg
import numpy as np
import pytest
import torch
from PIL import Image

from data import UserError
from nvs.video import check_output, check_writable, open_video


def moving_picture(count, h, w):
    """A soft colourful pattern that moves: easy on 4:2:0, and each frame differs from the others."""
    y, x = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    frames = []
    for i in range(count):
        waves = [torch.sin((x + 2 * i) / 9.0), torch.cos((y - i) / 7.0), torch.sin((x + y + 3 * i) / 11.0)]
        frames.append(0.5 + 0.45 * torch.stack(waves))
    return frames


def film(path, frames, fps=24.0, image_size=None):
    with open_video(path, image_size or tuple(frames[0].shape[-2:]), len(frames), fps) as video:
        for frame in frames:
            video.write(frame)


def probe(path):
    """What ffmpeg tells about a film: codec, pixel format, (width, height), frames per second."""
    told = subprocess.run([imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path)], capture_output=True, text=True).stderr
    line = next(line for line in told.splitlines() if "Video:" in line)
    size = re.search(r", (\d+)x(\d+)", line)
    return (
        re.search(r"Video: (\w+)", line)[1],
        re.search(r"(yuv\w+|gbrp|bgra)", line)[1],
        (int(size[1]), int(size[2])),
        float(re.search(r"([\d.]+) fps", line)[1]),
    )


def decode(path):
    reader = imageio_ffmpeg.read_frames(str(path))
    w, h = next(reader)["size"]
    return torch.stack(
        [
            torch.from_numpy(np.frombuffer(raw, np.uint8).copy()).reshape(h, w, 3).permute(2, 0, 1) / 255
            for raw in reader
        ]
    )


def psnr(a, b):
    return (-10 * torch.log10(((a - b) ** 2).mean())).item()


class TestMp4:
    @pytest.mark.parametrize(("size", "count", "fps"), [((35, 61), 8, 10.0), ((64, 96), 30, 29.97), ((2, 2), 1, 24.0)])
    def test_plays_everywhere_and_shows_each_frame(self, tmp_path, size, count, fps):
        frames = moving_picture(count, *size)
        film(tmp_path / "film.mp4", frames, fps)
        padded = tuple(side + side % 2 for side in size)
        assert probe(tmp_path / "film.mp4") == ("h264", "yuv420p", padded[::-1], fps)
        shown = decode(tmp_path / "film.mp4")
        assert shown.shape == (count, 3, *padded)
        for image, frame in zip(shown, frames, strict=True):
            assert psnr(image[:, : size[0], : size[1]], frame) > 30

    def test_colours_are_those_of_the_frames(self, tmp_path):
        colours = [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (1.0, 1.0, 1.0), (0.0, 0.0, 0.0), (0.2, 0.5, 0.8)]
        film(tmp_path / "film.mp4", [torch.tensor(c)[:, None, None].expand(3, 32, 32) for c in colours])
        middle = decode(tmp_path / "film.mp4")[:, :, 16, 16]
        assert (middle - torch.tensor(colours)).abs().max() < 4 / 255

    def test_index_comes_before_the_pictures(self, tmp_path):
        film(tmp_path / "film.mp4", moving_picture(5, 32, 32))
        content = (tmp_path / "film.mp4").read_bytes()
        assert 0 < content.index(b"moov") < content.index(b"mdat")

    def test_same_pictures_are_all_kept(self, tmp_path):
        film(tmp_path / "film.mp4", [torch.full((3, 16, 16), 0.5)] * 12)
        assert len(decode(tmp_path / "film.mp4")) == 12


class TestGif:
    def test_has_every_frame_at_its_size_and_speed(self, tmp_path):
        frames = moving_picture(9, 35, 61)
        film(tmp_path / "film.gif", frames + frames[-1:], fps=10)
        with Image.open(tmp_path / "film.gif") as gif:
            assert gif.size == (61, 35) and gif.n_frames == 10 and gif.info["loop"] == 0
            times = []
            for i in range(10):
                gif.seek(i)
                times.append(gif.info["duration"])
                shown = torch.from_numpy(np.array(gif.convert("RGB"))).permute(2, 0, 1) / 255
                assert psnr(shown, frames[min(i, 8)]) > 27
        assert times[:-1] == [100] * 9


class TestFolder:
    @pytest.mark.parametrize("name", ["frames", "frames/", "v1.2/", "deep/er/frames"])
    def test_holds_exact_pictures(self, tmp_path, name):
        frames = moving_picture(3, 35, 61)
        film(f"{tmp_path}/{name}", frames)
        files = sorted((tmp_path / name).iterdir())
        assert [f.name for f in files] == ["frame_0000.png", "frame_0001.png", "frame_0002.png"]
        for file, frame in zip(files, frames, strict=True):
            with Image.open(file) as image:
                levels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
            assert levels.shape == (3, 35, 61) and (levels / 255 - frame).abs().max() <= 0.5 / 255 + 1e-6
        assert not list(tmp_path.glob("**/.*"))

    def test_fills_an_empty_folder(self, tmp_path):
        film(tmp_path, moving_picture(2, 4, 4))
        assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("name", ["film.mp4", "film.gif", "frames/"])
class TestNothingHalfWritten:
    @pytest.mark.parametrize("reason", [RuntimeError, KeyboardInterrupt])
    def test_when_rendering_stops(self, tmp_path, name, reason):
        frames = moving_picture(2, 16, 16)
        with pytest.raises(reason), open_video(f"{tmp_path}/{name}", (16, 16), 5) as video:
            video.write(frames[0])
            raise reason
        assert not list(tmp_path.iterdir())

    def test_when_frames_are_missing_or_wrong(self, tmp_path, name):
        frames = moving_picture(2, 16, 16)
        with (
            pytest.raises(ValueError, match="3 frames but got 2"),
            open_video(f"{tmp_path}/{name}", (16, 16), 3) as video,
        ):
            for frame in frames:
                video.write(frame)
        with pytest.raises(ValueError, match="the film takes"):
            film(f"{tmp_path}/{name}", frames, image_size=(16, 18))
        assert not list(tmp_path.iterdir())

    def test_when_the_disk_is_full(self, tmp_path, name):
        noise = torch.rand(3, 128, 128, generator=torch.Generator().manual_seed(0))
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        try:
            with pytest.raises(UserError, match="disk"):
                film(f"{tmp_path}/{name}", [noise] * 20)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert not list(tmp_path.iterdir())


class TestRefusedBeforeTheFirstFrame:
    @pytest.mark.parametrize(
        ("name", "fps", "message"),
        [
            ("film.avi", 24, "ends in .avi"),
            ("picture.png", 24, "or a folder"),
            ("film.mp4", 0, "frames per second"),
            ("film.mp4", float("nan"), "frames per second"),
            ("film.gif", 60, "at most 50"),
            ("photos", 24, "not empty"),
            ("note", 24, "is a file"),
            ("note/film.mp4", 24, "Nothing can be written"),
            ("note/frames/", 24, "Nothing can be written"),
        ],
    )
    def test_place_format_and_speed(self, tmp_path, name, fps, message):
        (tmp_path / "photos").mkdir()
        (tmp_path / "photos" / "frame_0000.png").write_bytes(b"a photo")
        (tmp_path / "note").write_text("a note")
        with pytest.raises(UserError, match=message):
            check_output(f"{tmp_path}/{name}", fps)
        with pytest.raises(UserError, match=message), open_video(f"{tmp_path}/{name}", (4, 4), 1, fps):
            pytest.fail("the block must not be entered")
        assert (tmp_path / "photos" / "frame_0000.png").read_bytes() == b"a photo"
        assert sorted(p.name for p in tmp_path.iterdir()) == ["note", "photos"]

    def test_nothing_is_made_yet(self, tmp_path):
        assert check_output(f"{tmp_path}/deep/er/film.mp4") == "mp4"
        assert check_output(f"{tmp_path}/deep/er/frames/") == "folder"
        check_writable(tmp_path / "deep/er/numbers.json")
        assert not list(tmp_path.iterdir())

    def test_a_folder_is_no_file(self, tmp_path):
        with pytest.raises(UserError, match="is a folder: give the name of a file in it"):
            check_writable(tmp_path)

    def test_no_frames(self, tmp_path):
        with pytest.raises(UserError, match="no frames"), open_video(tmp_path / "film.mp4", (4, 4), 0):
            pytest.fail("the block must not be entered")

    @pytest.mark.parametrize("program", ["/bin/false", "/no/such/ffmpeg"])
    def test_ffmpeg_that_does_not_work(self, tmp_path, monkeypatch, program):
        monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", lambda: program)
        with pytest.raises(UserError, match="pip install imageio-ffmpeg"):
            check_output(tmp_path / "film.mp4")
        assert check_output(f"{tmp_path}/frames/") == "folder"

    def test_an_older_film_stays_until_the_new_one_is_complete(self, tmp_path):
        (tmp_path / "film.mp4").write_bytes(b"old")
        with pytest.raises(RuntimeError), open_video(tmp_path / "film.mp4", (4, 4), 2):
            raise RuntimeError
        assert (tmp_path / "film.mp4").read_bytes() == b"old"
        film(tmp_path / "film.mp4", moving_picture(2, 4, 4))
        assert len(decode(tmp_path / "film.mp4")) == 2
