"""Checkpoints of the published LaCT code: their names, and the configuration that their tensors imply.

Layout read from the public code and confirmed by recorded outputs: https://github.com/a1600012888/LaCT (lact_nvs).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from data import UserError
from nvs.memory import LaCTConfig
from nvs.tokens import TOKEN_CHANNELS

if TYPE_CHECKING:
    from nvs.model import ModelConfig

NAMES = {
    "input_linear.weight": "embed.weight",
    "input_layernorm.weight": "embed_norm.weight",
    "image_token_decoder.0.weight": "decode_norm.weight",
    "image_token_decoder.1.weight": "decode.weight",
}
BLOCK_NAMES = {
    "0.ln.weight": "attention_norm.weight",
    "0.f.to_qkv.weight": "attention.qkv.weight",
    "0.f.q_norm.weight": "attention.q_norm.weight",
    "0.f.k_norm.weight": "attention.k_norm.weight",
    "0.f.c_proj.weight": "attention.out.weight",
    "1.ln.weight": "memory_norm.weight",
    "1.f.w0": "memory.w0",
    "1.f.w1": "memory.w1",
    "1.f.w2": "memory.w2",
    "1.f.lr_fc.weight": "memory.rates.weight",
    "1.f.lr_fc.bias": "memory.rates.bias",
    "1.f.o_norm.weight": "memory.read_norm.weight",
    "1.f.c_proj.weight": "memory.out.weight",
    "2.ln.weight": "mlp_norm.weight",
    "2.f.c_fc.weight": "mlp.up.weight",
    "2.f.c_proj.weight": "mlp.down.weight",
}
FUSED_QKV = "1.f.to_qkv.weight"
BLOCK = re.compile(r"blocks\.(\d+)\.module_list\.(.+)")


def is_published(weights: Mapping[str, Tensor]) -> bool:
    """Whether these weights carry the names of the published code."""
    return "input_linear.weight" in weights and any(BLOCK.fullmatch(name) for name in weights)


def convert_published(weights: Mapping[str, Tensor]) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Our configuration and weights from published ones; raises UserError for weights that do not fit."""
    converted: dict[str, Tensor] = {}
    for name, weight in weights.items():
        match = BLOCK.fullmatch(name)
        if name in NAMES:
            converted[NAMES[name]] = weight
        elif match and match[2] == FUSED_QKV:
            query, key_value = weight.split([weight.shape[0] // 3, weight.shape[0] - weight.shape[0] // 3])
            # Copies, because tensors that share memory cannot be saved again.
            converted[f"blocks.{match[1]}.memory.query.weight"] = query.clone()
            converted[f"blocks.{match[1]}.memory.key_value.weight"] = key_value.clone()
        elif match and match[2] in BLOCK_NAMES:
            converted[f"blocks.{match[1]}.{BLOCK_NAMES[match[2]]}"] = weight
        else:
            raise UserError(f"the published checkpoint has an unknown tensor {name!r}; only LaCT for views can be read")
    return _config_of(converted), converted


def _config_of(weights: Mapping[str, Tensor]) -> ModelConfig:
    from nvs.model import ModelConfig

    try:
        dim, inputs = weights["embed.weight"].shape
        head_dim, hidden = weights["blocks.0.memory.w0"].shape[1:]
        return ModelConfig(
            dim=dim,
            layers=1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blocks.")),
            patch_size=math.isqrt(inputs // TOKEN_CHANNELS),
            attention_head_dim=weights["blocks.0.attention.q_norm.weight"].shape[0],
            mlp_ratio=weights["blocks.0.mlp.up.weight"].shape[0] // dim,
            memory=LaCTConfig(head_dim=head_dim, expansion=hidden // head_dim),
        )
    except (KeyError, IndexError, ValueError, ZeroDivisionError) as error:
        raise UserError(f"the published checkpoint is incomplete ({error}); download it again") from error


def published_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our weights under the published names: the inverse of `convert_published`."""
    outer = {ours: theirs for theirs, ours in NAMES.items()}
    inner = {ours: theirs for theirs, ours in BLOCK_NAMES.items()}
    renamed: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if name in outer:
            renamed[outer[name]] = weight
            continue
        match = re.fullmatch(r"blocks\.(\d+)\.(.+)", name)
        if match and match[2] == "memory.query.weight":
            fused = [weight, weights[f"blocks.{match[1]}.memory.key_value.weight"]]
            renamed[f"blocks.{match[1]}.module_list.{FUSED_QKV}"] = torch.cat(fused)
        elif match and match[2] in inner:
            renamed[f"blocks.{match[1]}.module_list.{inner[match[2]]}"] = weight
        elif not (match and match[2] == "memory.key_value.weight"):
            raise UserError(f"{name} has no place in the published layout; only the published configuration has one")
    return renamed
