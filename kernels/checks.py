"""What the public operators refuse, and the dtype that they compute in."""

from __future__ import annotations

import torch
from torch import Tensor


def check_shape(name: str, x: Tensor, expected: tuple[int | None, ...]) -> None:
    """Raise ValueError unless x has this shape; None stands for any size."""
    if x.dim() != len(expected) or any(e is not None and e != s for s, e in zip(x.shape, expected, strict=True)):
        wanted = ", ".join("any" if e is None else str(e) for e in expected)
        raise ValueError(f"{name} has shape {tuple(x.shape)}, expected ({wanted})")


def check_floating(**tensors: Tensor) -> None:
    """Raise ValueError unless all tensors are floating point and on one device."""
    first_name, first = next(iter(tensors.items()))
    for name, x in tensors.items():
        if not x.is_floating_point():
            raise ValueError(f"{name} has dtype {x.dtype}, expected a floating-point dtype")
        if x.device != first.device:
            raise ValueError(f"{name} is on {x.device}, expected {first.device} as {first_name}")


def check_alike(**tensors: Tensor) -> None:
    """Raise ValueError unless all tensors are floating point, on one device and, outside autocast, of one dtype."""
    check_floating(**tensors)
    (first_name, first), *others = tensors.items()
    for name, x in others:
        if x.dtype != first.dtype and not torch.is_autocast_enabled(x.device.type):
            raise ValueError(f"{name} has dtype {x.dtype}, expected {first.dtype} as {first_name} (or use autocast)")


def operand_dtype(x: Tensor) -> torch.dtype:
    """Dtype of the operands of matrix products: that of autocast where it is on, else that of x."""
    device = x.device.type
    if torch.is_autocast_enabled(device) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return x.dtype
