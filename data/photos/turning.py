"""Whether a camera only turned on the spot: then nothing tells distances, though COLMAP may find some cameras."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from data.photos.features import Pair

FLAT_SHARE = 0.8
"""The share of pairs that one plane-to-plane mapping must explain."""

MAX_STRETCH = 0.01
"""How far the mappings may be from rotations; 0.003 for a turning camera, 0.1 for one that passes a flat wall."""

FOCALS = np.geomspace(0.4, 4.0, 60)
"""Focal lengths to try, divided by the longer side: 102 to 14 degrees of view."""


def only_turned(pairs: Sequence[Pair], sizes: Sequence[tuple[int, int]]) -> bool:
    """Whether all photos, of sizes (h, w), look as if taken from one place.

    Between photos from one place points move by K R K^-1 with a rotation R and the lens K, whatever their distance
    (Hartley, "Self-calibration from multiple views with a rotating camera", ECCV 1994). Photos of a flat wall from
    several places are also related by a homography, but by none of this kind.
    """
    flat = [pair for pair in pairs if pair.homography is not None]
    if not pairs or len(flat) < FLAT_SHARE * len(pairs):
        return False
    stretches = [np.median([stretch(pair, focal, sizes) for pair in flat]) for focal in FOCALS]
    return bool(min(stretches) < MAX_STRETCH)


def stretch(pair: Pair, focal: float, sizes: Sequence[tuple[int, int]]) -> float:
    """How far a pair's homography is from a rotation if the lens has this focal length (0: it is one)."""
    if pair.homography is None:
        raise ValueError("the pair has no homography")
    turn = np.linalg.inv(_lens(focal, sizes[pair.second])) @ pair.homography @ _lens(focal, sizes[pair.first])
    determinant = np.linalg.det(turn)
    if abs(determinant) < 1e-12:
        return np.inf
    turn /= np.cbrt(determinant)
    return float(np.linalg.norm(turn @ turn.T - np.eye(3)))


def _lens(focal: float, size: tuple[int, int]) -> Float[np.ndarray, "3 3"]:
    h, w = size
    return np.array([[focal * max(h, w), 0, w / 2], [0, focal * max(h, w), h / 2], [0, 0, 1]])
