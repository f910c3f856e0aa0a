"""One model in training: what a step does, what it refuses to do, and what is written."""

import copy
import math
from dataclasses import replace
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from tiny import make_model, make_views

from data import UserError
from nvs.training import AtomicCheckpoints, Keeper, Training
from nvs.training_config import TrainingConfig

CONFIG = TrainingConfig(max_steps=3, warmup_steps=0, ema_decay=0.5, learning_rate=1e-2, log_every=1, save_every=1)


class Stream(torch.utils.data.IterableDataset):
    """Batches of random views without end; `spoil` makes the photos of chosen steps unusable."""

    def __init__(self, spoil: dict[int, float] | None = None) -> None:
        self.spoil = spoil or {}

    def __iter__(self):
        step = 0
        while True:
            inputs, targets = make_views(2, batch=2, seed=2 * step), make_views(1, batch=2, seed=2 * step + 1)
            yield inputs, replace(targets, images=targets.images * self.spoil.get(step, 1.0))
            step += 1


def fit(module: Training, stream: Stream, keeper: Keeper | None = None) -> pl.Trainer:
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=module.config.max_steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[] if keeper is None else [keeper],
        plugins=[AtomicCheckpoints()],
    )
    trainer.fit(module, torch.utils.data.DataLoader(stream, batch_size=None))
    return trainer


def test_step_is_that_of_a_plain_loop(tmp_path):
    module = Training(make_model(), CONFIG, tmp_path)
    plain = make_model().train()
    average = copy.deepcopy(plain)
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in plain.parameters() if p.ndim >= 2], "weight_decay": 0.05},
            {"params": [p for p in plain.parameters() if p.ndim < 2], "weight_decay": 0.0},
        ],
        betas=(0.9, 0.95),
    )
    for step, (inputs, targets) in zip(range(CONFIG.max_steps), Stream(), strict=False):
        optimizer.zero_grad()
        ((plain(inputs, targets.cameras) - targets.images) ** 2).mean().backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * (1 + math.cos(math.pi * step / 3)) / 2
        optimizer.step()
        decay = min(0.5, (step + 1) / (step + 10))
        with torch.no_grad():
            for mean, weight in zip(average.parameters(), plain.parameters(), strict=True):
                mean.copy_(decay * mean + (1 - decay) * weight)
    fit(module, Stream())
    for own, expected in ((module.model, plain), (module.ema, average)):
        torch.testing.assert_close(own.state_dict(), expected.state_dict(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("factor", [math.nan, math.inf, 1e15])
def test_step_that_is_not_finite_or_too_long_changes_nothing(tmp_path, factor):
    module = Training(make_model(), replace(CONFIG, max_steps=1), tmp_path)
    before = copy.deepcopy(module.model.state_dict())
    fit(module, Stream({0: factor}))
    torch.testing.assert_close(module.model.state_dict(), before, rtol=0, atol=0)
    assert module.skipped == 1
    module = Training(make_model(), CONFIG, tmp_path)
    fit(module, Stream({1: factor}))
    assert (module.skipped, module.skipped_in_row) == (1, 0)
    assert all(p.isfinite().all() for p in module.model.parameters())


def test_too_many_skipped_steps_end_the_run(tmp_path):
    module = Training(make_model(), replace(CONFIG, max_steps=9, max_skipped=3), tmp_path)
    with pytest.raises(UserError, match="3 steps in a row"):
        fit(module, Stream({step: math.nan for step in range(1, 9)}))
    assert module.global_step <= 4


def test_activation_checkpointing_changes_nothing(tmp_path):
    plain = Training(make_model(), CONFIG, tmp_path)
    fit(plain, Stream())
    saving = Training(make_model(), CONFIG, tmp_path)
    saving.model.activation_checkpointing = True
    fit(saving, Stream())
    torch.testing.assert_close(plain.model.state_dict(), saving.model.state_dict())


def test_perceptual_loss_joins_from_its_step_on(tmp_path):
    calls = []

    class Distance(torch.nn.Module):
        def forward(self, pred, target):
            calls.append(pred.shape)
            return (pred - target).abs().mean(dim=(-3, -2, -1))

    config = replace(CONFIG, perceptual_weight=0.5, perceptual_from_step=2)
    module = Training(make_model(), config, tmp_path, Distance())
    fit(module, Stream())
    assert calls == [torch.Size([2, 1, 3, 16, 24])]
    assert not any("perceptual" in name for name in module.state_dict())


def test_checkpoints_are_plain_and_the_one_before_is_kept(tmp_path):
    (tmp_path / ".part-left-over.ckpt").write_bytes(b"cut off")
    module = Training(make_model(), CONFIG, tmp_path)
    fit(module, Stream(), Keeper(tmp_path, CONFIG))
    last, previous = (torch.load(tmp_path / f"{name}.ckpt", weights_only=True) for name in ("last", "previous"))
    assert (last["global_step"], previous["global_step"]) == (3, 2)
    assert {p.name for p in tmp_path.iterdir()} == {"last.ckpt", "previous.ckpt"}
    assert last["state_dict"].keys() == {f"model.{name}" for name in make_model().state_dict()}
    assert last["nvs"]["model"]["dim"] == 32


def test_failed_save_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "last.ckpt"
    AtomicCheckpoints().save_checkpoint({"a": torch.ones(2)}, path)
    before = path.read_bytes()

    def cut_off(content, file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", cut_off)
    with pytest.raises(OSError, match="No space left"):
        AtomicCheckpoints().save_checkpoint({"a": torch.zeros(2)}, path)
    assert path.read_bytes() == before
    assert [p.name for p in Path(tmp_path).iterdir()] == ["last.ckpt"]


@pytest.mark.parametrize(
    "settings",
    [
        {"max_steps": 0},
        {"learning_rate": 0.0},
        {"ema_decay": 1.0},
        {"final_learning_rate": 2.0},
        {"weight_decay": -0.1},
        {"max_minutes": 0.0},
    ],
)
def test_settings_that_cannot_work_are_refused(settings):
    with pytest.raises(ValueError, match=r"training\."):
        TrainingConfig(**settings)
