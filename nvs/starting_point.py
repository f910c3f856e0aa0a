"""Where a training run starts: at random weights, at those of another checkpoint that fit, or where it stopped."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from torch import Tensor

from data import UserError
from nvs.checkpoint import read_checkpoint
from nvs.model import LaCT, ModelConfig


def find_resume(folder: Path, resume: str | None) -> Path | None:
    """The checkpoint to go on from, if any; raises UserError rather than overwrite a run or start anew unasked."""
    last, previous = folder / "last.ckpt", folder / "previous.ckpt"
    if resume is None:
        if last.exists():
            raise UserError(f"{folder} already holds a run; add --resume last to go on, or choose another --output.")
        return None
    if resume != "last":
        if not Path(resume).is_file():
            raise UserError(f"There is no checkpoint {resume} to resume from; give `last` or a .ckpt file of a run.")
        return Path(resume)
    if not last.exists() and not previous.exists():
        raise UserError(f"{folder} holds no checkpoint to resume from; leave out --resume, or name the run's --output.")
    return last if last.exists() else previous


def start_model(config: ModelConfig, checkpoint: Path | None, init_from: str | None) -> tuple[LaCT, list[str]]:
    """The model to train, and lines that say which weights of `init_from` it keeps and which not.

    The default `config` stands for that of the checkpoint. A run to be resumed loads its weights later.
    """
    if checkpoint is None and init_from is None:
        return LaCT(config), []
    source = checkpoint or init_from
    assert source is not None
    saved, weights, _ = read_checkpoint(source)
    model = LaCT(saved if config == ModelConfig() else config)
    if checkpoint is None:
        return model, _keep_fitting(model, weights, str(source))
    if model.config != saved:
        changed = [k for k, v in asdict(config).items() if v != asdict(saved)[k]]
        raise UserError(
            f"{checkpoint} is a run of another model (different: {', '.join(changed)}); resume with its own "
            "config.yaml, or start a new run with --init-from."
        )
    return model, []


def _keep_fitting(model: LaCT, weights: dict[str, Tensor], source: str) -> list[str]:
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
    return lines + [f"{len(v)} weights {k}: {', '.join(sorted(v))}" for k, v in lists.items() if v]
