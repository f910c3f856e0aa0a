"""`nvs train`: train a model on captures."""

from __future__ import annotations

import logging
import math
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from apps.arguments import is_stated
from apps.train_settings import check_own_config, check_sizes, load_perceptual, trained_range, write_config
from data import UserError
from data.config import DataConfig
from data.datamodule import SceneData
from kernels import current_backend
from nvs import ModelConfig
from nvs.memory_estimate import StepShape, free_bytes, training_bytes
from nvs.starting_point import check_resumable, find_resume, start_model
from nvs.training import AtomicCheckpoints, Keeper, Training
from nvs.training_config import TrainingConfig

MAX_WARNINGS = 20


def train(
    model: ModelConfig = ModelConfig(),
    data: DataConfig = DataConfig(),
    training: TrainingConfig = TrainingConfig(),
    output: str = "runs/train",
    resume: str | None = None,
    init_from: str | None = None,
) -> None:
    """Train a model on captures; logs, checkpoints and picture sheets go into one folder.

    Example: nvs train --config configs/tiny_cpu.yaml --training.max_minutes 10 --output runs/tiny

    Args:
        model: Size and make of the network; left out, that of --init-from.
        data: Captures, and what each batch shows of them.
        training: Length, optimiser, precision and the like.
        output: Folder of the run.
        resume: Go on with a run: `last` (of this folder) or a checkpoint of any run.
        init_from: Checkpoint or shipped name; every weight whose name and shape fit is kept.
    """
    folder = Path(output)
    checkpoint = find_resume(folder, resume)
    check_own_config(folder)
    lpips = load_perceptual(training)
    scenes = SceneData(data, training.seed)
    scenes.setup()
    torch.manual_seed(training.seed)
    # The default model counts as chosen only where it was asked for; otherwise that of the checkpoint is meant.
    chosen = model if is_stated("model") or model != ModelConfig() else None
    network, kept = start_model(chosen, checkpoint, init_from)
    kept += check_resumable(checkpoint, training.optimizer)
    check_sizes(network.config, data)
    network.trained = trained_range(scenes.scenes, data)
    network.activation_checkpointing = training.activation_checkpointing
    folder.mkdir(parents=True, exist_ok=True)
    rank_zero_only(write_config)(folder, network.config, data, training, init_from)

    module = Training(network, training, folder, lpips)
    if training.compile:
        network.compile_blocks()
    keeper = Keeper(folder, training)
    trainer = _trainer(training, folder, keeper)
    shown = scenes.warnings[:MAX_WARNINGS]
    hidden = len(scenes.warnings) - len(shown)
    for line in [*kept, *(f"Warning: {x}" for x in shown), *([f"{hidden} more warnings"] if hidden else [])]:
        _say(line)
    _announce(trainer, module, scenes)
    _tell_memory(trainer, module, data)
    try:
        with _stop_on_interrupt(keeper):
            trainer.fit(module, scenes, ckpt_path=checkpoint)
    except UserError as error:
        # A worker's error arrives with its traceback in the text; its own sentence is the last line.
        raise UserError(str(error).strip().splitlines()[-1].split("UserError: ")[-1]) from error
    except RuntimeError as error:
        if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        first = str(error).strip().splitlines()[0][:200]
        raise UserError(f"torch.compile does not work here ({first}); leave out training.compile.") from error
    if keeper.interrupted:
        _say(f"Saved at step {trainer.global_step}: {folder / 'last.ckpt'}; go on with --resume last.")
        raise KeyboardInterrupt
    _say(f"Done at step {trainer.global_step}: {folder / 'last.ckpt'}")
    if math.isfinite(keeper.best) and (folder / "best.ckpt").is_file():  # a run resumed from elsewhere has its own
        _say(f"Best on held-out photos, {keeper.best:.2f} dB: {folder / 'best.ckpt'}")


def _trainer(training: TrainingConfig, folder: Path, keeper: Keeper) -> pl.Trainer:
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for known in (".*does not have many workers.*", ".*isinstance.treespec, LeafSpec.*"):
        warnings.filterwarnings("ignore", message=known)
    loggers: list[Logger] = [
        CSVLogger(folder, name="csv", flush_logs_every_n_steps=training.log_every),
        TensorBoardLogger(folder, name="tensorboard", version=""),
    ]
    if training.wandb_project:
        loggers.append(_wandb(training.wandb_project, folder))
    return pl.Trainer(
        default_root_dir=folder,
        accelerator=training.accelerator,
        devices=training.devices,
        strategy="ddp" if training.devices > 1 else "auto",
        precision="32-true" if training.precision == "fp32" else "bf16-mixed",
        max_steps=training.max_steps,
        val_check_interval=training.validate_every,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        log_every_n_steps=training.log_every,
        logger=loggers,
        callbacks=[keeper, StepProgress()],
        plugins=[AtomicCheckpoints()],
        enable_checkpointing=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )


