"""`nvs ablate`: train memory layers on the same data, seeds and budget, and compare them in one table."""

from __future__ import annotations

import json
import statistics
import time
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from apps.train_settings import plain_values
from data import UsageError, UserError, every, read_json, write_atomic
from data.config import DataConfig
from nvs import ModelConfig
from nvs.training_config import TrainingConfig

if TYPE_CHECKING:
    from apps.ablation_runs import Judging, Run
    from data import Scene, Views
    from nvs.ablation import Ablation, Row, Speed

FIRST_TEST_SCENE = 1_000_000
"""Procedural scenes from this number on are the held-out ones."""
SHOWN = (0, 1, 2, 4, 5, 7, 8)
"""Columns that are printed; the files have all."""


def ablate(
    variants: list[str] | None = None,
    model: ModelConfig = ModelConfig(),
    data: DataConfig = DataConfig(),
    training: TrainingConfig = TrainingConfig(),
    seeds: tuple[int, ...] = (0, 1),
    scenes: int = 1000,
    scene_views: int = 12,
    test: list[str] | None = None,
    test_scenes: int = 32,
    inputs: int = 4,
    targets: int = 8,
    threads: int = 1,
    jobs: int = 1,
    timing_rounds: int = 15,
    output: str = "out/ablation",
) -> None:
    """Train variants of the memory layer on the same data, seeds and budget, and write one table.

    The budget of a run is training.max_steps or training.max_minutes. The table (ablation.md, .csv, .json, .png) is
    written anew after each run; speeds are measured at the end, all variants in turn. Stopped with Ctrl-C or killed,
    the same command goes on: finished runs are kept, the one that was stopped continues from its checkpoint. With
    data.source procedural the scenes are rendered once, into the output folder.

      nvs ablate --config configs/ablation_small.yaml -o out/ablation --jobs 2

    Args:
        variants: YAML files that name a memory layer, such as configs/memory/*.yaml; the first is the baseline.
        model: Size of the network; the variants replace its memory.
        data: Captures, and what each batch shows of them.
        training: Length, optimiser, precision and the like; its seed is replaced.
        seeds: Every variant is trained once with each of these.
        scenes: Number of procedural scenes to train on.
        scene_views: Pictures of each procedural scene.
        test: Captures to judge with; with data.source procedural, where left out: scenes that are not trained on.
        test_scenes: Number of procedural scenes to judge with.
        inputs: Photos of each capture that a model is given when it is judged.
        targets: Most held-out photos of each capture that are compared.
        threads: CPU threads of each run.
        jobs: Runs side by side.
        timing_rounds: Rounds of the speed measurement; 0 leaves it out.
        output: Folder of the runs and the table.
    """
    import torch

    from apps.ablation_runs import Judging, Runner, find_judged, only_one

    counts = {"--inputs": inputs, "--targets": targets, "--threads": threads, "--jobs": jobs, "--scenes": scenes}
    for option, number in {**counts, "--test-scenes": test_scenes, "--scene-views": scene_views}.items():
        if number < 1:
            raise UserError(f"{option} {number} is not possible: give 1 or more.")
    if timing_rounds < 0:
        raise UserError(f"--timing-rounds {timing_rounds} is not possible: give 0 or more.")
    if not variants or not seeds:
        raise UsageError("There is nothing to compare: give --variants with YAML files of configs/memory, and --seeds.")
    torch.set_num_threads(threads)
    folder = Path(output)
    with only_one(folder) as lock:
        runs = make_runs(folder, variants, seeds)
        data, judged = _prepare_scenes(folder, data, test, scenes, test_scenes, scene_views)
        settings = write_settings(folder, model, data, training)
        judging = Judging(judged, inputs, targets)
        timed_with = find_judged(judging, data)
        keep(folder / "judging.json", json.dumps(asdict(judging)))
        table = TableWriter(folder, runs, describe(model, data, training, judging, threads))
        runner = Runner(settings, judging, threads, lock)
        with closing(runner.work(runs, jobs)) as finished:
            for run, failure in finished:
                table.add(run, failure)
        if timing_rounds:
            table.speeds = speeds(folder, runs, _timing_views(timed_with, inputs, data), training, timing_rounds)
        table.write()
    table.show()
    if table.failures:
        names = ", ".join(table.failures)
        raise UserError(f"Not all variants could be trained and judged: {names}; see log.txt in their runs' folders.")


