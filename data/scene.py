"""A capture on disk: which photos it has and how they were seen. Opening it loads no pixels."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from jaxtyping import Float64, UInt8
from torch import Tensor

from data import normalization as norm
from data import sampling
from data.archive import keep_inside, unpack
from data.background import Color, parse_background
from data.cameras import Cameras
from data.errors import UserError
from data.files import natural_key
from data.frames import BadFrame, Capture, Checked, Frame, Listing, make_frame
from data.images import Fit, PhotoCache, PhotoError, read_header
from data.parsers import parse_capture
from data.views import Views

MAX_NAMED = 5
MIN_PIXELS_FOR_THREADS = 1_000_000


@dataclass(frozen=True, eq=False)
class Scene:
    """A capture and the similarity `world_to_scene` from its own world to the frame that models see.

    Frames are in the natural order of their names, folder by folder. `warnings` says what was left out or looks
    wrong, `notes` what was chosen on the way, one line each. `background` (0..1) lies behind transparent photos.
    """

    name: str
    path: Path
    format: str
    frames: tuple[Frame, ...]
    split: dict[str, list[int]]
    background: Color
    world_to_scene: Float64[np.ndarray, "4 4"]
    normalization: norm.Normalization
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    cache: PhotoCache = field(default_factory=PhotoCache, repr=False)

    def __len__(self) -> int:
        """Number of usable frames."""
        return len(self.frames)

    def __repr__(self) -> str:
        """One line: the frames of a capture fill a screen."""
        return f"Scene({self.name!r}, {self.format}, {len(self)} frames, path={str(self.path)!r})"

    @property
    def world_c2w(self) -> Float64[np.ndarray, "n 4 4"]:
        """Camera-to-world matrices of all frames in the capture's own world."""
        return np.stack([frame.c2w for frame in self.frames])

    @property
    def part_meeting_behind(self) -> float:
        """The part (0..1) of the cameras behind which the central rays meet; over a half, the axes look flipped."""
        return norm.part_meeting_behind(self.world_c2w)

    @property
    def input_pool(self) -> list[int]:
        """Frames that inputs are chosen from: those for training; without a name for these, all that are not held out.

        Where every frame is held out, all are taken.
        """
        held_out = set(self.held_out)
        return self.split.get("train") or [i for i in range(len(self)) if i not in held_out] or list(range(len(self)))

    @property
    def held_out(self) -> list[int]:
        """Photos that the files keep from training: those for tests, else for validation, else all the others."""
        train = set(self.split.get("train") or range(len(self)))
        return self.split.get("test") or self.split.get("val") or [i for i in range(len(self)) if i not in train]

    def hold_out(self, every: int) -> Scene:
        """The scene with every k-th photo (k of 2 or more) kept for tests, where its files keep none; 0 keeps none."""
        if not every or self.held_out:
            return self
        test = list(range(len(self)))[every // 2 :: every]
        return replace(self, split={"train": [i for i in range(len(self)) if i not in set(test)], "test": test})

    def normalize(self, indices: Sequence[int], normalization: norm.Normalization = "focus") -> Scene:
        """The scene with `world_to_scene` fitted on these frames alone, so that no other camera leaks into it."""
        if not len(indices):
            raise UserError("a scene cannot be normalised on no frames. Choose at least one input view.")
        self._check(indices)
        fitted = norm.fit(self.world_c2w[list(indices)], normalization)
        return replace(self, world_to_scene=fitted, normalization=normalization)

    def cameras(self, indices: Sequence[int], image_size: tuple[int, int]) -> Cameras:
        """Cameras of some frames at a size (h, w), in the normalised frame; no pixels are loaded."""
        self._check(indices)
        frames = [self.frames[i] for i in indices]
        c2w = norm.transform_poses(self.world_to_scene, np.stack([f.c2w for f in frames]))
        intrinsics = [Fit(f.image_size, image_size).intrinsics(f.intrinsics, f.zoom) for f in frames]
        return Cameras(
            torch.from_numpy(c2w).to(torch.float32), torch.tensor(intrinsics, dtype=torch.float32), image_size
        )

    def load(self, indices: Sequence[int], image_size: tuple[int, int]) -> Views:
        """Photos of some frames undistorted, resized and cropped to (h, w), with their cameras."""
        cameras = self.cameras(indices, image_size)
        frames = [self.frames[i] for i in indices]
        photos = self._load_photos(frames, image_size)
        pixels = torch.stack(photos).to(torch.float32) / 255
        has_alpha = bool((pixels[:, 3] < 1).any())
        return Views(
            cameras.c2w,
            cameras.intrinsics,
            image_size,
            images=pixels[:, :3].contiguous(),
            alpha=pixels[:, 3:].contiguous() if has_alpha else None,
            world_to_scene=torch.from_numpy(self.world_to_scene.copy()),
        )

    def _load_photos(self, frames: list[Frame], image_size: tuple[int, int]) -> list[UInt8[Tensor, "4 h w"]]:
        to_decode = [f for f in frames if not self.cache.holds(f, image_size, self.background)]
        # Starting threads takes longer than decoding a few small photos.
        if sum(math.prod(f.image_size) for f in to_decode) < MIN_PIXELS_FOR_THREADS:
            return [self.cache.load(f, image_size, self.background) for f in frames]
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            return list(pool.map(lambda f: self.cache.load(f, image_size, self.background), frames))

    def choose(self, inputs: int, targets: int | None = None) -> tuple[list[int], list[int]]:
        """Input frames spread over the camera positions, and target frames among the others; always the same ones.

        Where the capture has training and test frames, inputs come from the first and targets from the second. All
        other frames are targets unless a number is given.
        """
        pool = self.input_pool
        held_out = [i for i in self.held_out if i not in set(pool)]
        if not 1 <= inputs <= len(pool):
            raise UserError(
                f"{self.name} has {len(pool)} frames to choose inputs from, but {inputs} are asked for. "
                f"Ask for 1 to {len(pool)}."
            )
        chosen = [pool[i] for i in sampling.spread_cameras(self.world_c2w[pool], inputs)]
        others = held_out or [i for i in pool if i not in set(chosen)]
        if targets is None:
            return chosen, others
        if not 0 <= targets <= len(others):
            raise UserError(
                f"{self.name} has {len(others)} frames left as targets, but {targets} are asked for. "
                f"Ask for at most {len(others)}."
            )
        return chosen, sampling.every(others, targets) if targets else []

    def _check(self, indices: Sequence[int]) -> None:
        if not len(indices):
            raise UserError(f"No frame of {self.name} was named; it has {len(self)}: name at least one.")
        bad = [i for i in indices if not 0 <= i < len(self)]
        if bad:
            raise UserError(f"{self.name} has frames 0 to {len(self) - 1}; there is no frame {bad[0]}.")


def open_scene(
    path: str | os.PathLike[str],
    *,
    background: str | Color = "white",
    strict: bool = False,
    cache: PhotoCache | None = None,
    inside: Path | None = None,
) -> Scene:
    """Open a capture of any known format; frames that cannot be used are left out with a warning.

    The scene is normalised ("focus") on its training frames, or on all frames where there is no split. `strict` makes
    an error of the first warning. `background` is white, black, #rrggbb, "r,g,b" in 0..255, or three floats in 0..1.
    Give many scenes one `cache` to bound their memory together; by default each has its own of 256 MiB. Of a capture
    that may come from anyone, take only files `inside` of a folder.
    """
    path = Path(path).expanduser()
    color = parse_background(background)
    format_name, capture = _parse(path)
    capture = capture if inside is None else keep_inside(capture, inside)
    checked, left_out = _check_frames(_in_order(capture.listings))
    if not checked:
        reason = _name_some(left_out) if left_out else "it lists none"
        raise UserError(f"{path} has no usable frame: {reason}. Check the photos and the camera file.")
    warnings, notes = list(capture.warnings), list(capture.notes)
    if left_out:
        total = len(checked) + len(left_out)
        warnings.append(f"{len(left_out)} of {total} frames are left out: {_name_some(left_out)}")
    warnings += _gather((c.frame.name, c.warnings) for c, _ in checked)
    notes += _gather((c.frame.name, c.notes) for c, _ in checked)
    splits = [split for _, split in checked]
    split = {
        name: [i for i, s in enumerate(splits) if s == name] for name in ("train", "val", "test") if name in splits
    }
    scene = Scene(
        name=path.stem if path.is_file() else path.resolve().name,
        path=path,
        format=format_name,
        frames=tuple(c.frame for c, _ in checked),
        split=split,
        background=color,
        world_to_scene=np.eye(4),
        normalization="none",
        notes=tuple(notes),
        cache=cache or PhotoCache(),
    )
    if scene.part_meeting_behind > 0.5:
        warnings.append(
            "the axes look flipped: the rays through the photo centres meet behind most cameras. "
            "If the photos do not look outwards, the file mixes OpenGL and OpenCV axes, or holds inverse matrices"
        )
    if strict and warnings:
        raise UserError(f"{path}: {warnings[0]}. Repair this, or leave out --strict.")
    return replace(scene, warnings=tuple(warnings)).normalize(split.get("train") or range(len(scene)))


def _parse(path: Path) -> tuple[str, Capture]:
    """The format and the listings of a folder, file or .zip, or of one capture in a .zip (ARCHIVE.zip/NAME)."""
    archive = next((p for p in (path, *path.parents) if p.suffix.lower() == ".zip" and p.is_file()), None)
    if archive is None:
        return parse_capture(path)
    root, folder = unpack(archive)
    place = folder / path.relative_to(archive)
    if not place.resolve().is_relative_to(root.resolve()):
        raise UserError(f"{path} leads out of the archive. Give {archive}/NAME with the name of a capture in it.")
    try:
        name, capture = parse_capture(place)
    except UserError as error:
        raise UserError(str(error).replace(str(folder), str(archive))) from error
    return name, keep_inside(capture, root)


def _in_order(listings: list[Listing]) -> list[Listing]:
    """Natural order of names within each folder, folders as they are listed."""
    folders = list(dict.fromkeys(PurePosixPath(listing.name).parent for listing in listings))
    rank = {folder: i for i, folder in enumerate(folders)}
    return sorted(listings, key=lambda x: (rank[PurePosixPath(x.name).parent], natural_key(x.name)))


def _check_frames(listings: list[Listing]) -> tuple[list[tuple[Checked, str | None]], list[tuple[str, str]]]:
    """Frames that can be used with their split, and (name, reason) of those that cannot."""

    def check(listing: Listing) -> Checked | str:
        try:
            if listing.file is None:
                raise BadFrame(listing.problem or "missing")
            return make_frame(listing, read_header(listing.file))
        except BadFrame as problem:
            return str(problem)
        except PhotoError as problem:
            return problem.reason

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(check, listings))
    checked: list[tuple[Checked, str | None]] = []
    left_out: list[tuple[str, str]] = []
    seen: set[Path] = set()
    for listing, result in zip(listings, results, strict=True):
        if isinstance(result, str):
            left_out.append((listing.name, result))
        elif result.frame.path in seen:
            left_out.append((listing.name, "listed twice"))
        else:
            seen.add(result.frame.path)
            checked.append((result, listing.split))
    return checked, left_out


def _gather(remarks: Iterable[tuple[str, list[str]]]) -> list[str]:
    """One line for each remark, with the names of the frames that it is about."""
    names: dict[str, list[tuple[str, str]]] = {}
    for name, texts in remarks:
        for text in texts:
            names.setdefault(text, []).append((name, ""))
    return [f"{text}: {_name_some(about)}" for text, about in names.items()]


def _name_some(names: list[tuple[str, str]]) -> str:
    def plain(text: str) -> str:
        return "".join(c if c.isprintable() else "?" for c in text)

    shown = ", ".join(plain(f"{name} ({why})" if why else name) for name, why in names[:MAX_NAMED])
    return shown + (f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else "")
