"""Captures for Lightning: opens them, parts training from held-out photos, and streams batches."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from data.augmentation import Augmentation
from data.batches import Batch, BatchMaker, TrainingScene, nearest_size, part_photos, usable
from data.config import DataConfig
from data.errors import UserError
from data.finding import find_scenes
from data.images import PhotoCache
from data.procedural_batches import ProceduralBatchMaker, ProceduralDraw
from data.sampling import every, spread_cameras
from data.scene import Scene, open_scene
from data.shards.index import ShardSet, find_shards
from data.shards.stream import Lane, ShardStream, first_scenes
from data.views import Views


class ValidationItem(NamedTuple):
    """Views of one capture, with a batch axis of one, on which the model is judged."""

    name: str
    held_out: bool
    """Whether the targets are held out; otherwise they are training photos."""
    inputs: Views
    targets: Views


class SceneData(pl.LightningDataModule):
    """Training and validation views of captures; `warnings` says in one line each what was left out."""

    def __init__(self, config: DataConfig, seed: int = 0) -> None:
        super().__init__()
        self.config, self.seed = config, seed
        self.scenes: list[TrainingScene] = []
        self.validation: list[TrainingScene] = []
        self.shards: ShardSet | None = None
        self.warnings: list[str] = []
        # One cache for all captures: each worker starts from a copy of it.
        self.cache = PhotoCache(int(config.cache_gb * 1e9 / max(config.workers, 1)))

    def setup(self, stage: str = "fit") -> None:
        """Open all captures, once; raises UserError if none can be used."""
        if self.scenes or self.validation:
            return
        config = self.config
        if config.source == "shards":
            self._open_shards()
        entries = [config.scene] if config.scene else config.scenes or []
        if not entries and config.source == "captures":
            raise UserError(
                "There is nothing to train on: give captures with --data.scenes or --data.scene, or random scenes with "
                "--data.source procedural."
            )
        for number, entry in enumerate(entries):
            parted = [part_photos(scene, config.holdout_every) for scene in self._open(entry)]
            opened = [s for s in parted if self._enough(s)]
            if not opened:
                raise UserError(f"{entry} has no capture with enough photos to train on: {self._needed()} are needed.")
            share = 1.0 if config.weights is None or config.scene else config.weights[number] / len(opened)
            self.scenes += [TrainingScene(s.scene, s.train, s.held_out, share) for s in opened]
        if config.validation_scenes:
            opened = [scene for entry in config.validation_scenes for scene in self._open(entry)]
            others = [part_photos(scene, config.holdout_every) for scene in opened]
            self.validation = [s if s.held_out else replace(s, train=[], held_out=s.train) for s in others]
            for name in (s.scene.name for s in others if len(s.train) + len(s.held_out) < 2):
                raise UserError(f"{name} of data.validation_scenes has one photo; 2 are needed. Leave it out.")
        elif self.shards:
            scenes = first_scenes(self.shards, config.validation_max_scenes, config.background)
            self.validation = [s for s in (part_photos(x, config.holdout_every) for x in scenes) if len(s.scene) > 1]
        else:
            self.validation = sorted(self.scenes, key=lambda s: not s.held_out)
        self.validation = self.validation[: config.validation_max_scenes]

    def train_dataloader(self) -> DataLoader:
        """Batches from the trainer's step on, without end; the global random state is left alone."""
        step, rank = (self.trainer.global_step, self.trainer.global_rank) if self.trainer else (0, 0)
        world = self.trainer.world_size if self.trainer else 1
        if self.shards:
            stream = ShardStream(self.shards, self.config, self.seed, step, rank, world)
        else:
            stream = BatchStream(self._maker(), step, rank)
        return DataLoader(
            stream,
            batch_size=None,
            num_workers=self.config.workers,
            generator=torch.Generator(),
            worker_init_fn=_leave_interrupts_to_the_main_process,
        )

    def val_dataloader(self) -> DataLoader:
        """The same few views each time, on every rank: nothing is padded or counted twice."""
        items = [item for scene in self.validation for item in self._items(scene)]
        if self.config.source == "procedural" and not self.config.validation_scenes:
            items = procedural_items(self.config, self.seed)
        return DataLoader(items, batch_size=None, generator=torch.Generator())  # type: ignore[arg-type]

    def _maker(self) -> BatchMaker | ProceduralBatchMaker:
        if self.config.source == "captures":
            return BatchMaker(self.scenes, self.config, self.seed)
        # Without workers, scenes are rendered where the model is: a process of its own could not share a GPU well.
        on_device = self.trainer is not None and not self.config.workers
        device = self.trainer.strategy.root_device if on_device else "cpu"  # type: ignore[union-attr]
        return ProceduralBatchMaker(self.config, self.seed, device)

    def _open(self, entry: str) -> list[Scene]:
        scenes, failures = [], []
        paths = find_scenes(entry)
        for path in paths:
            try:
                scene = open_scene(path, background=self.config.background)
                self.warnings += [f"{scene.name}: {warning}" for warning in scene.warnings]
                scenes.append(replace(scene, cache=self.cache))
            except UserError as error:
                failures.append(error)
        if failures and len(paths) == 1:
            raise failures[0]
        if failures:
            self.warnings.append(
                f"{len(failures)} of {len(paths)} captures of {entry} left out, the first: {failures[0]}"
            )
        return scenes

    def _open_shards(self) -> None:
        self.shards = find_shards(self.config.shards or [])
        workers = max(self.config.workers, 1) * (self.trainer.world_size if self.trainer else 1)
        lane = Lane(self.shards.shards, self.config, self.seed, 0, workers)  # refuses what cannot be read
        left_out = sum(len(shard.scenes) for shard in self.shards.shards) - sum(map(len, lane.positions))
        if left_out:
            self.warnings.append(f"{left_out} captures of the shards left out: {self._needed()} are needed")
        h, w = self.config.image_size
        for photo_h, photo_w in {packing.image_size for packing in self.shards.packings}:
            if photo_h < h or photo_w < w:
                self.warnings.append(f"photos of {photo_h}x{photo_w} pixels in shards are enlarged to cover {h}x{w}")

    def _needed(self) -> str:
        distance = self.config.frame_distance
        within = f" at most {distance[1]} and at least {distance[0]} frames apart" if distance else ""
        return f"{self.config.views_needed} training photos{within}"

    def _enough(self, scene: TrainingScene) -> bool:
        enough = usable(scene.train, self.config)
        if not enough:
            self.warnings.append(f"{scene.scene.name} left out: it has {len(scene.train)}, {self._needed()} are needed")
        return enough

    def _items(self, parted: TrainingScene) -> Iterator[ValidationItem]:
        count, most = self.config.validation_views
        pool = parted.train or parted.held_out
        inputs = [pool[i] for i in spread_cameras(parted.scene.world_c2w[pool], max(1, min(count, len(pool) - 1)))]
        scene = parted.scene.normalize(inputs, self.config.normalization)
        trained = any(s.scene.path.resolve() == scene.path.resolve() for s in self.scenes)
        trained = trained or (self.shards is not None and not self.config.validation_scenes)
        size = nearest_size(scene, self.config.all_sizes)
        for held_out, frames in ((True, parted.held_out), (False, parted.train if trained else [])):
            targets = every([i for i in frames if i not in inputs], most)
            if targets:
                views = scene.load(inputs + targets, size).add_batch()
                split = len(inputs)
                yield ValidationItem(
                    scene.name, held_out, views.select(slice(0, split)), views.select(slice(split, None))
                )


