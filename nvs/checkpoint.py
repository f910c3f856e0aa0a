"""Models on disk: ours (.safetensors, .ckpt), published LaCT checkpoints (.pt) and the shipped ones by name."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from data import UserError, write_atomic
from nvs.memory import CONFIG_TYPES
from nvs.model import LaCT, ModelConfig, Precision
from nvs.published import convert_published, is_published, published_names
from nvs.trained_range import TrainedRange

ASSETS = Path(__file__).parent / "assets"
"""Folder of the shipped checkpoints; each file's stem is its name."""
HEADER = "nvs_model"
WRAPPERS = {"module", "_orig_mod", "_checkpoint_wrapped_module"}
"""Parts of names that DDP, torch.compile and activation checkpointing put in."""
StorageType = Literal["float32", "bfloat16", "float16"]


def load_model(path: str | Path, device: str | torch.device = "cpu", precision: Precision = "fp32") -> LaCT:
    """Load a model for use (evaluation mode, no gradients) from a file or by its shipped name ("demo").

    With precision "bf16" products run in bfloat16: 1.5 to 1.7 times as fast on a CPU that has it.
    Raises UserError when the file is missing, damaged, holds code, or does not fit its configuration exactly.
    """
    config, weights, trained = read_checkpoint(path)
    blocks = {name.split(".")[1] for name in weights if name.startswith("blocks.")}
    if config.layers > len(blocks):
        told = f"{len(blocks)} blocks instead of {config.layers}"
        raise UserError(f"{path} does not fit its own configuration ({told}); use an undamaged checkpoint")
    # Without memory of its own, a model costs nothing to build, and a wrong size is found before it is allocated.
    with torch.device("meta"):
        model = LaCT(config)
    own = model.state_dict()
    missing = sorted(set(own) - set(weights))
    unexpected = sorted(set(weights) - set(own))
    wrong = [name for name in own if name in weights and own[name].shape != weights[name].shape]
    if missing or unexpected or wrong:
        told = f"{len(missing)} missing, {len(unexpected)} unknown, {len(wrong)} of another shape"
        first = (missing + unexpected + wrong)[0]
        raise UserError(
            f"{path} does not fit its own configuration ({told}, first {first}); use an undamaged checkpoint"
        )
    model.load_state_dict(dict(weights), assign=True)
    model.trained = trained
    model = model.eval().requires_grad_(False)
    model.use_precision(precision)
    return model.to(device)


def save_model(model: LaCT, path: str | Path, dtype: StorageType | None = None) -> None:
    """Write a model as safetensors: weights (in `dtype`, default as they are), configuration, trained range."""
    if dtype is not None and dtype not in get_args(StorageType):
        raise ValueError(f"unknown weight dtype {dtype!r}; choose one of {', '.join(get_args(StorageType))}")
    header = {"model": asdict(model.config), "trained": model.trained.to_dict() if model.trained else None}
    weights = {k: x.detach().cpu().contiguous() for k, x in clean_names(model.state_dict()).items()}
    if dtype is not None:
        weights = {k: x.to(getattr(torch, dtype)) for k, x in weights.items()}
    with write_atomic(path) as temporary:
        safetensors.torch.save_file(weights, temporary, {HEADER: json.dumps(header)})


def save_published(model: LaCT, path: str | Path) -> None:
    """Write a model in the published form: a torch file with a dict that has `model`.

    Raises UserError for a model that has no place in it.
    """
    if model.config.decode_overlap:
        raise UserError("the published layout has no place for decode_overlap; convert to .safetensors instead")
    weights = published_names(clean_names(model.state_dict()))
    with write_atomic(path) as temporary:
        torch.save({"model": weights}, temporary)


def read_checkpoint(path: str | Path) -> tuple[ModelConfig, dict[str, Tensor], TrainedRange | None]:
    """Configuration, weights (float32, our names) and trained range of a checkpoint, without building the model."""
    file = find_checkpoint(path)
    header, weights = _read_safetensors(file) if file.suffix == ".safetensors" else _read_torch(file)
    weights = {k: x.float() for k, x in clean_names(weights).items()}
    if is_published(weights):
        config, weights = convert_published(weights)
        return config, weights, None
    if header is None:
        raise UserError(
            f"{file} holds tensors but no nvs model; give a checkpoint of `nvs train` or a published LaCT one"
        )
    try:
        trained = None if header.get("trained") is None else TrainedRange.from_dict(header["trained"])
        return config_from_dict(header["model"]), weights, trained
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{file} has a damaged configuration ({error}); use an undamaged checkpoint") from error


def find_checkpoint(path: str | Path) -> Path:
    """The file of a checkpoint given by path or by shipped name; raises UserError if there is none."""
    file = Path(path)
    if file.is_file():
        return file
    shipped = {p.stem: p for p in sorted(ASSETS.glob("*.safetensors"))}
    if str(path) in shipped:
        return shipped[str(path)]
    if file.is_dir():
        inside = [file / name for name in ("best.ckpt", "last.ckpt") if (file / name).is_file()]
        hint = f"give a file in it, such as {inside[0]}" if inside else "the checkpoint comes first, then captures"
        raise UserError(f"{path} is a folder, and a checkpoint is a file; {hint}")
    names = ", ".join(shipped) or "none"
    raise UserError(f"there is no checkpoint at {path}; give a file, or a shipped name ({names})")


def clean_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights without what training wrappers put into their names."""
    cleaned = {".".join(p for p in name.split(".") if p not in WRAPPERS): x for name, x in weights.items()}
    if cleaned and all(name.startswith("model.") for name in cleaned):
        cleaned = {name.removeprefix("model."): weight for name, weight in cleaned.items()}
    return cleaned


def config_from_dict(values: dict[str, Any]) -> ModelConfig:
    """A model configuration from plain values; unknown keys are refused."""
    memory = values.get("memory", {})
    memory = _dataclass_from(CONFIG_TYPES[memory.get("kind", "lact")], memory)
    return _dataclass_from(ModelConfig, {**values, "memory": memory})


def _dataclass_from(kind: type, values: Any) -> Any:
    assert is_dataclass(kind)
    if isinstance(values, kind):
        return values
    unknown = set(values) - {f.name for f in fields(kind)}
    if unknown:
        raise ValueError(f"unknown setting {sorted(unknown)[0]!r}, perhaps of a newer version")
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})


def _read_safetensors(file: Path) -> tuple[dict | None, dict[str, Tensor]]:
    try:
        with safetensors.safe_open(file, "pt") as opened:
            text = (opened.metadata() or {}).get(HEADER)
            return (None if text is None else json.loads(text)), {k: opened.get_tensor(k) for k in opened.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, ValueError) as error:
        raise UserError(f"{file} is not a readable safetensors file ({error}); copy or download it again") from error


def _read_torch(file: Path) -> tuple[dict | None, dict[str, Tensor]]:
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{file} is damaged or holds Python code, which is never run; use a checkpoint that holds plain tensors"
        ) from error
    except Exception as error:  # damaged files make the unpickler raise many types
        raise UserError(
            f"{file} is not a readable checkpoint; it may be cut off, so copy or download it again"
        ) from error
    weights = content
    if isinstance(content, dict):
        weights = next((content[k] for k in ("state_dict", "model") if isinstance(content.get(k), dict)), content)
    if not isinstance(weights, dict) or not all(
        isinstance(k, str) and isinstance(x, Tensor) for k, x in weights.items()
    ):
        raise UserError(f"{file} holds no model weights; give a checkpoint of `nvs train` or a published LaCT one")
    return content.get("nvs") if isinstance(content, dict) else None, weights
