"""The settings of `nvs train`: checked against each other, and written into the folder of the run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from torch import nn

from data import UserError, write_atomic
from data.batches import TrainingScene, nearest_size
from data.config import DataConfig
from data.shards.index import find_shards
from nvs import ModelConfig, TrainedRange
from nvs.lpips import Unavailable, load_lpips
from nvs.trained_range import horizontal_fov
from nvs.training_config import TrainingConfig


def check_own_config(folder: Path) -> None:
    """Refuse a folder whose config.yaml is not in full, as runs write it, but of a person."""
    path = folder / "config.yaml"
    if not path.exists():
        return
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        content = None
    if not isinstance(content, dict) or set(content) != {"model", "data", "training", "output", "init_from"}:
        raise UserError(f"{path} is not from a run, and is not written over: move it, or choose another --output.")


def check_sizes(model: ModelConfig, data: DataConfig) -> None:
    """Refuse an image size (pixels) that cannot be cut into the model's patches."""
    patch = model.patch_size
    for size in data.all_sizes:
        if any(side % patch for side in size):
            name = "image_size" if size == data.image_size else "image_sizes"
            near = [max(patch, round(side / patch) * patch) for side in size]
            raise UserError(
                f"data.{name} {list(size)} cannot be cut into patches of {patch} pixels; the nearest size is {near}."
            )


def load_perceptual(training: TrainingConfig) -> nn.Module | None:
    """LPIPS for the loss, where its weight is above 0; raises UserError where its own weights are missing."""
    if not training.perceptual_weight:
        return None
    lpips = load_lpips(training.lpips_weights)
    if isinstance(lpips, Unavailable):
        raise UserError(f"training.perceptual_weight needs LPIPS, which is {lpips}; or set the weight to 0.")
    return lpips


def trained_range(scenes: list[TrainingScene], data: DataConfig) -> TrainedRange:
    """What the model will have seen: numbers of views, image size (pixels), fields of view (degrees) and the like."""
    described = f"{len(scenes)} captures: {data.scene or ', '.join(data.scenes or [])}"
    fov = [horizontal_fov(s.scene.cameras(s.train, nearest_size(s.scene, data.all_sizes))) for s in scenes]
    if data.source == "procedural":
        described, fov = f"procedural scenes ({data.procedural.mode} mode)", [data.procedural.fov_degrees]
    if data.source == "shards":
        described = f"shards: {', '.join(data.shards or [])}"
        fov = [find_shards(data.shards or []).fov_degrees(data.image_size)]
    return TrainedRange(
        views=data.input_views,
        image_size=data.image_size,
        fov_degrees=(min(low for low, _ in fov), max(high for _, high in fov)),
        normalization=data.normalization,
        background=data.background,
        description=data.description or described,
        steps=0,
        holdout_every=data.holdout_every,
    )


def write_config(
    folder: Path, model: ModelConfig, data: DataConfig, training: TrainingConfig, init_from: str | None
) -> None:
    """The resolved settings, in the form that --config takes."""
    values = {"model": model, "data": data, "training": training}
    plain: dict[str, Any] = {k: plain_values(asdict(v)) for k, v in values.items()}
    # Which memory layer it is, in the words that --config takes.
    memory = type(model.memory)
    plain["model"]["memory"] = {
        "class_path": f"nvs.memory.{memory.__name__}",
        "init_args": {k: v for k, v in plain["model"]["memory"].items() if k != "kind"},
    }
    plain |= {"output": str(folder), "init_from": init_from}
    with write_atomic(folder / "config.yaml") as temporary:
        temporary.write_text(yaml.safe_dump(plain, sort_keys=False), encoding="utf-8")


def plain_values(value: Any) -> Any:
    """Tuples as lists: YAML's safe form has no tuples."""
    if isinstance(value, dict):
        return {k: plain_values(v) for k, v in value.items()}
    return [plain_values(v) for v in value] if isinstance(value, list | tuple) else value
