"""Settings of a training run; apart from the training itself so that reading them does not import Lightning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nvs.optimizers import OptimizerName


@dataclass(frozen=True)
class TrainingConfig:
    """How long and how a model is trained."""

    max_steps: int = 100_000
    """Steps in all, over every resumption; the learning rate falls until then."""
    max_minutes: float | None = None
    """Minutes in all, over every resumption; the learning rate falls until then if that is sooner than `max_steps`."""
    optimizer: OptimizerName = "adamw"
    """AdamW for all weights, or Muon for the matrices of the blocks and AdamW for the rest."""
    learning_rate: float = 4e-4
    """Highest learning rate."""
    muon_learning_rate: float | None = None
    """Highest learning rate of the matrices under Muon; none: the same."""
    weight_decay: float = 0.05
    """Weight decay of matrices; norms, biases and gains do not decay."""
    warmup_steps: int = 1000
    """Steps over which the learning rate rises from 0."""
    final_learning_rate: float = 0.0
    """Fraction of the learning rate that is left at the end of its half cosine."""
    clip_norm: float = 1.0
    """Largest norm of the gradient; longer ones are shortened to it."""
    skip_above: float = 100.0
    """Steps whose gradient is longer than this many times `clip_norm` are skipped; 0: only those that aren't finite."""
    max_skipped: int = 20
    """Training stops with an error after so many skipped steps in a row."""
    ema_decay: float = 0.999
    """Decay of the running mean of the weights, which is what is validated and used afterwards; 0 for none."""
    foreground_weight: float = 1.0
    """How often a pixel counts that the photo's alpha covers; 1: all pixels are alike."""
    perceptual_weight: float = 0.0
    """Weight of LPIPS in the loss; needs its weights on this machine."""
    perceptual_from_step: int = 0
    """Step from which LPIPS is part of the loss."""
    lpips_weights: str | None = None
    """File with VGG16 weights for LPIPS; none: where `nvs eval` looks."""
    precision: Literal["fp32", "bf16-mixed"] = "fp32"
    """Number format of the products; weights stay fp32."""
    accelerator: Literal["auto", "cpu", "gpu", "mps"] = "auto"
    """Where to compute; auto takes the GPU if there is one."""
    devices: int = 1
    """Number of GPUs, or of processes on the CPU."""
    activation_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them: less memory, about a third slower."""
    compile: bool = False
    """Compile the blocks with torch.compile: a slow start, then faster steps."""
    validate_every: int = 1000
    """Steps between validations, each with a picture sheet."""
    save_every: int = 1000
    """Steps between checkpoints."""
    log_every: int = 20
    """Steps between lines of the logs."""
    wandb_project: str | None = None
    """Also log to this Weights & Biases project; none: only to files."""
    seed: int = 0
    """Seed of the start weights, the drawn views and the augmentation."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for name in ("max_steps", "max_skipped", "devices", "validate_every", "save_every", "log_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"training.{name} must be 1 or more, got {getattr(self, name)}")
        for name in ("learning_rate", "muon_learning_rate", "clip_norm", "foreground_weight", "max_minutes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"training.{name} must be above 0, got {value}")
        for name in ("weight_decay", "warmup_steps", "skip_above", "perceptual_weight", "perceptual_from_step", "seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"training.{name} must not be negative, got {getattr(self, name)}")
        if not 0 <= self.ema_decay < 1 or not 0 <= self.final_learning_rate <= 1:
            raise ValueError("training.ema_decay must be in 0..1 without 1, training.final_learning_rate in 0..1")
