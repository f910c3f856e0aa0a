"""Which photos are matched with which: all with all, neighbours in order, or those that look alike.

Looking alike is judged without any downloaded vocabulary: the photos' own features are sorted into a few kinds, and
a photo is described by how its features differ from the mean of their kind (VLAD: Jegou et al., "Aggregating local
descriptors into a compact image representation", CVPR 2010).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
from jaxtyping import Float, Shaped, UInt8

Matching = Literal["auto", "exhaustive", "sequential"]

EXHAUSTIVE_BELOW = 60
NEIGHBOURS = 8
"""Photos are matched with this many that follow in order, then with those 16, 32, 64 ... places on."""

ALIKE_IN_ORDER, ALIKE = 5, 25
"""Most similar photos matched with each: in a film they close loops, among loose photos they are the main source."""

KINDS = 64
FEATURES_PER_PHOTO = 1000
FEATURES_FOR_KINDS = 20000


def resolve(matching: Matching, count: int, in_order: bool) -> Literal["exhaustive", "sequential", "similar"]:
    """What "auto" means for `count` photos that are, or are not, in the order in which they were taken."""
    if matching != "auto":
        return matching
    if count < EXHAUSTIVE_BELOW:
        return "exhaustive"
    return "sequential" if in_order else "similar"


def choose_pairs(
    way: Literal["exhaustive", "sequential", "similar"], count: int, descriptors: Iterable[UInt8[np.ndarray, "_ 128"]]
) -> list[tuple[int, int]]:
    """Pairs (lower index, higher index) to match, sorted; `descriptors`, one set a photo, are read only if needed."""
    if way == "exhaustive" or count <= NEIGHBOURS:
        return [(a, b) for a in range(count) for b in range(a + 1, count)]
    steps = list(range(1, NEIGHBOURS + 1))
    if way == "sequential":
        while 2 * steps[-1] < count:
            steps.append(2 * steps[-1])
    pairs = {(a, a + step) for step in steps for a in range(count - step)}
    pairs |= most_alike(describe(descriptors), ALIKE_IN_ORDER if way == "sequential" else ALIKE)
    return sorted(pairs)


def most_alike(descriptions: Float[np.ndarray, "n d"], count: int) -> set[tuple[int, int]]:
    """Each photo with the `count` most similar others."""
    similarity = descriptions @ descriptions.T
    np.fill_diagonal(similarity, -np.inf)
    nearest = np.argsort(-similarity, axis=1, kind="stable")[:, : min(count, len(similarity) - 1)]
    return {(min(a, int(b)), max(a, int(b))) for a, row in enumerate(nearest) for b in row}


def describe(descriptors: Iterable[UInt8[np.ndarray, "_ 128"]]) -> Float[np.ndarray, "n d"]:
    """One vector of length 1 per photo; the more alike two photos are, the larger the product of their vectors."""
    rng = np.random.default_rng(0)
    features = [_sample(rng, photo, FEATURES_PER_PHOTO) for photo in descriptors]
    share = max(1, FEATURES_FOR_KINDS // max(1, len(features)))
    kinds = _cluster(np.concatenate([_sample(rng, photo, share) for photo in features]).astype(np.float32))
    described = np.zeros((len(features), *kinds.shape), dtype=np.float32)
    for index, photo in enumerate(features):
        own = photo.astype(np.float32)
        kind = _nearest(own, kinds)
        np.add.at(described[index], kind, own - kinds[kind])
    # Each kind counts the same, however often it occurs: a brick wall must not outweigh all else.
    described = _unit(described)
    return _unit(described.reshape(len(features), -1))


def _cluster(features: Float[np.ndarray, "n 128"], rounds: int = 10) -> Float[np.ndarray, "k 128"]:
    """Means of up to KINDS kinds of features (k-means)."""
    centers = features[:: max(1, len(features) // KINDS)][:KINDS].copy()
    for _ in range(rounds):
        kind = _nearest(features, centers)
        for k in range(len(centers)):
            if (kind == k).any():
                centers[k] = features[kind == k].mean(0)
    return centers


def _nearest(features: Float[np.ndarray, "n d"], centers: Float[np.ndarray, "k d"]) -> np.ndarray:
    return (0.5 * (centers**2).sum(1) - features @ centers.T).argmin(1)


def _unit(vectors: Float[np.ndarray, "*n d"]) -> Float[np.ndarray, "*n d"]:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def _sample(rng: np.random.Generator, rows: Shaped[np.ndarray, "n d"], count: int) -> Shaped[np.ndarray, "m d"]:
    return rows if len(rows) <= count else rows[rng.choice(len(rows), count, replace=False)]