class BatchStream(IterableDataset):
    """Whole batches from a step on; of W workers each makes every W-th."""

    def __init__(self, maker: BatchMaker | ProceduralBatchMaker, step: int, rank: int) -> None:
        self.maker, self.step, self.rank = maker, step, rank

    def __iter__(self) -> Iterator[Batch]:
        """Yield batch after batch, without end."""
        worker = get_worker_info()
        first, stride = (0, 1) if worker is None else (worker.id, worker.num_workers)
        step = self.step + first
        while True:
            try:
                batch = self.maker.batch(step, self.rank)
            except UserError as error:  # a subclass with other arguments would not survive the way out of a worker
                raise UserError(str(error)) from None
            yield batch
            step += stride


def procedural_items(config: DataConfig, seed: int) -> list[ValidationItem]:
    """Views of the first random scenes, which training never draws."""
    inputs, targets = config.validation_views
    maker = ProceduralBatchMaker(config, seed)
    views = list(range(inputs + targets))
    draws = [
        ProceduralDraw(i, views[:inputs], views[inputs:], Augmentation(), config.image_size)
        for i in range(config.validation_max_scenes)
    ]
    batches = [maker.render([draw]) for draw in draws]
    return [ValidationItem(f"procedural {i}", True, batch.inputs, batch.targets) for i, batch in enumerate(batches)]


def _leave_interrupts_to_the_main_process(worker: int) -> None:
    """Ctrl-C reaches every process of a terminal; the main one still needs batches to end in order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
