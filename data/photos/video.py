"""Sharp and well-spread frames of a video, decoded by the ffmpeg that imageio-ffmpeg brings.

The video is decoded twice: first small and grey, to see how sharp each frame is and how much changes between frames;
then the chosen frames at full quality. ffmpeg applies the rotation tag of phones, so frames come as they are shown.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
from jaxtyping import Float, Int, UInt8

from data.errors import UserError
from data.photos.collect import Step

VIDEO_SUFFIXES = (".mp4", ".mov", ".m4v", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".mts", ".3gp", ".wmv", ".gif")
SCAN_SIZE = 640
"""Longest side in pixels at which sharpness is judged: smaller pictures hide motion blur, larger ones take longer."""

THUMBNAIL = 24
STILL = 0.1
"""How fast time counts when nothing changes, relative to the mean change per frame."""

CENTRAL = 0.75
"""The part of each stretch of the video that a frame may be taken from, so that neighbours keep their distance."""


def is_video(path: Path) -> bool:
    """Whether a file's suffix is that of a film."""
    return path.suffix.lower() in VIDEO_SUFFIXES and path.is_file()


def extract_frames(path: Path, folder: Path, count: int, max_size: int, on_step: Step) -> list[int]:
    """Write up to `count` chosen frames as png into `folder`, longest side at most `max_size`; returns their numbers.

    The folder appears when it is complete; frame_000012.png is the thirteenth frame of the video.
    """
    sharpness, change = scan(path, on_step)
    numbers = choose_frames(sharpness, change, count)
    partial = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    selected = "+".join(rf"eq(n\,{number})" for number in numbers)
    with tempfile.TemporaryFile() as log:
        filters = f"select={selected},{_fit(max_size)}"
        subprocess.run(_ffmpeg(path, filters, ["-c:v", "png", str(partial / "%06d.png")]), stderr=log, check=False)
        written = sorted(partial.iterdir())
        if len(written) != len(numbers):
            raise UserError(
                f"{path}: {len(written)} of {len(numbers)} frames could be written{_complaint(log)}. "
                "Check that the disk has room, and convert the video to .mp4 (H.264)."
            )
    for number, file in zip(numbers, written, strict=True):
        file.rename(partial / f"frame_{number:06d}.png")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    return numbers


def scan(path: Path, on_step: Step) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """For every frame its sharpness, and how much it differs from the one before (both 0 or more, no unit)."""
    sharpness: list[float] = []
    change: list[float] = []
    before: np.ndarray | None = None
    total = _count_frames(path)
    for picture in read_grey(path, SCAN_SIZE):
        pixels = picture.astype(np.float32) / 255
        small = thumbnail(pixels)
        sharpness.append(measure_sharpness(pixels))
        change.append(0.0 if before is None else float(np.abs(small - before).mean()))
        before = small
        on_step("looking through the video", min(len(change), total), max(total, 1))
    return np.array(sharpness), np.array(change)


def choose_frames(sharpness: Float[np.ndarray, " n"], change: Float[np.ndarray, " n"], count: int) -> list[int]:
    """Numbers of `count` frames (or all): the sharpest of each of `count` stretches in which equally much changes."""
    if len(sharpness) <= count:
        return list(range(len(sharpness)))
    pace = change + STILL * max(float(change.mean()), 1e-6)
    passed = np.cumsum(pace) - pace / 2
    stretch = passed / pace.sum() * count
    chosen = []
    for index in range(count):
        inside = np.flatnonzero(stretch.astype(int) == index)
        central = inside[np.abs(stretch[inside] - index - 0.5) <= CENTRAL / 2]
        frames: Int[np.ndarray, " m"] = central if len(central) else inside
        if len(frames):
            chosen.append(int(frames[sharpness[frames].argmax()]))
    return chosen


def measure_sharpness(pixels: Float[np.ndarray, "h w"]) -> float:
    """Mean squared Laplacian over the variance: how much of the contrast lies in the finest detail."""
    center = pixels[1:-1, 1:-1]
    laplacian = pixels[:-2, 1:-1] + pixels[2:, 1:-1] + pixels[1:-1, :-2] + pixels[1:-1, 2:] - 4 * center
    return float((laplacian**2).mean() / (pixels.var() + 1e-4))


def thumbnail(pixels: Float[np.ndarray, "h w"]) -> Float[np.ndarray, "h2 w2"]:
    """Means over blocks, about THUMBNAIL a side, less the overall mean (so that exposure does not count as motion)."""
    h, w = pixels.shape
    block_h, block_w = max(1, h // THUMBNAIL), max(1, w // THUMBNAIL)
    rows, columns = h // block_h, w // block_w
    cut = pixels[: rows * block_h, : columns * block_w]
    small = cut.reshape(rows, block_h, columns, block_w).mean((1, 3))
    return small - small.mean()


def read_grey(path: Path, max_size: int) -> Iterator[UInt8[np.ndarray, "h w"]]:
    """All frames in grey, as they are shown, longest side at most `max_size`."""
    command = _ffmpeg(path, _fit(max_size), ["-pix_fmt", "gray", "-c:v", "pgm", "-f", "image2pipe", "-"])
    with tempfile.TemporaryFile() as log, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log) as process:
        assert process.stdout is not None
        frames = 0
        try:
            while (picture := _read_pgm(process.stdout)) is not None:
                frames += 1
                yield picture
        finally:
            process.kill()
        if not frames:
            raise UserError(
                f"{path} cannot be read as a video{_complaint(log)}. Give a folder with photos, or a film such as .mp4."
            )


def _ffmpeg(path: Path, filters: str, output: list[str]) -> list[str]:
    import imageio_ffmpeg

    # Passing every frame through once gives both passes the same numbers, also where the frame rate varies.
    source = ["-v", "error", "-nostdin", "-i", str(path.resolve()), "-map", "0:v:0", "-fps_mode", "passthrough"]
    return [imageio_ffmpeg.get_ffmpeg_exe(), *source, "-vf", filters, *output]


def _fit(max_size: int) -> str:
    """An ffmpeg filter: square pixels, then never larger than before and at most `max_size` on the longer side."""
    longest = rf"min({max_size}\,max(iw\,ih))"
    return f"scale=iw*sar:ih,setsar=1,scale={longest}:{longest}:force_original_aspect_ratio=decrease"


def _read_pgm(stream: IO[bytes]) -> np.ndarray | None:
    """The next picture of a stream of 8-bit PGM files, or None at its end."""
    if stream.readline().strip() != b"P5":
        return None
    w, h = map(int, stream.readline().split())
    stream.readline()
    data = stream.read(w * h)
    return np.frombuffer(data, np.uint8).reshape(h, w) if len(data) == w * h else None


def _count_frames(path: Path) -> int:
    """About how many frames a video has, quickly; 0 where that cannot be told."""
    import imageio_ffmpeg

    try:
        return imageio_ffmpeg.count_frames_and_secs(str(path.resolve()))[0] or 0
    except (RuntimeError, OSError, ValueError, IndexError):
        return 0


def _complaint(log: IO[bytes]) -> str:
    """The last thing ffmpeg wrote, in brackets."""
    log.seek(0)
    lines = log.read().decode("utf-8", "replace").strip().splitlines()
    return f" ({lines[-1].strip().rstrip('.')})" if lines else ""
