"""Training with Lightning: one step, what is saved and when to stop. The model knows nothing of this."""

from __future__ import annotations

import copy
import math
import os
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.io import CheckpointIO
from torch import Tensor, nn
from torch.optim import Optimizer

from data import UserError, Views, write_atomic
from nvs.checkpoint import clean_names
from nvs.losses import pixel_loss
from nvs.metrics import psnr, psnr_inside
from nvs.model import LaCT
from nvs.optimizers import build_optimizer, learning_rate_factor
from nvs.sheet import picture_sheet, stack_sheets
from nvs.training_config import TrainingConfig


class Training(pl.LightningModule):
    """One model in training, with the running mean of its weights and, if asked for, a perceptual loss."""

    def __init__(self, model: LaCT, config: TrainingConfig, output: Path, lpips: nn.Module | None = None) -> None:
        super().__init__()
        self.model, self.config, self.output = model, config, output
        self.ema = copy.deepcopy(model).requires_grad_(False) if config.ema_decay else None
        # In a list, so that its weights are neither moved into checkpoints nor handed to the optimiser.
        self.perceptual = [] if lpips is None else [lpips]
        self.skipped, self.skipped_in_row = 0, 0
        self.random_state: Tensor | None = None
        self.seconds, self.started = 0.0, time.monotonic()
        self.progress = 0.0
        """How much of the training is done, 0..1 and beyond: steps or minutes, whichever is further."""
        self.full_rates: list[float] = []
        self.decays: list[float] = []
        self.sheets: list[Any] = []
        self.train()  # Lightning keeps the mode it finds

    def configure_optimizers(self) -> Optimizer:
        """Build the optimiser; its learning rates are set anew before each step."""
        c = self.config
        second = c.learning_rate if c.muon_learning_rate is None else c.muon_learning_rate
        optimizer = build_optimizer(self.model, c.optimizer, c.learning_rate, c.weight_decay, second)
        self.full_rates = [group["lr"] for group in optimizer.param_groups]
        self.decays = [group["weight_decay"] for group in optimizer.param_groups]
        return optimizer

    def on_fit_start(self) -> None:
        """Start the clock, and see to what Lightning does not know of."""
        self.started = time.monotonic()
        self.perceptual = [lpips.to(self.device) for lpips in self.perceptual]

    def on_train_start(self) -> None:
        """Go on with the random numbers of the run that is resumed; no random number falls between here and a step.

        The optimiser comes from the checkpoint, but its weight decay from the configuration, as learning rates do.
        """
        for group, decay in zip(self.trainer.optimizers[0].param_groups, self.decays, strict=True):
            group["weight_decay"] = decay
        if self.random_state is not None:
            torch.set_rng_state(self.random_state.cpu())

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """See how far the training is, and set the learning rate of this step."""
        c = self.config
        self.progress = self.global_step / c.max_steps
        if c.max_minutes is not None:
            by_time = (self.seconds + time.monotonic() - self.started) / (60 * c.max_minutes)
            # All ranks must agree, or their learning rates and their ends would drift apart.
            by_time = self.trainer.strategy.broadcast(by_time) if self.trainer.world_size > 1 else by_time
            self.progress = max(self.progress, by_time)
        factor = learning_rate_factor(self.global_step, c.warmup_steps, self.progress, c.final_learning_rate)
        for group, rate in zip(self.trainer.optimizers[0].param_groups, self.full_rates, strict=True):
            group["lr"] = rate * factor

    def training_step(self, batch: tuple[Views, Views], batch_idx: int) -> Tensor:
        """Render the targets from the inputs and compare."""
        inputs, targets = batch
        images = self.model(inputs, targets.cameras)
        loss = pixel_loss(images, targets.images, targets.alpha, self.config.foreground_weight)
        logged = {"train/loss": loss.detach(), "train/psnr": psnr(images.detach().float(), targets.images).mean()}
        if self.perceptual and self.global_step >= self.config.perceptual_from_step:
            distance = self.perceptual[0](images.float(), targets.images).mean()
            loss = loss + self.config.perceptual_weight * distance
            logged |= {"train/loss": loss.detach(), "train/lpips": distance.detach()}
        rate = self.trainer.optimizers[0].param_groups[0]["lr"]
        self.log_dict(logged | {"learning_rate": rate}, batch_size=1)
        self.log("psnr", logged["train/psnr"], prog_bar=True, logger=False, batch_size=1)
        # A loss that is not finite can still have finite gradients; make every rank see it.
        return loss if torch.isfinite(loss) else loss * math.nan

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradient; drop it, so that the step changes nothing, if it is not finite or far too long."""
        c = self.config
        weights = [p for p in self.model.parameters() if p.grad is not None]
        norm = nn.utils.clip_grad_norm_(weights, c.clip_norm).item()
        if math.isfinite(norm) and (not c.skip_above or norm <= c.skip_above * c.clip_norm):
            self.skipped_in_row = 0
        else:
            self.skipped, self.skipped_in_row = self.skipped + 1, self.skipped_in_row + 1
            for weight in weights:
                weight.grad = None
        if self.skipped_in_row >= c.max_skipped:
            raise UserError(
                f"Training stopped at step {self.global_step}: {self.skipped_in_row} steps in a row had a gradient "
                f"that was not finite or too long (norm {norm:.3g}); lower training.learning_rate and resume from the "
                "last checkpoint."
            )
        self.log_dict({"train/gradient_norm": norm, "train/skipped": float(self.skipped)}, batch_size=1)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Step, then let the running mean follow; at the start, where weights move fast, it follows closely."""
        super().optimizer_step(*args, **kwargs)
        if self.ema is None:
            return
        decay = min(self.config.ema_decay, (1 + self.global_step) / (10 + self.global_step))
        with torch.no_grad():
            for average, weight in zip(self.ema.parameters(), self.model.parameters(), strict=True):
                average.lerp_(weight, 1 - decay)

    def validation_step(self, batch: tuple[str, bool, Views, Views], batch_idx: int) -> None:
        """Judge one capture, and draw its picture sheet."""
        name, held_out, inputs, targets = batch
        model = self.model if self.ema is None else self.ema
        images = model(inputs, targets.cameras).float()
        scores = {"psnr": psnr(images, targets.images)}
        if targets.alpha is not None:
            scores["psnr_foreground"] = psnr_inside(images, targets.images, targets.alpha)
        for key, values in scores.items():
            values = values[values.isfinite()]
            if len(values):
                label = f"val/{key}" if held_out else f"val/{key}_train_views"
                self.log(label, values.mean(), batch_size=len(values), prog_bar=label == "val/psnr")
        if self.trainer.is_global_zero:
            kind = "held-out photo" if held_out else "training photo"
            note = f"step {self.global_step}"
            sheet = picture_sheet(inputs.images[0], targets.images[0], images[0], name, note, kind=kind)
            self.sheets.append(sheet)

    def on_validation_epoch_end(self) -> None:
        """Note the minutes of training until now, and write the picture sheet of this validation."""
        self.log("minutes", (self.seconds + time.monotonic() - self.started) / 60)
        if self.sheets:
            folder = self.output / "sheets"
            folder.mkdir(parents=True, exist_ok=True)
            with write_atomic(folder / f"step_{self.global_step:07d}.png") as temporary:
                stack_sheets(self.sheets).save(temporary)
            self.sheets = []

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store plain values only; `state_dict` gets the averaged weights, which are the ones to be used afterwards."""
        trained = self.model.trained and replace(self.model.trained, steps=self.global_step)
        checkpoint["nvs"] = {"model": asdict(self.model.config), "trained": trained and trained.to_dict()}
        checkpoint["nvs_run"] = {
            "seconds": self.seconds + time.monotonic() - self.started,
            "random_state": torch.get_rng_state(),
        }
        weights = checkpoint["state_dict"]
        checkpoint["state_dict"] = _part(weights, "ema." if self.ema is not None else "model.")
        if self.ema is not None:
            checkpoint["training_weights"] = _part(weights, "model.")

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Undo `on_save_checkpoint`, also for checkpoints that were written by compiled or distributed runs."""
        averaged = clean_names(checkpoint["state_dict"])
        current = clean_names(checkpoint.get("training_weights", checkpoint["state_dict"]))
        wrong = sorted((set(self.model.state_dict()) ^ set(current)) | (set(current) ^ set(averaged)))
        if wrong:
            raise UserError(
                f"The checkpoint cannot be resumed: {len(wrong)} weights are missing or unknown, the first {wrong[0]}; "
                "use an undamaged checkpoint, or start a new run with --init-from."
            )
        checkpoint["state_dict"] = {f"model.{k}": x for k, x in current.items()}
        if self.ema is not None:
            checkpoint["state_dict"] |= {f"ema.{k}": x for k, x in averaged.items()}
        run = checkpoint.get("nvs_run", {})
        self.seconds = float(run.get("seconds", 0.0))
        self.random_state = run.get("random_state")


