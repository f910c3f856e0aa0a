"""The recipe of the shipped checkpoint as one command: `python -m apps.demo_model`, in the folder of the repository.

It makes the data, trains both stages, writes the weights in bfloat16 and evaluates them. Data that is there and stages
that are done are kept, and a run that was stopped goes on, so the same command, repeated, finishes the work.
"""

from __future__ import annotations

import argparse
import csv
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from apps.prepare_meshes import core_count, render_many
from data import MeshSceneConfig, UserError, find_meshes, require_open3d
from nvs.training_curve import draw_curves

SPLITS = ("train", "val", "test")
MAX_MB = 16
SHIPPED = ("data/captures/skull", "data/captures/gso_toy")
"""Captures that come with the project: training photos of the first are trained on, the second only judges."""
PLAIN = {"NVS_KERNELS": "reference"}
"""Environment in which nothing is compiled but what PyTorch brings."""


@dataclass(frozen=True)
class Recipe:
    """What differs between the two routes. `stages` are configurations in configs/, and runs in runs/."""

    stages: tuple[str, str]
    size: int
    """Side of the pictures in pixels, which also names the folders of data."""
    object_views: int
    scenes: int
    """Procedural scenes to train on; half as many again are objects of many parts."""
    scene_views: int
    packed: bool
    """Whether objects are packed into shards, which is far smaller and fewer files to carry to a GPU."""
    options: tuple[str, ...] = ()
    """More options for both stages of training."""


CPU = Recipe(("demo_attention", "demo"), 64, 32, 3000, 16, packed=False)
GPU = Recipe(("demo_gpu_attention", "demo_gpu"), 128, 16, 1500, 16, packed=True)
VALIDATION_SCENES = 16
MANY_PARTS = ("--shapes", "10", "22", "--seed", "11")
"""Procedural objects of many small parts, whose details cannot be left out."""
LENSES = {"tele": ((15.0, 22.0), (0.30, 0.40)), "portrait": ((24.0, 34.0), (0.45, 0.60))}
"""Beside the wide lens of `nvs prepare`: field of view in degrees, and the radius of a mesh that fills the picture."""


