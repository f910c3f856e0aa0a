"""Optimisers and the course of the learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from data import UserError

OptimizerName = Literal["adamw", "muon"]
BETAS = (0.9, 0.95)


def build_optimizer(
    model: nn.Module, name: OptimizerName, learning_rate: float, weight_decay: float, muon_learning_rate: float
) -> Optimizer:
    """AdamW for all weights, or Muon for the blocks' matrices and AdamW for the rest; only matrices decay."""
    if name == "muon" and not hasattr(torch.optim, "Muon"):
        raise UserError("training.optimizer muon needs torch 2.9 or newer; update torch or use adamw.")
    trained = {k: p for k, p in model.named_parameters() if p.requires_grad}
    muon = [p for k, p in trained.items() if name == "muon" and p.ndim == 2 and k.startswith("blocks.")]
    taken = set(map(id, muon))
    matrices = [p for p in trained.values() if p.ndim >= 2 and id(p) not in taken]
    vectors = [p for p in trained.values() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    adamw = AdamW([g for g in groups if g["params"]], lr=learning_rate, betas=BETAS)
    if not muon:
        return adamw
    # The step of every matrix gets the size that AdamW's would have, so that one weight decay suits both.
    second = torch.optim.Muon(muon, muon_learning_rate, weight_decay, adjust_lr_fn="match_rms_adamw")
    return JointOptimizer([adamw, second])


def learning_rate_factor(step: int, warmup: int, progress: float, final: float) -> float:
    """Linear warm-up over `warmup` steps, times a half cosine from 1 (progress 0) down to `final` (progress 1)."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(max(progress, 0.0), 1.0)))
    return min(1.0, (step + 1) / (warmup + 1)) * (final + (1 - final) * cosine)


class JointOptimizer(Optimizer):
    """Several optimisers, each with its own weights, that step as one."""

    def __init__(self, parts: list[Optimizer]) -> None:
        self.parts = parts
        super().__init__([p for part in parts for g in part.param_groups for p in g["params"]], {})
        self._share_groups()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Step all parts; the closure, which computes the gradients, runs once."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The states of the parts, in order."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the states of the parts, in order."""
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self._share_groups()

    def _share_groups(self) -> None:
        """Show the parts' own group dicts, so that a learning rate set here reaches them."""
        self.param_groups = [group for part in self.parts for group in part.param_groups]
