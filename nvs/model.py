"""The network: posed photos become tokens, every block's memory absorbs them, and any camera is rendered from it.

    state = model.encode(views)               # once per scene
    images = model.render(state, cameras)     # as often as wanted, at a cost that does not depend on the input views

The default configuration is LaCT for view synthesis exactly as published (arXiv 2505.23884).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from data import Cameras, UserError, Views
from nvs.blocks import Block
from nvs.layers import Linear
from nvs.memory import Grid, LaCTConfig, MemoryConfig, build_memory, ray_frames
from nvs.scene_state import SceneState, fingerprint
from nvs.tokens import TOKEN_CHANNELS, blend_patches, embed_patches, frustum_features
from nvs.trained_range import TrainedRange

Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True)
class ModelConfig:
    """Size and make of the network; the defaults are the published `l24_d768_ttt2x`."""

    dim: int = 768
    """Width of a token."""
    layers: int = 24
    """Number of blocks."""
    patch_size: int = 8
    """Side of the square patch that becomes one token, in pixels."""
    attention_head_dim: int = 64
    """Width of one head of the per-view attention."""
    mlp_ratio: int = 4
    """Hidden width of the MLP over `dim`."""
    memory: MemoryConfig = field(default_factory=LaCTConfig)
    """The memory layer of every block."""
    frustum_points: int = 0
    """Points along each patch's central ray that are shown to the network as sines and cosines; 0 (published): none."""
    frustum_frequencies: int = 3
    """Frequencies of these sines and cosines: pi/2 times 1, 2, 4, ..."""
    frustum_depths: tuple[float, float] = (1.2, 4.2)
    """Distance from the camera of the first and the last of these points, in scene units."""
    decode_overlap: int = 0
    """Pixels by which the rendered patches reach into their neighbours, to fade over; 0 (published): none."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for name in ("dim", "layers", "patch_size", "attention_head_dim", "mlp_ratio", "frustum_frequencies"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(f"model {name} must be a whole number of 1 or more, got {getattr(self, name)}")
        if self.dim % self.attention_head_dim or self.dim % self.memory.head_dim:
            raise ValueError(
                f"model dim {self.dim} must be a multiple of attention_head_dim {self.attention_head_dim} "
                f"and of memory head_dim {self.memory.head_dim}"
            )
        if self.frustum_points < 0 or not 0 <= self.frustum_depths[0] < self.frustum_depths[1]:
            raise ValueError("frustum_points must be 0 or more and frustum_depths rise from 0 or more")
        if not isinstance(self.decode_overlap, int) or not 0 <= self.decode_overlap <= self.patch_size // 2:
            raise ValueError(
                f"model decode_overlap must be a whole number from 0 to half of patch_size, got {self.decode_overlap}"
            )

    def identity(self) -> dict[str, Any]:
        """The settings by which models are told apart; one that came later counts where it is used."""
        settings = asdict(self) | {"memory": self.memory.identity()}
        return {name: value for name, value in settings.items() if name != "decode_overlap" or value}


class LaCT(nn.Module):
    """Encodes posed photos into a state of fixed size and renders any camera from that state."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.trained: TrainedRange | None = None
        """What the weights were trained on, where that is known."""
        self.activation_checkpointing = False
        """Recompute each block in the backward pass instead of keeping its activations."""
        self.precision: Precision = "fp32"
        """What products in the blocks are computed in; see `use_precision`."""
        pixels = config.patch_size**2
        self.embed = nn.Linear(TOKEN_CHANNELS * pixels, config.dim, bias=False)
        frustum = config.frustum_points * config.frustum_frequencies * 6
        self.embed_frustum = nn.Linear(frustum, config.dim, bias=False) if frustum else None
        self.embed_norm = nn.LayerNorm(config.dim, bias=False)
        self.blocks = nn.ModuleList(
            Block(config.dim, config.attention_head_dim, config.mlp_ratio, build_memory(config.dim, config.memory))
            for _ in range(config.layers)
        )
        self.decode_norm = nn.LayerNorm(config.dim, bias=False)
        self.decode = nn.Linear(config.dim, 3 * (config.patch_size + 2 * config.decode_overlap) ** 2, bias=False)
        self._initialize()
        self._fingerprint: tuple[Any, str] = (None, "")

    def forward(self, inputs: Views, targets: Cameras) -> Float[Tensor, "*b v 3 h w"]:
        """Render target cameras from input views: `render(encode(inputs), targets)`."""
        return self.render(self.encode(inputs), targets)

    def encode(self, views: Views, slice_tokens: int | None = None) -> SceneState:
        """Absorb input views into a new state; views may have a batch axis of scenes or none.

        `slice_tokens` bounds how many tokens are worked on at a time and does not change the result beyond rounding.
        """
        batch = views.images.shape[0] if views.images.dim() == 5 else 1
        fresh = tuple(block.memory.init_state(batch) for block in self._blocks())
        return SceneState.of_views(self._absorb(views, fresh, slice_tokens), views, self._own_fingerprint())

    def extend(
        self, state: SceneState, views: Views, slice_tokens: int | None = None, views_per_chunk: int | None = None
    ) -> SceneState:
        """Absorb more input views into a state, as one more chunk and without the earlier views.

        The views must be in the state's frame: load them from a scene with the state's `world_to_scene`. With
        `views_per_chunk` they come as a stream: the result is that of extending by so many views after the other.
        """
        self.check_state(state)
        if state.batched != (views.images.dim() == 5):
            raise ValueError("state and views must both have a batch axis, or neither")
        world = views.world_to_scene
        if world is not None and not torch.allclose(
            world.cpu().double(), state.world_to_scene.cpu().double(), rtol=1e-4, atol=1e-5
        ):
            raise UserError(
                "These views are in another frame than the state. Load them from the scene that was normalised for the "
                "first views, or one with the state's world_to_scene."
            )
        layers = self._absorb(views, state.with_batch().layers, slice_tokens, views_per_chunk)
        return state.joined(SceneState.of_views(layers, views, state.fingerprint))

    def render(
        self, state: SceneState, cameras: Cameras, slice_tokens: int | None = None
    ) -> Float[Tensor, "*b v 3 h w"]:
        """Pictures (0..1) that the cameras see; their image size may differ from the input views'."""
        _check_slice(slice_tokens)
        self.check_state(state)
        if state.batched != (cameras.c2w.dim() == 4):
            raise ValueError("state and cameras must both have a batch axis, or neither")
        cameras = cameras if state.batched else cameras.add_batch()
        x, grid = self._embed(cameras, None), self._grid(cameras)
        with self._products():
            for block, memory in zip(self._blocks(), state.with_batch().layers, strict=True):
                x = self._run(block.render, x, memory, slice_tokens, grid)
        pixels = torch.sigmoid(self.decode(self.decode_norm(x)))
        images = blend_patches(pixels, cameras.image_size, self.config.patch_size, self.config.decode_overlap)
        return images if state.batched else images[0]

    def with_memory(self, **changes: Any) -> LaCT:
        """This model with other settings of its memory layers, for example `inner_steps=4`; the weights are shared.

        Weights that the changed layers have no use for are left out. Raises ValueError where one is missing.
        """
        memory = replace(self.config.memory, **changes)
        with torch.device("meta"):
            model = LaCT(replace(self.config, memory=memory))
        own, needed = self.state_dict(), model.state_dict()
        for name, weight in needed.items():
            if name not in own or own[name].shape != weight.shape:
                raise ValueError(f"there is no fitting weight {name} for these memory settings: train such a model")
        model.load_state_dict({name: own[name] for name in needed}, assign=True)
        model.trained = self.trained
        model.use_precision(self.precision)
        return model.train(self.training).requires_grad_(self.embed.weight.requires_grad)

    def use_precision(self, precision: Precision) -> None:
        """Compute from now on in `precision`; "bf16" is for rendering and encoding, and cannot be undone.

        With "bf16" the blocks multiply in bfloat16, and most of their weights are stored so. Fast weights, learning
        rates, norms, rays and the tokens between the blocks stay in float32.
        """
        if precision == "bf16":
            for module in self.modules():
                if isinstance(module, Linear):
                    module.weight = nn.Parameter(module.weight.detach().bfloat16(), requires_grad=False)
        elif self.precision == "bf16":
            raise ValueError("weights that were rounded to bfloat16 cannot go back to fp32: load the model again")
        self.precision = precision

    def compile_blocks(self) -> None:
        """Compile each block with torch.compile; weights keep their names."""
        for block in self._blocks():
            block.absorb = torch.compile(block.absorb)
            block.read = torch.compile(block.read)
            block.render = torch.compile(block.render)

    def _absorb(
        self, views: Views, layers: tuple, slice_tokens: int | None, views_per_chunk: int | None = None
    ) -> tuple:
        _check_slice(slice_tokens)
        if views_per_chunk is not None and (views_per_chunk < 1 or slice_tokens is not None):
            raise ValueError("views_per_chunk must be 1 or more, and is not possible together with slice_tokens")
        if views.num_views == 0:
            raise UserError("there is no input view to encode; give at least one photo")
        batched = views if views.images.dim() == 5 else views.add_batch()
        x, grid = self._embed(batched.cameras, batched.images), self._grid(batched.cameras)
        states = []
        with self._products():
            for i, (block, memory) in enumerate(zip(self._blocks(), layers, strict=True)):
                if views_per_chunk is not None:
                    x, memory = self._run(block.stream, x, memory, views_per_chunk, grid)
                    states.append(memory)
                    continue
                x, memory = self._run(block.absorb, x, memory, slice_tokens, grid)
                states.append(memory)
                if i + 1 < len(self.blocks):  # no one reads the input tokens after the last update
                    x = self._run(block.read, x, memory, slice_tokens, grid)
        return tuple(states)

    def _embed(self, cameras: Cameras, images: Tensor | None) -> Tensor:
        c = self.config
        x = embed_patches(self.embed.weight, cameras, images, c.patch_size)
        if self.embed_frustum is not None:
            # Rays keep their own precision under autocast: in bfloat16 neighbouring pixels would share a ray.
            with torch.autocast(cameras.c2w.device.type, enabled=False):
                frustum = frustum_features(
                    cameras, c.patch_size, c.frustum_points, c.frustum_frequencies, *c.frustum_depths
                )
            x = x + self.embed_frustum(frustum)
        return self.embed_norm(x)

    def _grid(self, cameras: Cameras) -> Grid:
        (h, w), patch = cameras.image_size, self.config.patch_size
        frames = ray_frames(cameras, patch) if self.config.memory.wants_rays else None
        return Grid(h // patch, w // patch, frames)

    def _products(self) -> AbstractContextManager:
        """What the blocks run under; a precision that was not chosen is that of the surroundings."""
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.embed.weight.device.type, torch.bfloat16)

    def _run(self, step: Callable, *args) -> Any:
        if self.activation_checkpointing and torch.is_grad_enabled():
            return checkpoint(step, *args, use_reentrant=False)
        return step(*args)

    def _blocks(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]

    def check_state(self, state: SceneState) -> None:
        """Raise UserError if a state was made by another model."""
        own = self._own_fingerprint()
        if state.fingerprint and own and state.fingerprint != own:
            raise UserError(
                f"this scene state was made by another model (its fingerprint is {state.fingerprint}, this model's is "
                f"{own}); render it with the checkpoint that encoded it, or encode the photos again"
            )

        for block, layer in zip(self._blocks(), state.with_batch().layers, strict=False):
            fresh = block.memory.init_state(1)
            # An axis that is 0 in a fresh state grows with the input.
            fits = type(layer) is type(fresh) and all(
                x.dim() == y.dim() and all(a == b or b == 0 for a, b in zip(x.shape[1:], y.shape[1:], strict=True))
                for x, y in zip(layer, fresh, strict=True)
            )
            if not fits or len(state.layers) != len(self.blocks):
                raise UserError(
                    "this scene state is of a model of another make or size; render it with the checkpoint of its own"
                )

    def _own_fingerprint(self) -> str:
        """Identity of config and weights; empty while training, where weights change at every step."""
        if self.training and torch.is_grad_enabled():
            return ""
        key = tuple(
            (p.data_ptr(), p._version) if not p.is_inference() else (p.data_ptr(), 0) for p in self.parameters()
        )
        if self._fingerprint[0] != key:
            self._fingerprint = (key, fingerprint(self.config, self.state_dict()))
        return self._fingerprint[1]

    def _initialize(self) -> None:
        residual = 0.02 / math.sqrt(3 * self.config.layers)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=residual if name.endswith((".out", ".down")) else 0.02)


def _check_slice(slice_tokens: int | None) -> None:
    if slice_tokens is not None and slice_tokens < 1:
        raise UserError(f"a slice of {slice_tokens} tokens is not possible; give 1 or more, or none for all at once")