def make_model(
    recipe: Recipe,
    output: Path,
    meshes: Path | None = None,
    up: str = "auto",
    minutes: tuple[float, float] | None = None,
    only_objects: bool = False,
) -> None:
    """Run every step that is not done yet; the model, its evaluation and its curve go into the folder `output`.

    `meshes` is a folder of meshes whose vertical axis is `up`; without it, the objects that an earlier call has
    prepared are used, or else procedural scenes alone. `minutes` for each stage take the place of those in its
    configuration.
    """
    objects, shapes = Path(f"out/objects{recipe.size}"), Path(f"out/procedural{recipe.size}")
    if missing := [stage for stage in recipe.stages if not Path(f"configs/{stage}.yaml").is_file()]:
        raise UserError(f"There is no configs/{missing[0]}.yaml here: call this in the folder of the repository.")
    if meshes is not None:
        prepare_objects(recipe, meshes, objects, up)
    if only_objects:
        return
    size, views = [str(recipe.size)] * 2, str(recipe.scene_views)
    for name, first, count, more in (
        ("train", 0, recipe.scenes, ()),
        ("parts", 0, -(-recipe.scenes // 2), MANY_PARTS),
        ("val", recipe.scenes, VALIDATION_SCENES, ()),
    ):
        words = ["-o", str(shapes / name), "--first", str(first), "-n", str(count), "--views", views]
        run_nvs("prepare", "procedural", *words, "--size", *size, *more)
    options = [*recipe.options, "--data.scenes"]
    made = [str(shapes / "train/*"), str(shapes / "parts/*"), SHIPPED[0]]
    if (objects / "train").exists():
        options += [str(objects / ("train" if recipe.packed else "train/*")), *made]
    else:
        options += [*made, "--data.weights", "[0.47, 0.47, 0.06]"]
    judged = objects if (objects / "val").exists() else shapes
    options += ["--data.validation-scenes", str(judged / "val")]
    for number, stage in enumerate(recipe.stages):
        limit = [] if minutes is None else ["--training.max-minutes", str(minutes[number])]
        train(stage, [*options, *limit])
    output.mkdir(parents=True, exist_ok=True)
    model = output / "model.safetensors"
    run_nvs("convert", f"runs/{recipe.stages[1]}/last.ckpt", str(model), "--dtype", "bfloat16", "--overwrite")
    if model.stat().st_size > MAX_MB * 1e6:
        raise UserError(f"{model} has {model.stat().st_size / 1e6:.1f} MB, more than the {MAX_MB} that may be shipped.")
    judged = objects / "test" if (objects / "test").exists() else shapes / "val"
    run_nvs("eval", str(model), str(judged), *SHIPPED, "-o", str(output / "eval"), "--precision", "auto", "--overwrite")
    try:
        draw_curves({"model": [Path("runs", stage) for stage in recipe.stages]}, output / "curve.png")
    except (UserError, OSError) as error:  # runs too short for a validation still give a model
        print(f"No curve: {error}", file=sys.stderr)


def prepare_objects(recipe: Recipe, meshes: Path, folder: Path, up: str) -> None:
    """Render the meshes of each split, and pack them if the recipe says so; meshes that are broken are told."""
    require_open3d()
    for split, found in split_meshes(meshes).items():
        if not found:
            continue
        target = folder / "pictures" / split if recipe.packed else folder / split
        config = MeshSceneConfig(views=recipe.object_views, size=(recipe.size, recipe.size), up=up)  # type: ignore[arg-type]
        render(found, target, config)
        for turn, (lens, (fov, scale)) in enumerate(LENSES.items() if split == "train" else ()):
            quarter = {f"{name}-{lens}": found[name] for name in sorted(found)[turn::4]}
            if quarter:
                render(quarter, target, replace(config, fov_range=fov, scale_range=scale))
        if recipe.packed and not (folder / split / "shards.json").exists():
            # A capture is found by reading its shard from the start, so that small shards are opened sooner.
            words = ["--image-size", *[str(recipe.size)] * 2, "--quality", "80", "--shard-mb", "1"]
            run_nvs("convert", str(target), str(folder / split), "--to", "shards", *words)


def render(meshes: dict[str, Path], folder: Path, config: MeshSceneConfig) -> None:
    """Make a capture of each mesh; those that are broken are told, as long as there are others."""
    try:
        render_many(meshes, Path(os.path.abspath(folder)), config, overwrite=False, processes=core_count())
    except UserError as error:
        if not any(folder.glob("*/transforms.json")):
            raise
        print(error, file=sys.stderr)


def split_meshes(folder: Path) -> dict[str, dict[str, Path]]:
    """The meshes of a folder by split and name.

    The split is told by the columns `file` and `split` of manifest.csv, or by folders named train, val and test;
    otherwise every 20th mesh is for validation and every 20th for tests. Meshes for which nothing is told are left out
    with a message.
    """
    found = find_meshes([str(folder)])
    manifest = folder / "manifest.csv"
    if manifest.is_file():
        try:
            with manifest.open(encoding="utf-8-sig", newline="") as file:
                told = {row.get("file"): row.get("split") for row in csv.DictReader(file)}
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise UserError(f"{manifest} cannot be read as UTF-8 CSV ({error}).") from error
        splits = {name: told.get(path.relative_to(folder).as_posix()) for name, path in found.items()}
    elif any((folder / split).is_dir() for split in SPLITS):
        splits = {name: path.relative_to(folder).parts[0] for name, path in found.items()}
    else:
        turns = {9: "val", 19: "test"}
        splits = {name: turns.get(i % 20, "train") for i, name in enumerate(sorted(found))}
    parted = {split: {n: p for n, p in found.items() if splits[n] == split} for split in SPLITS}
    if not parted["train"]:
        raise UserError(f"{folder} has no meshes to train on; see the column split of manifest.csv.")
    if left_out := [path for name, path in found.items() if splits[name] not in SPLITS]:
        teller = "rows of manifest.csv" if manifest.is_file() else "folders"
        print(
            f"Meshes left out, for which the {teller} name no split of {', '.join(SPLITS)}: "
            f"{len(left_out)} of {len(found)}, first {left_out[0]}.",
            file=sys.stderr,
        )
    return parted


def train(stage: str, options: list[str]) -> None:
    """Train one stage, or go on with it; where compiled code fails, once more with plain PyTorch."""
    run = Path("runs") / stage
    done = run / "done"
    if done.exists():
        print(f"{run} is done; remove it to train anew")
        return
    words = ["train", "--config", f"configs/{stage}.yaml", *options, "--output", str(run)]
    try:
        run_nvs(*words, *_resume(run))
    except StepError:
        if not (run / "config.yaml").exists():  # refused before it began
            raise
        print("Trying again with plain PyTorch", file=sys.stderr)
        run_nvs(*words, *_resume(run), "--training.compile", "false", environment=PLAIN)
    done.touch()


class StepError(UserError):
    """A command that failed, having said why."""


def run_nvs(*words: str, environment: dict[str, str] | None = None) -> None:
    """Run a command of nvs in a process of its own; raises StepError if it fails, KeyboardInterrupt if it was stopped.

    Ctrl-C is left to that process, which saves its work.
    """
    print("nvs", *words, flush=True)
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        code = subprocess.call([sys.executable, "-m", "apps", *words], env={**os.environ, **(environment or {})})
    finally:
        signal.signal(signal.SIGINT, before)
    if code in (130, -signal.SIGINT):
        raise KeyboardInterrupt
    if code:
        raise StepError(f"nvs {words[0]} failed (exit code {code}); repeat the command to go on from there.")


def _resume(run: Path) -> list[str]:
    return ["--resume", "last"] if any((run / f"{name}.ckpt").exists() for name in ("last", "previous")) else []


def main(arguments: list[str] | None = None) -> int:
    """Make the model of a route; 1 if a step failed, 130 if it was stopped."""
    parser = argparse.ArgumentParser(prog="python -m apps.demo_model", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--gpu", action="store_true", help="the larger model for 128x128 pixels, for one GPU")
    parser.add_argument("--meshes", type=Path, help="folder of meshes to train on beside procedural scenes")
    parser.add_argument("--up", choices=("auto", "y", "z"), default="auto", help="vertical axis of the meshes")
    parser.add_argument("--minutes", type=float, nargs=2, help="minutes of the two stages")
    parser.add_argument("--output", type=Path, help="folder for the model and its evaluation")
    parser.add_argument("--only-objects", action="store_true", help="prepare the meshes and stop")
    o: Any = parser.parse_args(arguments)
    if o.only_objects and o.meshes is None:
        parser.error("--only-objects needs --meshes")
    if o.minutes and min(o.minutes) <= 0:
        parser.error("--minutes must be above 0")
    output = o.output or Path("out/demo_model_gpu" if o.gpu else "out/demo_model")
    try:
        make_model(GPU if o.gpu else CPU, output, o.meshes, o.up, o.minutes, o.only_objects)
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped; repeat the command to go on.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
