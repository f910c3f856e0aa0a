"""Where a training run starts: at random weights, at those of another checkpoint that fit, or where it stopped."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from data import UserError
from nvs.checkpoint import read_checkpoint
from nvs.model import LaCT, ModelConfig
from nvs.optimizers import OptimizerName
from nvs.tokens import widen_decoder


def find_resume(folder: Path, resume: str | None) -> Path | None:
    """The checkpoint to go on from, if any; raises UserError rather than overwrite a run or start anew unasked."""
    last, previous, best = (folder / f"{name}.ckpt" for name in ("last", "previous", "best"))
    if resume is None:
        if last.exists() or previous.exists() or best.exists():
            which = "last" if last.exists() or previous.exists() else best
            raise UserError(f"{folder} already holds a run; add --resume {which} to go on, or choose another --output.")
        return None
    if resume != "last":
        if not Path(resume).is_file():
            raise UserError(f"There is no checkpoint {resume} to resume from; give `last` or a .ckpt file of a run.")
        return Path(resume)
    if not last.exists() and not previous.exists():
        raise UserError(f"{folder} holds no checkpoint to resume from; leave out --resume, or name the run's --output.")
    return last if last.exists() else previous


def check_resumable(checkpoint: Path | None, optimizer: OptimizerName) -> list[str]:
    """Refuse a checkpoint that holds no run, or one of another optimiser, before anything is written.

    Returns a line that says how far the run is.
    """
    if checkpoint is None:
        return []
    if checkpoint.suffix == ".safetensors":
        raise UserError(f"{checkpoint} holds a model but no run to resume; start a new run with --init-from.")
    try:
        saved = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
        states = saved["optimizer_states"]
        kind = "muon" if "parts" in states[0] else "adamw"
    except (KeyError, IndexError, TypeError, RuntimeError, ValueError) as error:
        raise UserError(
            f"{checkpoint} holds a model but no run to resume; start a new run with --init-from."
        ) from error
    if kind != optimizer:
        raise UserError(
            f"{checkpoint} is a run with training.optimizer {kind}; resume with that, or start a new run "
            "with --init-from."
        )
    minutes = saved.get("nvs_run", {}).get("seconds", 0.0) / 60
    return [f"Going on from step {saved.get('global_step', 0)}, after {minutes:.1f} minutes; limits count all of it"]


def start_model(config: ModelConfig | None, checkpoint: Path | None, init_from: str | None) -> tuple[LaCT, list[str]]:
    """The model to train, and lines that say which weights of `init_from` it keeps and which not.

    Without `config` it is that of the checkpoint, or else the default. A run to be resumed loads its weights later.
    """
    if checkpoint is None and init_from is None:
        return LaCT(config or ModelConfig()), []
    source = checkpoint or init_from
    assert source is not None
    saved, weights, _ = read_checkpoint(source)
    model = LaCT(config or saved)
    if checkpoint is None:
        return model, _keep_fitting(model, saved, weights, str(source))
    if model.config != saved:
        changed = [k for k, v in asdict(model.config).items() if v != asdict(saved)[k]]
        raise UserError(
            f"{checkpoint} is a run of another model (different: {', '.join(changed)}); resume with its own "
            "config.yaml, or start a new run with --init-from."
        )
    return model, []


def _keep_fitting(model: LaCT, saved: ModelConfig, weights: dict[str, Tensor], source: str) -> list[str]:
    weights, changed = _with_overlap(model.config, saved, weights)
    own = model.state_dict()
    fitting = {k: x for k, x in weights.items() if k in own and own[k].shape == x.shape}
    if not fitting:
        raise UserError(f"No weight of {source} fits this model; give a checkpoint of a model of the same width.")
    model.load_state_dict(fitting, strict=False)
    lists = {
        "at their random start": set(own) - set(fitting),
        "of the checkpoint not used": set(weights) - set(fitting),
    }
    lines = [f"Kept {len(fitting)} of {len(own)} weights from {source}"]
    return lines + changed + [f"{len(v)} weights {k}: {', '.join(sorted(v))}" for k, v in lists.items() if v]


def _with_overlap(wanted: ModelConfig, saved: ModelConfig, weights: dict[str, Tensor]) -> tuple[dict, list[str]]:
    """The weights with a decoder for patches that overlap as wanted, and a line that says so if it was changed."""
    patch, before, after = saved.patch_size, saved.decode_overlap, wanted.decode_overlap
    decoder = weights.get("decode.weight")
    fits = decoder is not None and decoder.shape == (3 * (patch + 2 * before) ** 2, wanted.dim)
    if before == after or patch != wanted.patch_size or not fits:
        return weights, []
    changed = weights | {"decode.weight": widen_decoder(weights["decode.weight"], patch, before, after)}
    return changed, [f"Decoder of patches that overlap by {before} pixels made one for {after}"]
