"""LaCT written down plainly, as the published code is structured: the yardstick that speed is measured against.

It computes what a first implementation computes: queries, keys, values and learning rates of every token in every
block, and the whole last block while encoding. It renders one view at a time; in training input and target views go
through the blocks together. Tests use it as a second opinion, too.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from data import Cameras, Views
from nvs.memory import LaCTConfig
from nvs.model import LaCT
from nvs.published import published_names
from nvs.tokens import frustum_features

FastWeights = list[Tensor]


class Yardstick:
    """The same function as a `LaCT` in the published configuration, from the same weights, without any shortcut.

    Frustum features and overlapping patches are what it knows beyond the published. With `trainable` the weights are
    copies to train.
    """

    def __init__(self, model: LaCT, trainable: bool = False) -> None:
        memory = model.config.memory
        if not isinstance(memory, LaCTConfig) or memory != published_settings(memory):
            raise ValueError("the yardstick knows the published memory layer only: LaCT with no option changed")
        self.config, self.memory = model.config, memory
        given = {name: w.detach().clone() if trainable else w.detach() for name, w in model.state_dict().items()}
        frustum = given.pop("embed_frustum.weight", None)
        self.weights = published_names(given) | ({} if frustum is None else {"frustum": frustum})
        for weight in self.weights.values() if trainable else ():
            weight.requires_grad_()

    def __call__(self, inputs: Views, targets: Cameras) -> Float[Tensor, "b v 3 h w"]:
        """Pictures of the target cameras in one pass over the tokens of all views, which must be of one size."""
        x = torch.cat([self._embed(inputs.cameras, inputs.images), self._embed(targets, self._blank(targets))], dim=1)
        for i in range(self.config.layers):
            x, _ = self._block(i, x, None, inputs.num_views)
        return self._decode(x[:, inputs.num_views :], targets.image_size)

    def encode(self, views: Views) -> list[FastWeights]:
        """Fast weights of every block after the input views (batched: images [b v 3 h w])."""
        x = self._embed(views.cameras, views.images)
        states = []
        for i in range(self.config.layers):
            x, state = self._block(i, x, None, views.num_views)
            states.append(state)
        return states

    def render(self, states: list[FastWeights], cameras: Cameras) -> Float[Tensor, "b v 3 h w"]:
        """Pictures of the cameras, one view after the other."""
        return torch.cat([self._render_one(states, cameras.select(i)) for i in range(cameras.num_views)], dim=1)

    def _render_one(self, states: list[FastWeights], camera: Cameras) -> Tensor:
        x = self._embed(camera, self._blank(camera))
        for i, state in enumerate(states):
            x, _ = self._block(i, x, state, 0)
        return self._decode(x, camera.image_size)

    def _blank(self, cameras: Cameras) -> Tensor:
        return torch.full((*cameras.c2w.shape[:-2], 3, *cameras.image_size), 0.5)

    def _decode(self, x: Tensor, image_size: tuple[int, int]) -> Tensor:
        x = torch.sigmoid(
            F.linear(self._norm(x, "image_token_decoder.0"), self.weights["image_token_decoder.1.weight"])
        )
        p, m, (h, w) = self.config.patch_size, self.config.decode_overlap, image_size
        if m == 0:
            return rearrange(x, "b v (i j) (p q c) -> b v c (i p) (j q)", i=h // p, j=w // p, p=p, q=p)
        near = torch.tensor([min(1.0, (0.5 + min(i, p + 2 * m - 1 - i)) / (2 * m)) for i in range(p + 2 * m)])
        share, total = near[:, None] * near, torch.zeros(h + 2 * m, w + 2 * m)
        image = torch.zeros(*x.shape[:2], 3, h + 2 * m, w + 2 * m)
        for token, patch in enumerate(rearrange(x, "b v t (p q c) -> t b v c p q", p=p + 2 * m, q=p + 2 * m)):
            y, z = token // (w // p) * p, token % (w // p) * p
            image[..., y : y + p + 2 * m, z : z + p + 2 * m] += patch * share
            total[y : y + p + 2 * m, z : z + p + 2 * m] += share
        return (image / total)[..., m:-m, m:-m]

    def _embed(self, cameras: Cameras, images: Tensor) -> Tensor:
        origins, directions = cameras.rays()
        colours = rearrange(images, "b v c h w -> b v h w c") * 2 - 1
        pixels = torch.cat([origins, directions, torch.linalg.cross(origins, directions), colours], dim=-1)
        p = self.config.patch_size
        x = rearrange(pixels, "b v (i p) (j q) c -> b v (i j) (p q c)", p=p, q=p)
        x = F.linear(x, self.weights["input_linear.weight"])
        if "frustum" in self.weights:
            c = self.config
            features = frustum_features(cameras, p, c.frustum_points, c.frustum_frequencies, *c.frustum_depths)
            x = x + F.linear(features, self.weights["frustum"])
        return self._norm(x, "input_layernorm")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (x.shape[-1],), self.weights[f"{name}.weight"])

    def _block(self, i: int, x: Tensor, state: FastWeights | None, absorbed: int) -> tuple[Tensor, FastWeights]:
        """Without a state the first `absorbed` views make one."""
        w = {k.removeprefix(f"blocks.{i}.module_list."): v for k, v in self.weights.items() if f"blocks.{i}." in k}
        x = x + self._attention(w, self._norm(x, f"blocks.{i}.module_list.0.ln"))
        mixed, state = self._memory(w, self._norm(x, f"blocks.{i}.module_list.1.ln"), state, absorbed)
        x = x + mixed
        hidden = F.gelu(F.linear(self._norm(x, f"blocks.{i}.module_list.2.ln"), w["2.f.c_fc.weight"]))
        return x + F.linear(hidden, w["2.f.c_proj.weight"]), state

    def _attention(self, w: dict[str, Tensor], x: Tensor) -> Tensor:
        d = self.config.attention_head_dim
        q, k, v = rearrange(F.linear(x, w["0.f.to_qkv.weight"]), "b v t (r h d) -> r (b v) h t d", r=3, d=d)
        q, k = F.rms_norm(q, (d,), w["0.f.q_norm.weight"]), F.rms_norm(k, (d,), w["0.f.k_norm.weight"])
        out = F.scaled_dot_product_attention(q, k, v)
        return F.linear(rearrange(out, "(b v) h t d -> b v t (h d)", b=x.shape[0]), w["0.f.c_proj.weight"])

    def _memory(
        self, w: dict[str, Tensor], x: Tensor, state: FastWeights | None, absorbed: int
    ) -> tuple[Tensor, FastWeights]:
        c, (b, views, tokens, _) = self.memory, x.shape
        x = rearrange(x, "b v t d -> b (v t) d")
        qkv = F.silu(F.linear(x, w["1.f.to_qkv.weight"]))
        q, k, v = rearrange(qkv, "b n (r h d) -> r (b h) n d", r=3, d=c.head_dim)
        q, k = (y / (y.norm(dim=-1, keepdim=True) + 1e-5) for y in (q, k))
        shift = math.log(math.expm1(c.base_lr))
        rates = F.softplus(F.linear(x.float(), w["1.f.lr_fc.weight"], w["1.f.lr_fc.bias"]) + shift)
        rates = rearrange(rates, "b n (r h) -> r (b h) n 1", r=3)
        if state is None:
            n = absorbed * tokens
            fresh = [w[f"1.f.w{j}"].repeat(b, 1, 1) for j in range(3)]
            state = self._step(fresh, k[:, :n], v[:, :n], rates[:, :, :n])
        w0, w1, w2 = state
        read = F.rms_norm((F.silu(q @ w0) * (q @ w2)) @ w1, (c.head_dim,), w["1.f.o_norm.weight"], 1e-5)
        out = F.linear(rearrange(read, "(b h) n d -> b n (h d)", b=b), w["1.f.c_proj.weight"])
        return rearrange(out, "b (v t) d -> b v t d", v=views), state

    def _step(self, fast: FastWeights, k: Tensor, v: Tensor, rates: Tensor) -> FastWeights:
        w0, w1, w2 = fast
        gate, up, d_hidden = k @ w0, k @ w2, v @ w1.transpose(1, 2)
        sigmoid = torch.sigmoid(gate)
        slope = sigmoid * (1 + gate * (1 - sigmoid))
        g0 = (k * rates[0]).transpose(1, 2) @ (d_hidden * up * slope)
        g1 = (F.silu(gate) * up * rates[1]).transpose(1, 2) @ v
        g2 = (k * rates[2]).transpose(1, 2) @ (d_hidden * F.silu(gate))
        return [self._move(w, g) for w, g in zip(fast, (g0, g1, g2), strict=True)]

    def _move(self, w: Tensor, g: Tensor) -> Tensor:
        x = g.to(torch.bfloat16 if self.memory.newton_schulz_dtype == "bfloat16" else torch.float32)
        x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
        tall = x.shape[1] > x.shape[2]
        x = x.transpose(1, 2) if tall else x
        for _ in range(self.memory.newton_schulz_steps):
            gram = x @ x.transpose(1, 2)
            x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
        moved = w + (x.transpose(1, 2) if tall else x).to(w.dtype)
        return moved / (moved.norm(dim=1, keepdim=True) + 1e-5) * w.norm(dim=1, keepdim=True)


def published_settings(memory: LaCTConfig) -> LaCTConfig:
    """The published layer of the same size, learning rate and Newton-Schulz iteration."""
    return LaCTConfig(
        head_dim=memory.head_dim,
        expansion=memory.expansion,
        base_lr=memory.base_lr,
        newton_schulz_steps=memory.newton_schulz_steps,
        newton_schulz_dtype=memory.newton_schulz_dtype,
    )
