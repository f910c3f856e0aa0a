"""LPIPS with VGG16 features, as papers on view synthesis report it (Zhang et al., CVPR 2018, version 0.1).

The backbone is written out here, so that torchvision is not needed; its weights are torchvision's ImageNet weights and
are never replaced by random ones: without them the metric is `Unavailable`, with the reason.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from data import UserError

BACKBONE_FILE = "vgg16-397923af.pth"
"""torchvision's name for its VGG16 ImageNet weights; the eight digits begin the SHA-256 of the file."""
BACKBONE_URL = f"https://download.pytorch.org/models/{BACKBONE_FILE}"

WEIGHTS_VARIABLE = "NVS_LPIPS_WEIGHTS"
CHANNELS = (64, 128, 256, 512, 512)
CONVOLUTIONS = (2, 2, 3, 3, 3)
MIN_SIZE = 16
REMEDY = f"download {BACKBONE_URL} once and name it with --lpips-weights or the variable {WEIGHTS_VARIABLE}"


@dataclass(frozen=True)
class Unavailable:
    """Why a metric cannot be computed here, as one sentence."""

    reason: str

    def __str__(self) -> str:
        return f"not available: {self.reason}"


class Lpips(nn.Module):
    """Perceptual distance of image pairs: 0 for equal images, larger for more different ones; differentiable."""

    shift: Tensor
    scale: Tensor

    def __init__(self, backbone: dict[str, Tensor], heads: dict[str, Tensor], source: str = "") -> None:
        """Take VGG16 weights named as in torchvision and one linear head for each of the five stages."""
        super().__init__()
        self.source = source
        self.features, self.taps = _vgg16_features()
        _load_strictly(self.features, {k.removeprefix("features."): v for k, v in backbone.items()}, "VGG16 weights")
        self.heads = nn.ModuleList(nn.Conv2d(channels, 1, 1, bias=False) for channels in CHANNELS)
        _load_strictly(self.heads, heads, "LPIPS heads")
        self.register_buffer("shift", torch.tensor([-0.030, -0.088, -0.188]).view(3, 1, 1), persistent=False)
        self.register_buffer("scale", torch.tensor([0.458, 0.448, 0.450]).view(3, 1, 1), persistent=False)
        self.requires_grad_(False)
        self.eval()

    def forward(self, pred: Float[Tensor, "*b 3 h w"], target: Float[Tensor, "*b 3 h w"]) -> Float[Tensor, "*b"]:
        """Distance of each pair of images with values in 0..1, at least 16x16 pixels."""
        h, w = pred.shape[-2:]
        if min(h, w) < MIN_SIZE:
            raise UserError(
                f"LPIPS needs images of at least {MIN_SIZE}x{MIN_SIZE} pixels, but these have {h}x{w}; "
                "choose a larger image size."
            )
        x, y = self._normalize(pred.reshape(-1, 3, h, w)), self._normalize(target.reshape(-1, 3, h, w))
        distance = x.new_zeros(x.shape[0])
        head = iter(self.heads)
        for index, layer in enumerate(self.features):
            x, y = layer(x), layer(y)
            if index in self.taps:
                difference = (_unit_length(x) - _unit_length(y)).square()
                distance = distance + next(head)(difference).mean(dim=(1, 2, 3))
        return distance.reshape(pred.shape[:-3])

    def _normalize(self, image: Tensor) -> Tensor:
        """From 0..1 over -1..1, which the published heads expect, to the scale of the backbone."""
        return (2 * image - 1 - self.shift) / self.scale


def load_lpips(weights: Path | str | None = None, device: torch.device | str = "cpu") -> Lpips | Unavailable:
    """LPIPS with real weights, or why there is none; a file named by hand that is missing or wrong is an error.

    Weights come from `weights`, else the variable NVS_LPIPS_WEIGHTS, else torch hub's cache, else torchvision.
    """
    heads = _published_heads()
    if isinstance(heads, Unavailable):
        return heads
    named = weights or os.environ.get(WEIGHTS_VARIABLE)
    cached = Path(torch.hub.get_dir()) / "checkpoints" / BACKBONE_FILE
    path = Path(named).expanduser() if named else cached
    if not named and not cached.is_file():
        backbone = _backbone_from_torchvision()
        if isinstance(backbone, Unavailable):
            return backbone
        return Lpips(backbone, heads, f"torchvision, {BACKBONE_FILE}").to(device)
    backbone = {k: v for k, v in _read_tensors(path).items() if not k.startswith("classifier.")}
    return Lpips(backbone, heads, _describe_file(path)).to(device)


