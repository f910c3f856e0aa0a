"""Writing rendered frames as an mp4 or gif film or as a folder of png files: all of it, or nothing.

    with open_video("orbit.mp4", image_size=(256, 256), frames=120, fps=24) as video:
        for image in renderer.frames(cameras):
            video.write(image)

Films are written by ffmpeg. What cannot work is refused before the first frame; the file appears under its name when
it is complete and its frames have been counted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from data import UserError, write_atomic
from nvs.sheet import to_picture

Kind = Literal["mp4", "gif", "folder"]
MAX_GIF_FPS = 50.0
"""A gif counts time in hundredths of a second, and browsers slow down frames that are shown for less than two."""

CODECS = {"mp4": ("libx264", "yuv420p"), "gif": ("gif", "pal8")}
"""Encoder and pixel format of each kind of film; H.264 in 4:2:0 is what every browser and phone plays."""


class NoFfmpeg(UserError):
    """There is no ffmpeg that can write this kind of film; pictures can still be written."""


class Film:
    """Sends frames to ffmpeg, which encodes them into a file."""

    def __init__(self, path: Path, kind: Kind, image_size: tuple[int, int], fps: float) -> None:
        import imageio_ffmpeg

        codec, pixels = CODECS[kind]
        self.path, self.image_size, self.count = path, image_size, 0
        self._process = imageio_ffmpeg.write_frames(
            str(path),
            image_size[::-1],
            fps=fps,  # type: ignore[arg-type]
            codec=codec,
            pix_fmt_out=pixels,
            quality=None,  # type: ignore[arg-type]
            macro_block_size=1,
            ffmpeg_log_level="quiet",
            output_params=_options(kind, image_size),
        )
        self._process.send(None)

    def write(self, image: Float[Tensor, "3 h w"]) -> None:
        """Add one frame with values in 0..1."""
        try:
            self._process.send(_pixels(image, self.image_size))
        except OSError as error:
            raise UserError(_failure(self.path.parent)) from error
        self.count += 1

    def close(self) -> None:
        """Wait for ffmpeg to finish the file."""
        self._process.close()

    def complete(self) -> bool:
        """Whether the closed file holds every frame; they are decoded and counted."""
        import imageio_ffmpeg

        try:
            return imageio_ffmpeg.count_frames_and_secs(str(self.path))[0] == self.count
        except RuntimeError:
            return False


class Folder:
    """Writes frame_0000.png, frame_0001.png, ... into a folder."""

    def __init__(self, path: Path, image_size: tuple[int, int], frames: int) -> None:
        self.path, self.image_size, self.count = path, image_size, 0
        self._digits = max(4, len(str(frames - 1)))

    def write(self, image: Float[Tensor, "3 h w"]) -> None:
        """Add one frame with values in 0..1."""
        picture = Image.fromarray(_pixels(image, self.image_size))
        try:
            picture.save(self.path / f"frame_{self.count:0{self._digits}d}.png")
        except OSError as error:
            raise UserError(_failure(self.path.parent)) from error
        self.count += 1

    def close(self) -> None:
        """Nothing is left to do."""

    def complete(self) -> bool:
        """Whether every frame is there."""
        return len(list(self.path.iterdir())) == self.count


@contextmanager
def open_video(
    path: str | os.PathLike[str], image_size: tuple[int, int], frames: int, fps: float = 24.0
) -> Iterator[Film | Folder]:
    """Write exactly `frames` frames of `image_size` (h, w) to an .mp4, a .gif or a folder, at `fps` frames per second.

    Whatever ends the block early, Ctrl-C included, leaves nothing behind. Raises UserError if the place, the format or
    the count is wrong.
    """
    kind = check_output(path, fps)
    if frames < 1:
        raise UserError(f"{path} would have no frames: ask for 1 or more.")
    staged = _staged_folder(Path(path)) if kind == "folder" else write_atomic(path)
    with staged as place:
        writer = Folder(place, image_size, frames) if kind == "folder" else Film(place, kind, image_size, fps)
        try:
            yield writer
        finally:
            writer.close()
        if writer.count != frames:
            raise ValueError(f"{path} was to have {frames} frames but got {writer.count}; nothing is written")
        if not writer.complete():
            raise UserError(_failure(place.parent))


def check_output(path: str | os.PathLike[str], fps: float = 24.0) -> Kind:
    """Find out from the path what is to be written, and raise UserError if that could not be done.

    A folder has no suffix, ends in "/" or exists already. Raises NoFfmpeg if only films cannot be written.
    """
    kind = _kind(path)
    if not 0 < fps <= 1000:
        raise UserError(f"A film cannot have {fps:g} frames per second: choose a number from 1 to 120.")
    if kind == "gif" and fps > MAX_GIF_FPS:
        raise UserError(f"A gif shows at most {MAX_GIF_FPS:g} frames per second, not {fps:g}: write an mp4.")
    place = Path(path).absolute()
    if kind == "folder" and place.is_dir() and any(place.iterdir()):
        raise UserError(f"The folder {path} is not empty: choose a new one, so that no picture is overwritten.")
    if kind == "folder":
        _check_folder(place.parent)
        return kind
    check_writable(place)
    _check_codec(kind)
    return kind


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise UserError if no file `path` can be made; missing parent folders are no hindrance and are not made yet."""
    place = Path(path).absolute()
    if place.is_dir():
        raise UserError(f"{path} is a folder: give the name of a file in it.")
    _check_folder(place.parent)