class TableWriter:
    """Keeps the table up to date with the runs that are finished, and tells of each."""

    def __init__(self, folder: Path, runs: list[Run], about: dict[str, Any]) -> None:
        self.folder, self.runs, self.about = folder, runs, about
        self.failures: dict[str, str] = {}
        self.speeds: dict[str, Speed] = {}
        self.started, self.missing = time.monotonic(), sum(not run.metrics.is_file() for run in runs)

    def add(self, run: Run, failure: str | None) -> None:
        """Take in a run that has ended."""
        if failure:
            self.failures[run.variant] = f"seed {run.seed}: {failure}"
        left = sum(not r.metrics.is_file() for r in self.runs)
        done = max(self.missing - left, 1)
        minutes = (time.monotonic() - self.started) / 60 / done * left
        came_to = failure or f"{_psnr(read_json(run.metrics)):.2f} dB"
        print(f"{run.variant} seed {run.seed}: {came_to}; {left} runs left, about {minutes:.0f} minutes", flush=True)
        self.write()

    def write(self) -> None:
        """Write the table in all its forms."""
        from nvs.ablation import write_tables
        from nvs.ablation_chart import write_chart

        ablation = self.ablation()
        write_tables(ablation, self.folder)
        write_chart(ablation, self.folder / "ablation.png")

    def show(self) -> None:
        """Print the table."""
        from rich import box
        from rich.console import Console
        from rich.table import Table

        heading, *rows = self.ablation().cells()
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
        for i in SHOWN:
            table.add_column(heading[i].replace(", ", "\n"), justify="right" if i else "left", no_wrap=True)
        for row in rows:
            table.add_row(*(row[i] for i in SHOWN))
        Console().print(table)
        print(f"written: {self.folder}/ablation.md, .csv, .json and .png")

    def ablation(self) -> Ablation:
        """All rows as they are now, in the order of the variants."""
        from nvs.ablation import Ablation

        found = {run: read_json(run.metrics) for run in self.runs if run.metrics.is_file()}
        about = dict(self.about)
        for method, name in {"nearest_input": "nearest input photo", "mean_input": "mean of the input photos"}.items():
            if found:
                value = statistics.fmean(_psnr(metrics, method) for metrics in found.values())
                about[f"for comparison, the {name}"] = f"{value:.2f} dB"
        names = dict.fromkeys(run.variant for run in self.runs)
        return Ablation(tuple(self._row(name, found) for name in names), about)

    def _row(self, variant: str, found: dict[Run, dict[str, Any]]) -> Row:
        from nvs.ablation import Outcome, Row

        told = ("variant", "seed", "steps", "parameters", "state_bytes", "state_grows")
        outcomes = [
            Outcome(psnr=_psnr(metrics), **{key: metrics[key] for key in told})
            for run, metrics in found.items()
            if run.variant == variant
        ]
        return Row(variant, tuple(outcomes), self.speeds.get(variant), self.failures.get(variant))


def make_runs(folder: Path, variants: list[str], seeds: tuple[int, ...]) -> list[Run]:
    """All runs, seed by seed; the files of the variants are kept in the folder, and must not change."""
    from apps.ablation_runs import Run

    files: dict[str, Path] = {}
    for path in map(Path, variants):
        if path.stem in files:
            raise UserError(f"Two variants are called {path.stem}: rename one of the files.")
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"The variant {path} cannot be read ({error}): give a YAML file.") from error
        files[path.stem] = folder / "variants" / f"{path.stem}.yaml"
        keep(files[path.stem], text)
    return [
        Run(name, file, seed, folder / "runs" / name / f"seed{seed}")
        for seed in dict.fromkeys(seeds)
        for name, file in files.items()
    ]


def write_settings(folder: Path, model: ModelConfig, data: DataConfig, training: TrainingConfig) -> Path:
    """The settings that all runs share, in the form that `nvs train --config` takes."""
    plain = {k: plain_values(asdict(v)) for k, v in {"model": model, "data": data, "training": training}.items()}
    del plain["training"]["seed"]
    # The variants say which layer it is; of the layer here they take over the width of a head where they name none.
    plain["model"]["memory"] = {"head_dim": model.memory.head_dim}
    path = folder / "settings.yaml"
    keep(path, yaml.safe_dump(plain, sort_keys=False))
    return path