def _vgg16_features() -> tuple[nn.Sequential, frozenset[int]]:
    """VGG16 up to its last used layer, numbered as in torchvision, and where each of the five stages ends."""
    layers: list[nn.Module] = []
    taps: list[int] = []
    previous = 3
    for stage, (channels, count) in enumerate(zip(CHANNELS, CONVOLUTIONS, strict=True)):
        if stage > 0:
            layers.append(nn.MaxPool2d(2))
        for _ in range(count):
            layers += [nn.Conv2d(previous, channels, 3, padding=1), nn.ReLU()]
            previous = channels
        taps.append(len(layers) - 1)
    return nn.Sequential(*layers), frozenset(taps)


def _unit_length(features: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
    """Features scaled to length 1 over the channels; the small number keeps the gradient finite at zero."""
    return features / (features.square().sum(dim=1, keepdim=True) + 1e-8).sqrt()


def _load_strictly(module: nn.Module, tensors: dict[str, Tensor], what: str) -> None:
    """Copy tensors into a module whose names and shapes must all agree."""
    expected = {k: tuple(v.shape) for k, v in module.state_dict().items()}
    given = {k: tuple(v.shape) for k, v in tensors.items()}
    if given != expected:
        wrong = sorted(k for k in expected.keys() | given.keys() if expected.get(k) != given.get(k))
        raise UserError(
            f"These are not {what}: {len(wrong)} tensors are missing, too many or of another shape, "
            f"for example {wrong[0]}. Give torchvision's {BACKBONE_FILE}."
        )
    if not all(torch.isfinite(v).all() for v in tensors.values()):
        raise UserError(f"The {what} contain NaN or infinite numbers; download {BACKBONE_FILE} again.")
    module.load_state_dict(tensors)


def _read_tensors(path: Path) -> dict[str, Tensor]:
    """A state dict from a file that may hold nothing but tensors."""
    if not path.is_file():
        raise UserError(f"There is no file {path} with weights for LPIPS; {REMEDY}.")
    try:
        loaded: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise UserError(f"{path} cannot be read as weights (cut off, or not tensors only); {REMEDY}.") from error
    if not isinstance(loaded, dict) or not all(isinstance(v, Tensor) for v in loaded.values()):
        raise UserError(f"{path} does not hold a plain list of named tensors; {REMEDY}.")
    return loaded


def _published_heads() -> dict[str, Tensor] | Unavailable:
    """The linear heads of LPIPS 0.1 for VGG16, which torchmetrics carries in its package."""
    package = importlib.util.find_spec("torchmetrics")
    if package is None or not package.submodule_search_locations:
        return Unavailable("torchmetrics, which carries the linear heads of LPIPS, is not installed")
    path = Path(package.submodule_search_locations[0]) / "functional" / "image" / "lpips_models" / "vgg.pth"
    if not path.is_file():
        return Unavailable("the installed torchmetrics does not carry the linear heads of LPIPS")
    tensors = _read_tensors(path)
    return {f"{i}.weight": tensors[f"lin{i}.model.1.weight"] for i in range(len(CHANNELS))}


def _backbone_from_torchvision() -> dict[str, Tensor] | Unavailable:
    missing = f"no VGG16 weights on this machine; {REMEDY}"
    try:
        from torchvision.models import VGG16_Weights  # type: ignore[import-not-found]
    except (ImportError, RuntimeError):  # a torchvision built for another torch raises RuntimeError
        return Unavailable(missing)
    try:
        tensors = VGG16_Weights.IMAGENET1K_V1.get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError):  # no network, no room, or a damaged download
        return Unavailable(missing)
    return {k: v for k, v in tensors.items() if k.startswith("features.")}


def _describe_file(path: Path) -> str:
    """Where the weights came from, for the report: a person must see when they are not the published ones."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:8]
    if digest in BACKBONE_FILE:
        return f"{path}, the published {BACKBONE_FILE}"
    return f"{path} (sha256 {digest}), not the published {BACKBONE_FILE}: do not compare with papers"