def _check_folder(folder: Path) -> None:
    """Raise UserError if nothing can be written to a folder, or made where it is to be."""
    try:
        there = next(place for place in (folder, *folder.parents) if place.exists())
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise UserError(f"Nothing can be written to {folder} ({error.strerror}): choose another place.") from None


def _kind(path: str | os.PathLike[str]) -> Kind:
    text, suffix = os.fspath(path), Path(path).suffix.lower()
    if not text or text.endswith(("/", os.sep)) or Path(path).is_dir() or not suffix:
        if Path(path).is_file():
            raise UserError(f"{path} is a file: give a folder for png pictures, or a name that ends in .mp4 or .gif.")
        return "folder"
    if suffix == ".mp4":
        return "mp4"
    if suffix == ".gif":
        return "gif"
    raise UserError(
        f"{path} ends in {suffix}: give a name that ends in .mp4 or .gif, or a folder (ending in /) for png."
    )


def _check_codec(kind: Kind) -> None:
    """Encode one tiny picture to nowhere: only this shows that ffmpeg and its encoder are there and run."""
    import imageio_ffmpeg

    codec, pixels = CODECS[kind]
    advice = "install it with `pip install imageio-ffmpeg`, or write png pictures into a folder"
    try:
        ffmpeg = imageio_ffmpeg.get_ffmpeg_exe()
        source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", "16x16", "-i", "-"]
        command = [ffmpeg, "-v", "quiet", *source, "-c:v", codec, "-pix_fmt", pixels, "-f", "null", "-"]
        worked = subprocess.run(command, input=bytes(16 * 16 * 3), capture_output=True, timeout=60).returncode == 0
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        raise NoFfmpeg(f"An {kind} film needs ffmpeg, which does not run here: {advice}.") from error
    if not worked:
        raise NoFfmpeg(f"The ffmpeg at {ffmpeg} cannot write {kind} (encoder {codec}): {advice}.")


def _options(kind: Kind, image_size: tuple[int, int]) -> list[str]:
    """What ffmpeg is told beyond encoder and pixel format."""
    if kind == "gif":
        # One palette for each frame: no frame waits for the last one, and colours do not drift over a long film.
        return ["-vf", "split[a][b];[a]palettegen=stats_mode=single[p];[b][p]paletteuse=new=1", "-f", "gif"]
    h, w = image_size
    # 4:2:0 needs even sizes: a row or column is added, never a stretch. It repeats its neighbour, because the two share
    # their colour and black would bleed into the picture.
    even = f"pad=ceil(iw/2)*2:ceil(ih/2)*2,fillborders=right={w % 2}:bottom={h % 2}:mode=smear"
    # The colour matrix is written into the file, because players guess it from the size otherwise.
    color = "scale=out_color_matrix=bt709:out_range=tv:flags=accurate_rnd"
    tags = ["-colorspace", "bt709", "-color_primaries", "bt709", "-color_trc", "bt709", "-color_range", "tv"]
    return ["-crf", "15", "-vf", f"{even},{color}", *tags, "-movflags", "+faststart", "-f", "mp4"]


@contextmanager
def _staged_folder(path: Path) -> Iterator[Path]:
    """A folder beside `path` whose files move into `path` when the block has ended well."""
    place = path.absolute()
    staged = place.parent / f".{place.name}.{os.getpid()}.partial"
    staged.mkdir(parents=True)
    try:
        yield staged
        place.mkdir(exist_ok=True)
        for file in sorted(staged.iterdir()):
            file.replace(place / file.name)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _pixels(image: Tensor, image_size: tuple[int, int]) -> np.ndarray:
    if tuple(image.shape) != (3, *image_size):
        raise ValueError(f"a frame has shape {tuple(image.shape)}, the film takes {(3, *image_size)}")
    return np.ascontiguousarray(to_picture(image))


def _failure(folder: Path) -> str:
    if shutil.disk_usage(folder).free < 2**20:
        return f"The disk of {folder} is full, and nothing was written: free some space or choose another place."
    return f"A film or picture could not be written to {folder}: check that the disk has space and works."
