"""What came of a set of photos, and what to photograph if it was not enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from data.photos.collect import MIN_PHOTOS, Photo
from data.photos.features import Pair
from data.photos.reconstruct import Model

ENOUGH_SHARE = 0.25
"""With a smaller share of the photos no scene is written: so few that hold together may do so by chance."""

MIN_FEATURES = 300
MAX_NAMED = 20
MORE_OVERLAP = "take more photos between them, so that neighbours show mostly the same things"
MORE_TEXTURE = "choose a scene with visible texture and steady light, and hold the camera still"
ONE_PLACE = "The scene cannot be made: all photos seem to be taken from one place, which tells nothing about distances."
MORE_PARALLAX = "move sideways between photos instead of turning on the spot"


@dataclass(frozen=True)
class Report:
    """Numbers of a finished scene; also written as report.json."""

    photos: int
    registered: int
    not_registered: tuple[tuple[str, str], ...]
    """(file name, why) of photos that were read but have no camera."""
    unreadable: tuple[tuple[str, str], ...]
    """(file name, why) of files that were left out."""
    turned: int
    """Photos whose EXIF turn was ignored."""
    points: int
    reprojection_error: float
    """Mean distance in pixels between where a point was seen and where its position in space puts it."""
    cameras: int
    """How many lenses were told apart."""
    effort: str
    """Sensitivity of the features and kind of mapper that gave this result."""
    focal_differs: bool
    """Whether a focal length is far from what EXIF tells."""
    advice: str
    """What to photograph to do better; empty if all went well."""
    minutes: float

    def to_json(self) -> dict[str, Any]:
        """The content of report.json."""
        content = asdict(self)
        for key in ("not_registered", "unreadable"):
            content[key] = [{"photo": name, "why": why} for name, why in getattr(self, key)]
        return content

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Report:
        """The report that was written as `content`."""
        lists = {
            key: tuple((entry["photo"], entry["why"]) for entry in content[key])
            for key in ("not_registered", "unreadable")
        }
        return cls(**{**content, **lists})

    def lines(self) -> list[str]:
        """The report in plain sentences, one a line."""
        share = 100 * self.registered / self.photos
        text = [
            f"{self.registered} of {self.photos} photos registered ({share:.0f} %), {self.points} points, "
            f"reprojection error {self.reprojection_error:.2f} px, {self.minutes:.1f} minutes"
        ]
        text += _name_some("not registered", self.not_registered)
        text += _name_some("not read", self.unreadable)
        if self.turned:
            text.append(f"{self.turned} photos have an EXIF turn, which is not applied: they are used as stored")
        if self.focal_differs:
            text.append("the focal length is far from what EXIF tells: one of the two is wrong")
        if self.advice:
            text.append(f"for a better scene: {self.advice}")
        return text


def explain_missing(
    photos: Sequence[Photo], model: Model, counts: dict[int, int], pairs: Sequence[Pair]
) -> tuple[tuple[str, str], ...]:
    """(file name, why) of photos without a camera, told from their features and matches."""
    placed = set(model.registered)
    partners: dict[int, set[int]] = {index: set() for index in range(len(photos))}
    for pair in pairs:
        partners[pair.first].add(pair.second)
        partners[pair.second].add(pair.first)
    reasons = []
    for index, photo in enumerate(photos):
        if index in placed:
            continue
        shared = partners[index] & placed
        if counts.get(index, 0) < MIN_FEATURES:
            why = f"only {counts.get(index, 0)} features: blurred, dark or without texture"
        elif not partners[index]:
            why = "shows nothing that another photo shows"
        elif not shared:
            why = f"matches only {len(partners[index])} photos that have no camera either"
        else:
            why = f"matches {len(shared)} of the registered photos, but not well enough"
        reasons.append((photo.path.name, why))
    return tuple(reasons)


def advise(count: int, counts: dict[int, int], pairs: Sequence[Pair]) -> str:
    """What to photograph instead, after the most likely cause of failure."""
    if median(counts.values()) < MIN_FEATURES:
        return f"they show too little detail; {MORE_TEXTURE}"
    groups = count_groups(count, pairs)
    if groups > 1:
        return f"they fall into {groups} groups that share no view; {MORE_OVERLAP}"
    return f"they do not fit together firmly; {MORE_OVERLAP}, and {MORE_PARALLAX}"


def is_enough(model: Model, count: int) -> bool:
    """Whether a model is worth a scene."""
    return model.sound and len(model.registered) >= max(MIN_PHOTOS, ENOUGH_SHARE * count)


def explain_failure(model: Model | None, count: int, counts: dict[int, int], pairs: Sequence[Pair]) -> str:
    """Why there is no scene, and what to photograph."""
    if model is None:
        found = "no cameras were found"
    elif not model.sound:
        found = "the cameras that were found have an impossible lens"
    else:
        found = f"cameras were found for only {len(model.registered)} of {count} photos"
    return f"The scene cannot be made: {found}. Take photos again: {advise(count, counts, pairs)}."


def count_groups(count: int, pairs: Sequence[Pair]) -> int:
    """Number of groups of photos that no pair connects."""
    group = list(range(count))

    def root(index: int) -> int:
        while group[index] != index:
            index = group[index]
        return index

    for pair in pairs:
        group[root(pair.first)] = root(pair.second)
    return sum(group[index] == index for index in range(count))


def _name_some(what: str, named: Sequence[tuple[str, str]]) -> list[str]:
    lines = [f"{what}: {name} ({why})" for name, why in named[:MAX_NAMED]]
    return lines + ([f"{what}: {len(named) - MAX_NAMED} more, see report.json"] if len(named) > MAX_NAMED else [])