class Keeper(pl.Callback):
    """Ends the run and saves it: `last.ckpt` (and the one before), and `best.ckpt` by PSNR on held-out views."""

    def __init__(self, folder: Path, config: TrainingConfig) -> None:
        self.folder, self.config = folder, config
        self.best = -math.inf
        self.interrupted = False
        """Set from outside to end the run after the current step."""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Remove what a run that was killed while it saved has left."""
        for left in self.folder.glob(".part-*") if trainer.is_global_zero else ():
            left.unlink()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        """Decide whether this was the last step; save every so many steps and at the end."""
        assert isinstance(pl_module, Training)
        stop = self.interrupted
        stop = trainer.strategy.broadcast(stop) if trainer.world_size > 1 else stop
        if stop or pl_module.progress >= 1 or trainer.global_step >= self.config.max_steps:
            trainer.should_stop = True
        if trainer.should_stop or trainer.global_step % self.config.save_every == 0:
            trainer.save_checkpoint(self.folder / "last.ckpt")

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save the best model so far."""
        score = trainer.callback_metrics.get("val/psnr")
        if score is not None and score.item() > self.best:
            self.best = score.item()
            trainer.save_checkpoint(self.folder / "best.ckpt")

    def state_dict(self) -> dict[str, Any]:
        """The best score so far."""
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the best score, which may be younger than the checkpoint that is resumed from."""
        self.best = state_dict["best"]
        file = self.folder / "best.ckpt"
        if file.is_file():
            # One that is cut off or foreign is worth nothing, and the next better model takes its place.
            with suppress(Exception):
                saved = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
                self.best = max(self.best, saved["callbacks"][self.state_key]["best"])


class AtomicCheckpoints(CheckpointIO):
    """Writes checkpoints beside their place and renames them; keeps the one before; loads plain values only."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint; whenever the power fails, a whole one is there."""
        path = Path(path)
        with write_atomic(path) as temporary:
            with temporary.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            if path.name == "last.ckpt" and path.exists():
                _keep_as(path, path.with_name("previous.ckpt"))

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a checkpoint; code in it is never run."""
        return torch.load(path, map_location=map_location or "cpu", weights_only=True)

    def remove_checkpoint(self, path: Any) -> None:
        """Delete a checkpoint."""
        Path(path).unlink(missing_ok=True)


def _keep_as(path: Path, name: Path) -> None:
    """Give a file a second name, so that it outlives its replacement."""
    name.unlink(missing_ok=True)
    try:
        os.link(path, name)
    except OSError:  # a file system without hard links
        os.replace(path, name)


def _part(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The weights of one copy of the model, named `model.<name>`."""
    return {"model." + k.removeprefix(prefix): x for k, x in weights.items() if k.startswith(prefix)}
