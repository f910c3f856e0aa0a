"""LaCT: SwiGLU fast weights, one orthogonalised gradient step per chunk (arXiv 2505.23884), with all its options."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from kernels import linear_apply, rms_norm, silu_unit
from nvs.layers import Linear
from nvs.memory import update_rule
from nvs.memory.base import Grid, known_rays, scan_one_by_one, split_tokens
from nvs.memory.frames import ask_world, to_ray, to_world
from nvs.memory.lact_config import LaCTConfig
from nvs.memory.linear_map import LinearMap, linear_map
from nvs.memory.update_rule import Rates, Weights


class LaCTState(NamedTuple):
    """Fast weights of each scene and head: gate, down and up matrix; 3 f d numbers."""

    w0: Float[Tensor, "b h d f"]
    w1: Float[Tensor, "b h f d"]
    w2: Float[Tensor, "b h d f"]


class LaCTMomentumState(NamedTuple):
    """Fast weights, and the gradient that the last step followed: 6 f d numbers."""

    w0: Float[Tensor, "b h d f"]
    w1: Float[Tensor, "b h f d"]
    w2: Float[Tensor, "b h d f"]
    m0: Float[Tensor, "b h d f"]
    m1: Float[Tensor, "b h f d"]
    m2: Float[Tensor, "b h d f"]


class LastWeightState(NamedTuple):
    """The one matrix that differs from scene to scene where w1 alone is updated: f d numbers."""

    w1: Float[Tensor, "b h f d"]


class LastWeightMomentumState(NamedTuple):
    """This matrix, and the gradient that the last step followed: 2 f d numbers."""

    w1: Float[Tensor, "b h f d"]
    m1: Float[Tensor, "b h f d"]


STATES = {
    ("all", False): LaCTState,
    ("all", True): LaCTMomentumState,
    ("w1", False): LastWeightState,
    ("w1", True): LastWeightMomentumState,
}
"""State type by what is updated and whether there is momentum."""
AnyState = LaCTState | LaCTMomentumState | LastWeightState | LastWeightMomentumState


class LaCTMemory(nn.Module):
    """Large-chunk test-time training: the state is a small network that is trained on keys and values."""

    whole_views = False

    def __init__(self, dim: int, config: LaCTConfig) -> None:
        super().__init__()
        self.config = config
        self.heads = config.heads(dim)
        d, f = config.head_dim, config.head_dim * config.expansion
        swiglu = config.kernel == "swiglu"
        self.w0 = nn.Parameter(torch.randn(self.heads, d, f) * math.sqrt(2 / d)) if swiglu else None
        self.w1 = nn.Parameter(torch.randn(self.heads, f, d) * math.sqrt(2 / f))
        self.w2 = nn.Parameter(torch.randn(self.heads, d, f) * math.sqrt(2 / d)) if swiglu else None
        self.query = Linear(dim, dim) if config.query == "own" else None
        self.key_value = Linear(dim, 2 * dim)
        self.rates = nn.Linear(dim, len(self._updated) * self.heads) if config.token_rates else None
        if self.rates is not None:
            nn.init.zeros_(self.rates.bias)
        self.read_norm = nn.RMSNorm(d, eps=1e-5)
        self.out = Linear(dim, dim)

    @property
    def order_matters(self) -> bool:
        """Whether the order of the tokens of an update changes the state: it decides in which chunk they are."""
        return self.config.chunks > 1

    def init_state(self, batch: int) -> AnyState:
        """The learned fast weights, once per scene."""
        learned = {name: getattr(self, name).expand(batch, -1, -1, -1) for name in self._updated}
        kind = STATES[self.config.updated, self.config.momentum > 0]
        still = {f"m{name[1:]}": torch.zeros_like(w) for name, w in learned.items()} if self.config.momentum else {}
        return kind(**learned, **still)

    def update_state(
        self, state: AnyState, x: Float[Tensor, "b n d"], slice_tokens: int | None = None, grid: Grid | None = None
    ) -> AnyState:
        """Step along the gradient of all tokens, or of one chunk of them after the other."""
        if x.shape[1] == 0:
            return state
        weights, velocity = self._unpack(state)
        parts = split_tokens(x, -(-x.shape[1] // self.config.chunks), grid)
        if self.config.form == "parallel" and len(parts) > 1:
            if slice_tokens is None:
                chunk = parts[0][0].shape[1]
                summed = update_rule.parallel_gradients(self.config, weights, *self._written(x, grid), chunk)
            else:
                each = [self._gradients(weights, *part, slice_tokens)["w1"] for part in parts]
                summed = torch.stack(each, dim=1)
            steps, velocity = update_rule.parallel_steps(self.config, velocity, summed)
            return self._pack(weights | {"w1": weights["w1"] + steps.sum(1)}, velocity)
        for part in parts:
            for _ in range(self.config.inner_steps):
                summed = self._gradients(weights, *part, slice_tokens)
                weights, velocity = update_rule.step(self.config, weights, velocity, summed)
        return self._pack(weights, velocity)

    def apply_state(
        self, state: AnyState, x: Float[Tensor, "b n d"], grid: Grid | None = None
    ) -> Float[Tensor, "b n d"]:
        """Run each token's query through the fast weights."""
        weights, _ = self._unpack(state, widen=False)
        return self._out(update_rule.read(self.config, weights, self._queries(x, grid)), grid)

    def scan(
        self, state: AnyState, x: Float[Tensor, "b n d"], chunk: int, grid: Grid | None = None
    ) -> tuple[AnyState, Float[Tensor, "b n d"]]:
        """Absorb chunks of `chunk` tokens one after the other, and read each chunk right after it was absorbed."""
        if x.shape[1] == 0 or self.config.chunks > 1:
            return scan_one_by_one(self, state, x, chunk, grid)
        c, (weights, velocity) = self.config, self._unpack(state)
        q, written = self._queries(x, grid), self._written(x, grid)
        if c.form == "parallel":
            summed = update_rule.parallel_gradients(c, weights, *written, chunk)
            steps, velocity = update_rule.parallel_steps(c, velocity, summed)
            after = weights["w1"][:, None] + update_rule.sum_until(steps)
            queries = update_rule.split_chunks(update_rule.features(c, weights, q), chunk)
            reads = linear_apply(after.flatten(0, 1).to(queries.dtype), queries)
            reads = reads.unflatten(0, (q.shape[0], -1)).flatten(1, 2)[:, : x.shape[1]]
            return self._pack(weights | {"w1": after[:, -1]}, velocity), self._out(reads, grid)
        done = []
        for start in range(0, x.shape[1], chunk):
            now = slice(start, start + chunk)
            k, v, rates = written
            part = (k[:, now], v[:, now], None if rates is None else tuple(lr[:, now] for lr in rates))
            for _ in range(c.inner_steps):
                summed = update_rule.gradients(c, weights, *part)
                weights, velocity = update_rule.step(c, weights, velocity, summed)
            done.append(update_rule.read(c, weights, q[:, now]))
        return self._pack(weights, velocity), self._out(torch.cat(done, dim=1), grid)

    def queries_keys_values(
        self, x: Float[Tensor, "b n d"], grid: Grid | None = None
    ) -> tuple[Float[Tensor, "b h n e"], Float[Tensor, "b h n e"], Float[Tensor, "b h n e"]]:
        """What each token reads with, is found by, and writes, as the update rule uses them."""
        k, v, _ = self._written(x, grid)
        q, k, v = (rearrange(y, "(b h) n d -> b h n d", h=self.heads) for y in (self._queries(x, grid), k, v))
        return q, k, v

    def inner_loss(self, state: AnyState, x: Float[Tensor, "b n d"], grid: Grid | None = None) -> Float[Tensor, " b"]:
        """The inner loss of a state on tokens, without learning rates: mean over tokens and heads."""
        k, v, _ = self._written(x, grid)
        answers = update_rule.read(self.config, self._unpack(state)[0], k)
        if self.config.inner_loss == "squared_error":
            each = (answers - v).square().sum(-1) / 2
        else:
            each = -(answers * v).sum(-1)
        return rearrange(each, "(b h) n -> b (h n)", h=self.heads).mean(1)

    def read_map(
        self,
        state: AnyState,
        x_in: Float[Tensor, "b n d"],
        x_out: Float[Tensor, "b m d"],
        grid_in: Grid | None = None,
        grid_out: Grid | None = None,
    ) -> LinearMap:
        """How x_out reads what x_in writes in one step from `state`, as linear attention over x_in."""
        weights, velocity = self._unpack(state)
        written, asked = self._written(x_in, grid_in), self._queries(x_out, grid_out)
        found = linear_map(self.config, weights, velocity, written, asked)
        return LinearMap(*(rearrange(y, "(b h) i j -> b h i j", h=self.heads) for y in found))

    def read_out(self, read: Float[Tensor, "b h m e"], grid: Grid | None = None) -> Float[Tensor, "b m d"]:
        """The layer's answer from what was read."""
        return self._out(read.flatten(0, 1), grid)

    @property
    def _updated(self) -> tuple[str, ...]:
        return ("w1",) if self.config.updated == "w1" else ("w0", "w1", "w2")

    def _gradients(self, weights: Weights, x: Tensor, grid: Grid | None, slice_tokens: int | None) -> Weights:
        total: Weights = {}
        for part in split_tokens(x, slice_tokens or x.shape[1], grid):
            summed = update_rule.gradients(self.config, weights, *self._written(*part))
            total = {name: g + total[name] if total else g for name, g in summed.items()}
        return total

    def _written(self, x: Tensor, grid: Grid | None) -> tuple[Tensor, Tensor, Rates]:
        projected = self.key_value(x).chunk(2, dim=-1)
        k, v = silu_unit(self._heads(projected[0])), F.silu(self._heads(projected[1]))
        if self.config.ray_frames:
            frames = known_rays(grid)
            k, v = to_world(frames, k), to_world(frames, v)
        return k, v, self._learning_rates(x)

    def _queries(self, x: Tensor, grid: Grid | None) -> Tensor:
        if self.config.query == "key" or self.query is None:
            projected = F.linear(x, self.key_value.weight.chunk(2)[0])
        else:
            projected = self.query(x)
        q = silu_unit(self._heads(projected))
        return ask_world(known_rays(grid), q) if self.config.ray_frames else q

    def _learning_rates(self, x: Tensor) -> Rates:
        if self.rates is None:
            if self.config.base_lr == 1:
                return None
            return (x.new_full((x.shape[0] * self.heads, x.shape[1], 1), self.config.base_lr),) * len(self._updated)
        # Rates span orders of magnitude: they are computed in the weights' own precision even under autocast.
        with torch.autocast(x.device.type, enabled=False):
            raw = self.rates(x.to(self.rates.weight.dtype)) + math.log(math.expm1(self.config.base_lr))
            return tuple(rearrange(F.softplus(raw), "b n (r h) -> r (b h) n 1", h=self.heads))

    def _out(self, read: Tensor, grid: Grid | None) -> Tensor:
        if self.config.ray_frames:
            read = to_ray(known_rays(grid), read)
        normed = rms_norm(read, self.read_norm.weight)
        return self.out(rearrange(normed, "(b h) n d -> b n (h d)", h=self.heads))

    def _heads(self, x: Tensor) -> Tensor:
        return rearrange(x, "b n (h d) -> (b h) n d", h=self.heads)

    def _unpack(self, state: AnyState, widen: bool = True) -> tuple[Weights, Weights]:
        """Weights and velocity, heads folded into the batch, and what no scene changes once per scene."""
        batch, parts = state.w1.shape[0], state._asdict()
        shared = {name: getattr(self, name) for name in ("w0", "w2") if name not in parts}
        parts |= {name: w.expand(batch, -1, -1, -1) for name, w in shared.items() if w is not None}
        folded = {name: rearrange(w, "b h i j -> (b h) i j") for name, w in parts.items()}
        if widen:
            # A state that was stored in 16 bits goes on in the precision of the learned weights.
            folded = {name: w.to(self.w1.dtype) for name, w in folded.items()}
        velocity = {f"w{name[1:]}": w for name, w in folded.items() if name[0] == "m"}
        return {name: w for name, w in folded.items() if name[0] == "w"}, velocity

    def _pack(self, weights: Weights, velocity: Weights) -> AnyState:
        parts = {name: weights[name] for name in self._updated} | {f"m{n[1:]}": w for n, w in velocity.items()}
        kind = STATES[self.config.updated, self.config.momentum > 0]
        return kind(**{name: rearrange(w, "(b h) i j -> b h i j", h=self.heads) for name, w in parts.items()})
