"""Settings of the LaCT memory layer, and the steps from it to linear attention as named variants (arXiv 2602.21204)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from nvs.memory.base import MemoryConfig

VARIANTS: dict[str, dict[str, Any]] = {"lact": {}}
"""Settings by name: `lact` is the published layer, and each of v1 to v6 leaves out one thing more.

v5 leaves out momentum. The published layer for views has none, so v5 is v4 unless v4 is given some.
"""
VARIANTS["v1"] = {"updated": "w1"}
VARIANTS["v2"] = VARIANTS["v1"] | {"weight_norm": False}
VARIANTS["v3"] = VARIANTS["v2"] | {"kernel": "linear", "expansion": 1}
VARIANTS["v4"] = VARIANTS["v3"] | {"token_rates": False, "base_lr": 1.0}
VARIANTS["v5"] = VARIANTS["v4"] | {"momentum": 0.0}
VARIANTS["v6"] = VARIANTS["v5"] | {"newton_schulz_steps": 0}


@dataclass(frozen=True)
class LaCTConfig(MemoryConfig):
    """Settings of the LaCT memory layer; the defaults are the published ones."""

    kind: Literal["lact"] = "lact"
    """Which memory layer this is."""
    head_dim: int = 768
    """Width of one fast-weight head; the model's width must be a multiple."""
    expansion: int = 2
    """Hidden width of the fast weights over `head_dim` (2 in "ttt2x")."""
    base_lr: float = 0.01
    """Learning rate that tokens start from; that of all tokens without `token_rates`, where it counts only if steps are
    not orthogonalised."""
    newton_schulz_steps: int = 5
    """Newton-Schulz iterations that orthogonalise every step of the fast weights; 0: steps are taken as they are."""
    newton_schulz_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Precision of the Newton-Schulz iterations."""
    newton_schulz_coefficients: Literal["muon5", "polar"] = "muon5"
    """The published coefficients, or those of Polar Express, which come closer to an orthogonal matrix."""
    newton_schulz_form: Literal["standard", "gram"] = "standard"
    """As published, or the same polynomial on the small Gram matrix: faster where `expansion` is above 1."""
    kernel: Literal["swiglu", "linear"] = "swiglu"
    """The fast weights: f(x) = (silu(x w0) * (x w2)) w1, or f(x) = x w1 with a square w1."""
    updated: Literal["all", "w1"] = "all"
    """Which matrices the input changes; the others are learned and the same for every scene."""
    inner_loss: Literal["dot_product", "squared_error"] = "dot_product"
    """What a step lowers: -<f(k), v>, or |f(k) - v|^2 / 2."""
    direction: Literal["descent", "ascent"] = "descent"
    """Whether a step goes down or up the inner loss."""
    query: Literal["own", "key"] = "own"
    """What the fast weights are read with: a projection of its own, or the key in its place."""
    inner_steps: int = 1
    """Steps on every chunk of tokens."""
    chunks: int = 1
    """Chunks, one after the other, that the tokens of an update are cut into at most."""
    momentum: float = 0.0
    """Share of the last step's gradient that goes into the next, from chunk to chunk; 0..1 without 1."""
    weight_norm: bool = True
    """Whether every column of a changed matrix gets back the norm that it had."""
    token_rates: bool = True
    """Whether every token has learning rates of its own; without, all have `base_lr`."""
    ray_frames: bool = False
    """Whether tokens write, ask and read in the frame of their ray; heads are then a multiple of 4 wide."""
    form: Literal["recurrent", "parallel"] = "recurrent"
    """How chunks are worked off, with the same result: one after the other, or all at once (v2 to v6)."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        super().__post_init__()
        self.check_whole("head_dim", "expansion", "inner_steps", "chunks")
        self.check_whole("newton_schulz_steps", least=0)
        self.check_ray_frames()
        if not self.base_lr > 0:
            raise ValueError(f"memory base_lr must be above 0, got {self.base_lr}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"memory momentum must be in 0..1 without 1, got {self.momentum}")
        if self.kernel == "linear" and self.updated == "all":
            raise ValueError("memory kernel linear has no matrix but w1: set memory updated to w1")
        if self.kernel == "linear" and self.expansion != 1:
            raise ValueError(f"memory kernel linear needs memory expansion 1, got {self.expansion}")
        if self.form == "parallel" and self._one_after_the_other():
            reason = " and ".join(self._one_after_the_other())
            raise ValueError(f"memory form parallel is not possible: {reason}; set memory form to recurrent")

    def _one_after_the_other(self) -> list[str]:
        """Why the step on a chunk cannot be known before the steps on earlier ones (arXiv 2602.21204, appendix I)."""
        reasons = {
            "with updated all, each step depends on the matrices that earlier ones changed": self.updated == "all",
            "weight_norm divides by what earlier steps left": self.weight_norm,
            "the gradient of the squared_error depends on earlier steps": self.inner_loss == "squared_error",
        }
        return [reason for reason, true in reasons.items() if true]


def variant(name: str, **settings: Any) -> LaCTConfig:
    """A variant of LaCT (`lact`, `v1` to `v6`) with further settings, such as head_dim or form."""
    if name not in VARIANTS:
        raise ValueError(f"there is no variant {name!r}; choose one of {', '.join(VARIANTS)}")
    return LaCTConfig(**{**VARIANTS[name], **settings})
