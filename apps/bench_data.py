"""`nvs bench data`: how fast training data comes on this machine, and whether training ever waits for it."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from apps.prepare_meshes import core_count, workers

if TYPE_CHECKING:
    from data.batches import Batch
    from data.config import DataConfig


def bench_data(
    scenes: list[str] | None = None,
    image_size: tuple[int, int] = (64, 64),
    batch_size: int = 4,
    input_views: int = 4,
    target_views: int = 4,
    dim: int = 128,
    layers: int = 6,
    workers: int = 0,
    steps: int = 3,
    rounds: int = 5,
    seconds: float = 5.0,
    threads: int | None = None,
) -> None:
    """Time how fast training data is made and loaded.

    First, views a second of the procedural generator with 2x2 rays a pixel, in one process per core as workers run it,
    and in one process of several threads. Then, for each source of data, the speed of a training loop with its loader
    as a share of the speed with one batch that is kept; rounds of both alternate, and medians are compared. Captures
    are timed with their photos in memory and with photos decoded each time, as with sets that are larger than memory.

      nvs bench data
      nvs bench data --threads 2 --scenes "objects/*" --image-size 128 128

    Args:
        scenes: Captures to load: paths, patterns, lists (default: those that come with the project).
        image_size: Height and width in pixels.
        batch_size: Captures in a batch.
        input_views: Input views of each capture.
        target_views: Rendered views of each capture.
        dim: Token width of the model that is trained.
        layers: Blocks of the model.
        workers: Processes that prepare batches; with some, give enough --steps to empty their queues.
        steps: Training steps in a row, with the loader and with the kept batch.
        rounds: How often both are timed.
        seconds: How long the generator is timed.
        threads: CPU threads to use (default: what PyTorch chooses).
    """
    import torch

    from data import UserError

    for option, number in {"--steps": steps, "--rounds": rounds, "--threads": threads}.items():
        if number is not None and number < 1:
            raise UserError(f"{option} {number} is not possible: give 1 or more.")
    if threads is not None:
        torch.set_num_threads(threads)
    h, w = image_size
    config = _data_config(scenes, image_size, batch_size, input_views, target_views, workers)
    step = training_step(dim, layers, image_size)
    with packed(config) as shards:
        print(f"procedural generator, {h}x{w}, 2x2 rays a pixel: {generator_speed(image_size, seconds)}", flush=True)
        sources = {
            "captures, photos in memory": config,
            "captures, photos decoded each time": replace(config, cache_gb=0.0),
            "shards": shards,
            "procedural": replace(config, scenes=None, source="procedural"),
        }
        for name, source in sources.items():
            print(f"{name}: {compare(source, step, steps, rounds)}", flush=True)


def _data_config(
    scenes: list[str] | None,
    image_size: tuple[int, int],
    batch_size: int,
    input_views: int,
    target_views: int,
    workers: int,
) -> DataConfig:
    from data import UserError, bundled_scenes
    from data.config import DataConfig

    try:
        return DataConfig(
            scenes=scenes or [str(path) for path in bundled_scenes().values()],
            image_size=image_size,
            batch_size=batch_size,
            input_views=(input_views, input_views),
            target_views=(target_views, target_views),
            workers=workers,
        )
    except ValueError as error:
        raise UserError(f"{str(error).removeprefix('data.')}.") from error


def generator_speed(image_size: tuple[int, int], seconds: float) -> str:
    """Speed of the procedural generator, in words: in one process, and in one process per core as workers run it."""
    import torch

    from data import ProceduralConfig, measure_speed

    alone = measure_speed(ProceduralConfig(), image_size, seconds=seconds)
    cores = core_count()
    with workers(cores) as pool:
        together = sum(pool.map(speed_in_worker, [image_size] * cores, [seconds] * cores))
    return (
        f"{together:.0f} views/s in {cores} processes of one thread, {alone.views_per_second:.0f} in one process of "
        f"{torch.get_num_threads()} threads"
    )


def speed_in_worker(image_size: tuple[int, int], seconds: float) -> float:
    """Views a second in this process with one thread."""
    import torch

    from data import ProceduralConfig, measure_speed

    torch.set_num_threads(1)
    return measure_speed(ProceduralConfig(), image_size, seconds=seconds).views_per_second


def training_step(dim: int, layers: int, image_size: tuple[int, int]) -> Callable[[Batch], None]:
    """A function that trains a fresh model by one step on a batch."""
    import torch

    from data import UserError
    from nvs import LaCT, ModelConfig
    from nvs.losses import pixel_loss
    from nvs.memory import LaCTConfig
    from nvs.optimizers import build_optimizer
    from nvs.tokens import check_patches

    torch.manual_seed(0)
    heads = {"attention_head_dim": min(dim, 32), "memory": LaCTConfig(head_dim=min(dim, 64))}
    try:
        model = LaCT(ModelConfig(dim=dim, layers=layers, **heads))  # type: ignore[arg-type]
    except ValueError as error:
        raise UserError(f"This model cannot be built: {error}. Change --dim or --layers.") from error
    check_patches(image_size, model.config.patch_size)
    optimizer = build_optimizer(model, "muon", 1e-4, 0.05, 1e-4)

    def step(batch: Batch) -> None:
        images = model(batch.inputs, batch.targets.cameras)
        pixel_loss(images, batch.targets.images, batch.targets.alpha, 1.0).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


@contextmanager
def packed(config: DataConfig) -> Iterator[DataConfig]:
    """The same captures as shards in a temporary folder, as data for training."""
    from data import PhotoCache, ShardConfig, find_scenes, open_scene, write_shards

    paths = [path for entry in config.scenes or [] for path in find_scenes(entry)]
    with tempfile.TemporaryDirectory(prefix="nvs-bench-") as folder:
        opened = (open_scene(path, cache=PhotoCache(0)) for path in paths)
        write_shards(opened, Path(folder, "shards"), ShardConfig(config.image_size))
        yield replace(config, scenes=None, source="shards", shards=[f"{folder}/shards"])


def compare(config: DataConfig, step: Callable[[Batch], None], steps: int, rounds: int) -> str:
    """Speed with the loader and with a kept batch, in words."""
    from data.datamodule import SceneData

    module = SceneData(config, seed=0)
    module.setup()
    loader: Iterator[Batch] = iter(module.train_dataloader())
    kept = next(loader)
    for _ in range(2 * steps):  # until photos are in memory and the first steps are over
        step(next(loader))
    loaded, cached = [], []
    for _ in range(rounds):
        for times, batches in ((loaded, loader), (cached, iter([kept] * steps))):
            start = time.perf_counter()
            for _ in range(steps):
                step(next(batches))
            times.append((time.perf_counter() - start) / steps)
    with_loader, alone = statistics.median(loaded), statistics.median(cached)
    return f"{1 / with_loader:.2f} steps/s, {alone / with_loader:.2f} of {1 / alone:.2f} steps/s with one kept batch"