def keep(path: Path, text: str) -> None:
    """Write a file that decides what the runs are, or refuse to mix them with runs of another."""
    if not path.exists():
        with write_atomic(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    elif path.read_text(encoding="utf-8") != text:
        raise UserError(
            f"{path.name} of {path.parent} differs from what is asked for now: repeat the first command to go on, or "
            "choose another --output."
        )


def describe(
    model: ModelConfig, data: DataConfig, training: TrainingConfig, judging: Judging, threads: int
) -> dict[str, Any]:
    """What the table was found with, in words."""
    h, w = data.image_size
    minutes = f", at most {training.max_minutes:g} minutes" if training.max_minutes else ""
    fewest, most = data.input_views
    return {
        "network": f"{model.layers} blocks of width {model.dim}, patches of {model.patch_size} pixels",
        "training": f"{training.max_steps} steps{minutes} of {data.batch_size} scenes, {training.optimizer}, "
        f"learning rate {training.learning_rate:g}, {training.precision}, {threads} CPU thread(s) a run",
        "data": f"{', '.join(data.scenes or [data.scene or ''])} at {h}x{w}, {fewest} to {most} input views and "
        f"{data.target_views[0]} to {data.target_views[1]} targets a step",
        "judged on": f"{', '.join(judging.captures)}: {judging.inputs} input views, at most {judging.targets} "
        "held-out photos of each capture",
    }


def speeds(
    folder: Path, runs: list[Run], views: list[tuple[Views, Views]], training: TrainingConfig, rounds: int
) -> dict[str, Speed]:
    """Speeds of all variants that have a trained model, measured once and kept in timing.json."""
    from nvs import load_model
    from nvs.ablation import Speed
    from nvs.ablation_timing import measure_speeds

    trained = {run.variant: run.checkpoint for run in runs if run.metrics.is_file()}
    path = folder / "timing.json"
    kept = read_json(path) if path.is_file() else {}
    if set(kept) == set(trained):
        return {name: Speed(**values) for name, values in kept.items()}
    print(f"measuring the speed of {len(trained)} variants in turn, {rounds} rounds", flush=True)
    models = {name: load_model(checkpoint) for name, checkpoint in trained.items()}
    found = measure_speeds(models, views, training, rounds)
    with write_atomic(path) as temporary:
        temporary.write_text(json.dumps({k: asdict(v) for k, v in found.items()}, indent=1) + "\n", encoding="utf-8")
    return found


def _timing_views(scenes: list[Scene], count: int, data: DataConfig) -> list[tuple[Views, Views]]:
    """As many scenes as a training batch has, each as input and target views, of which each has equally many."""
    chosen = [scene.choose(count) for scene in scenes]
    most = min(data.target_views[1], *(len(others) for _, others in chosen))
    pairs = []
    for i in range(data.batch_size):
        inputs, others = chosen[i % len(scenes)]
        others = every(others, most)
        scene = scenes[i % len(scenes)].normalize(inputs, data.normalization)
        views = scene.load(inputs + others, data.image_size)
        pairs.append((views.select(slice(0, len(inputs))), views.select(slice(len(inputs), None))))
    return pairs


def _prepare_scenes(
    folder: Path, data: DataConfig, test: list[str] | None, scenes: int, test_scenes: int, views: int
) -> tuple[DataConfig, tuple[str, ...]]:
    """Captures to train on and to judge with; procedural ones are rendered into the folder, once."""
    from apps.prepare_meshes import core_count
    from apps.prepare_procedural import make_scenes

    if data.source != "procedural":
        if not test:
            raise UsageError("Say with --test which captures the models are judged with.")
        return data, tuple(test)
    parts = {folder / "scenes/train": range(scenes)}
    if not test:
        parts[folder / "scenes/test"] = range(FIRST_TEST_SCENE, FIRST_TEST_SCENE + test_scenes)
    for place, numbers in parts.items():
        folders = {index: place / f"{index:07d}" for index in numbers}
        make_scenes(data.procedural, folders, views, data.image_size, False, core_count())
    written = replace(data, source="captures", scenes=[str(folder / "scenes/train")])
    return written, tuple(test or [str(folder / "scenes/test")])


def _psnr(metrics: dict[str, Any], method: str = "model") -> float:
    return metrics["mean_over_images"][method]["psnr"]
