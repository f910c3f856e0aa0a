"""Training batches out of shards, read as a stream and split over nodes and workers without repeats or holes.

Every process that makes batches is a lane. In each epoch the shards are put into a random order and dealt out to the
lanes (where there are fewer shards than lanes, the captures are), so that all lanes together read each capture once.
All of it follows from (seed, epoch), and shards.json tells how many captures come: a stream can start at any batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from data.augmentation import draw_augmentation
from data.background import parse_background
from data.batches import Batch, Draw, TrainingScene, draw_frames, load_draw, part_photos, stack_batch, usable
from data.config import DataConfig
from data.errors import UserError
from data.sampling import draw_count
from data.scene import Scene
from data.shards.index import Shard, ShardSet, Sizes
from data.shards.packed import PackedPhotos, open_packed
from data.shards.reading import read_samples

ORDER, MIX, BATCH, ITEM = 1, 2, 3, 4
"""Which random numbers are drawn, beside the seed."""


class Item(NamedTuple):
    """A capture: which shard, and where in it."""

    shard: int
    position: int


class Lane:
    """The endless sequence of captures of one of several processes."""

    def __init__(self, shards: Sequence[Shard], config: DataConfig, seed: int, lane: int, lanes: int) -> None:
        self.config, self.seed, self.lane, self.lanes = config, seed, lane, lanes
        enough = {sizes: can_train(sizes, config) for sizes in {sizes for shard in shards for sizes in shard.scenes}}
        self.shards = [shard for shard in shards if any(enough[sizes] for sizes in shard.scenes)]
        self.positions = [[i for i, sizes in enumerate(shard.scenes) if enough[sizes]] for shard in self.shards]
        total = sum(map(len, self.positions))
        if total < lanes:
            raise UserError(
                f"The shards hold {total} captures with enough photos for {lanes} processes that read them. "
                "Lower data.workers or the numbers of views, or pack more captures."
            )

    @lru_cache(maxsize=2)  # noqa: B019  (a lane lives as long as its process)
    def epoch(self, number: int) -> list[Item]:
        """The captures of this lane in an epoch, in the order in which they are read."""
        order = np.random.default_rng([self.seed, ORDER, number]).permutation(len(self.shards)).tolist()
        if len(order) >= self.lanes:
            return [Item(s, p) for s in order[self.lane :: self.lanes] for p in self.positions[s]]
        return [Item(s, p) for s in order for p in self.positions[s]][self.lane :: self.lanes]

    def scenes(self, start: int = 0) -> Iterator[tuple[int, Scene]]:
        """(place in the sequence, capture) from place `start` on, without end.

        Captures are mixed `shard_shuffle` at a time; those of a group are yielded in the order in which they are read.
        """
        number, first = 0, 0
        while first + len(self.epoch(number)) <= start:
            first += len(self.epoch(number))
            number += 1
        while True:
            yield from self._epoch_from(number, first, start)
            first += len(self.epoch(number))
            number += 1

    def _epoch_from(self, number: int, first: int, start: int) -> Iterator[tuple[int, Scene]]:
        items, mixed = self.epoch(number), self.config.shard_shuffle
        groups = [list(range(at, min(at + mixed, len(items)))) for at in range(0, len(items), mixed)]
        groups = groups[max(0, start - first) // mixed :]
        places = [
            first + place
            for group in groups
            for place in np.random.default_rng([self.seed, MIX, number, self.lane, group[0]]).permutation(group)
        ]
        wanted = [item for group in groups for item in items[group[0] : group[-1] + 1]]
        pairs = zip(places, self._read(wanted), strict=False)
        return ((int(place), scene) for place, scene in pairs if place >= start)

    def _read(self, items: Sequence[Item]) -> Iterator[Scene]:
        """The captures, each shard read once from its start to the last one that is wanted."""
        background = parse_background(self.config.background)
        for number, some in groupby(items, key=lambda item: item.shard):
            shard, wanted = self.shards[number], {item.position for item in some}
            last, position = max(wanted), -1
            for position, sample in enumerate(read_samples(shard.url)):
                if position in wanted:
                    yield open_packed(sample, f"{shard.url}/{sample['__key__']}", background)
                if position == last:
                    break
            if position < last:
                raise UserError(f"{shard.url} holds fewer captures than its shards.json says. Pack it again.")


class ShardStream(IterableDataset):
    """Whole batches from a step on; of W workers each makes every W-th, as with captures."""

    def __init__(self, shards: ShardSet, config: DataConfig, seed: int, step: int, rank: int, world: int) -> None:
        self.shards, self.config, self.seed = shards, config, seed
        self.step, self.rank, self.world = step, rank, world

    def __iter__(self) -> Iterator[Batch]:
        """Yield batch after batch, without end."""
        try:
            yield from self._batches()
        except UserError as error:  # a subclass with other arguments would not survive the way out of a worker
            raise UserError(str(error)) from None

    def _batches(self) -> Iterator[Batch]:
        worker = get_worker_info()
        first, stride = (0, 1) if worker is None else (worker.id, worker.num_workers)
        step = self.step + first
        # The lane belongs to the step, so that a run goes on with the lanes that it had, whichever worker has which.
        lane = Lane(self.shards.shards, self.config, self.seed, self.rank * stride + step % stride, self.world * stride)
        for draws in self._drawn(lane, step % stride, step // stride, stride):
            yield stack_batch([load_draw(scene, draw, self.config) for scene, draw in draws])

    def _drawn(self, lane: Lane, offset: int, batch: int, stride: int) -> Iterator[list[tuple[Scene, Draw]]]:
        """Captures and draws of one batch after the other; until a batch is complete, only drawn photos are kept."""
        size = self.config.batch_size
        waiting: dict[int, tuple[Scene, Draw]] = {}
        for place, scene in lane.scenes(batch * size):
            step = (place // size) * stride + offset
            waiting[place] = self._draw(scene, step, place % size)
            while all(batch * size + i in waiting for i in range(size)):
                yield [waiting.pop(batch * size + i) for i in range(size)]
                batch += 1

    def _draw(self, scene: Scene, step: int, item: int) -> tuple[Scene, Draw]:
        config = self.config
        rng = np.random.default_rng([self.seed, BATCH, step, self.rank])
        counts = draw_count(rng, config.input_views), draw_count(rng, config.target_views)
        rng = np.random.default_rng([self.seed, ITEM, step, self.rank, item])
        parted: TrainingScene = part_photos(scene, config.holdout_every)
        draw = Draw(0, *draw_frames(rng, parted, counts, config), draw_augmentation(rng, config), config.image_size)
        if isinstance(scene.cache, PackedPhotos):
            scene.cache.keep({scene.frames[i].path for i in draw.inputs + draw.targets})
        return scene, draw


def can_train(sizes: Sizes, config: DataConfig) -> bool:
    """Whether a capture with these numbers of photos is enough for the largest draw."""
    held = set(sizes.not_trained)
    if not held and config.holdout_every:
        held = set(range(config.holdout_every // 2, sizes.frames, config.holdout_every))
    return usable([i for i in range(sizes.frames) if i not in held], config)


def first_scenes(shards: ShardSet, count: int, background: str) -> list[Scene]:
    """The first captures of the shards with all their photos in memory."""
    found: list[Scene] = []
    for shard in shards.shards:
        for sample in read_samples(shard.url):
            if len(found) == count:
                return found
            found.append(open_packed(sample, f"{shard.url}/{sample['__key__']}", parse_background(background)))
    return found
