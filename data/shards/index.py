"""shards.json: which shards a folder has, and how many photos each capture in them has.

With it, which capture comes when is known before anything is read, so that a stream can start anywhere.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from data.errors import UserError
from data.images import Fit
from data.shards.reading import open_url, told

INDEX = "shards.json"
FORMAT = "nvs shards 1"
FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}\.tar")
MAX_BYTES = 256 * 2**20
MAX_FRAMES = 20_000
AGAIN = "Make the shards again with nvs convert."


class Sizes(NamedTuple):
    """Of one capture: how many photos it has, and which of them are not to be trained on."""

    frames: int
    not_trained: tuple[int, ...]


class Shard(NamedTuple):
    """A tar file and the captures in it, in their order."""

    url: str
    scenes: tuple[Sizes, ...]


class Packing(NamedTuple):
    """How the photos of a folder were packed: size (h, w) in pixels, least and greatest horizontal field of view."""

    image_size: tuple[int, int]
    fov_degrees: tuple[float, float]


class ShardSet(NamedTuple):
    """All shards that training reads, and how each folder of them was packed."""

    shards: tuple[Shard, ...]
    packings: tuple[Packing, ...]

    def fov_degrees(self, image_size: tuple[int, int]) -> tuple[float, float]:
        """Least and greatest horizontal field of view (degrees) of photos brought to a size (h, w)."""
        halves = []
        for size, fov in self.packings:
            kept = image_size[1] / Fit(size, image_size).scaled[1]  # the rest of the width is cut off
            halves += [math.atan(kept * math.tan(math.radians(angle) / 2)) for angle in fov]
        return math.degrees(2 * min(halves)), math.degrees(2 * max(halves))


def write_index(shards: Sequence[Shard], image_size: tuple[int, int], fov_degrees: tuple[float, float]) -> str:
    """The text of shards.json; `url` is the name of each file beside it."""
    entries = [{"file": s.url, "scenes": [[n.frames, list(n.not_trained)] for n in s.scenes]} for s in shards]
    content = {"format": FORMAT, "image_size": image_size, "fov_degrees": fov_degrees, "shards": entries}
    return json.dumps(content, separators=(",", ":"))


def find_shards(entries: Sequence[str]) -> ShardSet:
    """The shards behind folders and .tar files: paths, addresses, patterns, and braces such as {00..99}.

    Raises UserError for what is not there or not described by the shards.json beside it.
    """
    packings: dict[str, Packing] = {}
    known: dict[str, dict[str, Shard]] = {}
    chosen: dict[str, Shard] = {}
    for place in [place for entry in entries for place in _expand(entry)]:
        folder, name = place.rstrip("/"), ""
        if place.endswith(".tar"):
            folder, slash, name = place.rpartition("/")
            folder = folder or slash or "."
        if folder not in known:
            shards, packings[folder] = _read_index(folder)
            known[folder] = {shard.url.rpartition("/")[2]: shard for shard in shards}
        if name and name not in known[folder]:
            raise UserError(f"{place} is not in the {INDEX} beside it. {AGAIN}")
        chosen |= {shard.url: shard for shard in ([known[folder][name]] if name else known[folder].values())}
    if not chosen:
        raise UserError("There are no shards to train on: name folders or .tar files with --data.shards.")
    return ShardSet(tuple(chosen.values()), tuple(packings.values()))


def _expand(entry: str) -> list[str]:
    """The places that a pattern with braces, * and ? stands for."""
    import braceexpand
    import fsspec

    try:
        places = list(braceexpand.braceexpand(entry)) if "{" in entry else [entry]
    except ValueError as error:
        raise UserError(f"{entry} has braces that do not match. Write them like shard-{{000..099}}.tar.") from error
    found: list[str] = []
    for place in places:
        if not any(c in place for c in "*?["):
            found.append(place)
            continue
        try:
            system, path = fsspec.core.url_to_fs(place)
            local = "file" in (system.protocol, *system.protocol)
            kinds: Any = system.glob(path, detail=True)
        except Exception as error:  # each kind of storage has its own
            raise UserError(f"{place} cannot be looked up ({error}). Check the address.") from error
        matches = sorted(m for m, about in kinds.items() if m.endswith(".tar") or about["type"] != "file")
        found += [m if local else system.unstrip_protocol(m) for m in matches]
    if not found:
        raise UserError(f"No shard matches {entry}. Check the path or the pattern.")
    return found


def _read_index(folder: str) -> tuple[tuple[Shard, ...], Packing]:
    url = f"{folder}/{INDEX}"
    try:
        with open_url(url) as file, told(url):
            # One read of as much as is allowed would also reserve as much memory.
            text = b"".join(iter(lambda: file.read(2**20) if file.tell() <= MAX_BYTES else b"", b""))
    except UserError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        raise UserError(
            f"There is no {INDEX} in {folder}, which tells what its .tar files hold. nvs convert CAPTURES SHARDS --to "
            "shards writes it beside them: copy it along, or make the shards with that."
        ) from error
    try:
        content = json.loads(text)
        if content["format"] != FORMAT:
            raise ValueError
        shards = tuple(_shard(folder, entry) for entry in content["shards"])
        size, fov = (tuple(content[name]) for name in ("image_size", "fov_degrees"))
        sound = (
            len(size) == len(fov) == 2 and all(type(n) is int and n > 0 for n in size) and 0 < fov[0] <= fov[1] < 180
        )
        if not sound or not shards:
            raise ValueError
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise UserError(f"{url} does not describe shards. {AGAIN}") from error
    return shards, Packing(size, fov)


def _shard(folder: str, entry: Any) -> Shard:
    if not FILE_NAME.fullmatch(entry["file"]):
        raise ValueError
    scenes = []
    for frames, not_trained in entry["scenes"]:
        if type(frames) is not int or not 0 <= frames <= MAX_FRAMES or not all(type(i) is int for i in not_trained):
            raise ValueError
        scenes.append(Sizes(frames, tuple(not_trained)))
    return Shard(f"{folder}/{entry['file']}", tuple(scenes))