def _wandb(project: str, folder: Path) -> Logger:
    try:
        from lightning.pytorch.loggers import WandbLogger

        return WandbLogger(project=project, save_dir=folder)
    except (ImportError, ModuleNotFoundError) as error:
        raise UserError(
            "training.wandb_project needs the package wandb: pip install wandb, or leave it out."
        ) from error


def _announce(trainer: pl.Trainer, module: Training, scenes: SceneData) -> None:
    photos, held_out = sum(len(s.train) for s in scenes.scenes), sum(len(s.held_out) for s in scenes.scenes)
    shown = f"{len(scenes.scenes)} captures with {photos} training photos, {held_out} held out"
    if scenes.config.source == "procedural":
        shown = f"random scenes ({scenes.config.procedural.mode} mode)"
    if scenes.shards:
        shown = f"{sum(len(shard.scenes) for shard in scenes.shards.shards)} captures in shards"
    parameters = sum(p.numel() for p in module.model.parameters()) / 1e6
    device = trainer.strategy.root_device.type
    kernels = current_backend()
    if kernels == "auto":
        kernels += " (Triton where supported)" if device == "cuda" else " (reference)"
    _say(
        f"Training {parameters:.1f} M parameters on {trainer.world_size} x {device}, {module.config.precision}, "
        f"kernels: {kernels}; {shown}"
    )


@rank_zero_only
def _tell_memory(trainer: pl.Trainer, module: Training, data: DataConfig) -> None:
    device = trainer.strategy.root_device
    bfloat16, again = module.config.precision != "fp32", module.config.activation_checkpointing
    size = max(data.all_sizes, key=math.prod)
    largest = StepShape(data.batch_size, data.input_views[1], data.target_views[1], size, bfloat16, again)
    weights, activations = training_bytes(module.model.config, largest)
    needed, free = weights + activations, free_bytes(device)
    _say(f"Memory: about {needed / 1e9:.2g} GB for each process ({activations / 1e9:.2g} GB of it activations)")
    if free is not None and needed * (trainer.world_size if device.type == "cpu" else 1) > free:
        _say(
            f"Warning: only {free / 1e9:.2g} GB are free; lower data.batch_size or the numbers of views, or set "
            "training.activation_checkpointing."
        )


class StepProgress(ProgressBar):
    """A line with steps, time left and the latest PSNR; the time left also minds `max_minutes`."""

    def __init__(self) -> None:
        super().__init__()
        self.bar = Progress(
            TextColumn("step {task.fields[step]}"),
            BarColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[scores]}"),
            console=Console(stderr=True),
        )
        self.task = self.bar.add_task("", total=1.0, step=0, scores="", start=False)

    def disable(self) -> None:
        """Show nothing, on ranks other than the first."""
        self.bar.disable = True

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin."""
        self.bar.start()
        self.bar.start_task(self.task)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        """Move on by a step."""
        assert isinstance(pl_module, Training)
        shown = {"psnr": "training", "val/psnr": "held out"}
        scores = [
            f"{label} {trainer.callback_metrics[key].item():.2f} dB"
            for key, label in shown.items()
            if key in trainer.callback_metrics
        ]
        self.bar.update(self.task, completed=pl_module.progress, step=trainer.global_step, scores=", ".join(scores))

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave a line that stays."""
        scores = {k.removeprefix("val/"): x.item() for k, x in trainer.callback_metrics.items() if k.startswith("val/")}
        told = ", ".join(f"{k} {x:.2f}" for k, x in scores.items())
        if trainer.is_global_zero:
            self.bar.console.print(f"step {trainer.global_step}: {told}", highlight=False)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """End the line."""
        self.bar.stop()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """End the line."""
        self.bar.stop()


@contextmanager
def _stop_on_interrupt(keeper: Keeper) -> Iterator[None]:
    """Ctrl-C ends the run after the current step, saved; a second Ctrl-C ends it at once."""

    def stop(number: int, frame: Any) -> None:
        keeper.interrupted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _say("Stopping after this step and a last validation. Press Ctrl-C again to stop at once.")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@rank_zero_only
def _say(text: str) -> None:
    Console(stderr=True, soft_wrap=True, highlight=False).print(text, markup=False)
