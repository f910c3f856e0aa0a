"""Which implementation runs: the one switch of this package."""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor

from kernels.launch import interpreting

Backend = Literal["auto", "reference", "triton"]

_chosen: Backend | None = None


class BackendError(RuntimeError):
    """The chosen backend is unknown or cannot run here; the text says what to do."""


def _constant_when_compiled(function: Callable) -> Callable:
    """What torch.compiler.assume_constant_result does, which imports the whole compiler to set this mark."""
    function._dynamo_marked_constant = True
    return function


def current_backend() -> Backend:
    """The backend set by `use_backend`, else by the variable NVS_KERNELS, else "auto"."""
    if _chosen is not None:
        return _chosen
    return _check(os.environ.get("NVS_KERNELS", "auto"), "the variable NVS_KERNELS")


@contextmanager
def use_backend(backend: Backend) -> Iterator[None]:
    """Run the operators inside the `with` block on this backend; raises BackendError for an unknown name."""
    global _chosen
    before, _chosen = _chosen, _check(backend, "the kernel backend")
    try:
        yield
    finally:
        _chosen = before


def runs_lean() -> bool:
    """Whether plain operators may write over their own intermediate results: backend "auto", no gradients recorded."""
    return current_backend() == "auto" and not torch.is_grad_enabled()


def triton_runs(dtype: torch.dtype, *tensors: Tensor) -> bool:
    """Whether the chosen backend runs Triton on these tensors, with matrix products in `dtype`.

    Raises BackendError with the reason if "triton" was chosen and cannot run.
    """
    backend = current_backend()
    if backend == "reference":
        return False
    if backend == "auto" and not all(x.is_cuda for x in tensors):
        return False
    obstacle = _obstacle(dtype, interpreting(), all(x.is_cuda for x in tensors))
    if obstacle and backend == "triton":
        raise BackendError(f"the triton backend cannot run here: {obstacle}; set NVS_KERNELS to auto or reference")
    if obstacle is None and not interpreting():
        obstacle = _self_test(dtype, str(tensors[0].device))
    return obstacle is None


@_constant_when_compiled
def _obstacle(dtype: torch.dtype, interpreted: bool, on_gpu: bool) -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if interpreted:
        # The interpreter's arithmetic in 16 bits is wrong.
        return None if dtype == torch.float32 else f"Triton's interpreter is right in float32 only, got {dtype}"
    if not on_gpu:
        return "the tensors are not on a GPU and Triton's interpreter is off (TRITON_INTERPRET=1)"
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"it computes in float32, bfloat16 or float16, got {dtype}"
    needed = (8, 0) if dtype == torch.bfloat16 else (7, 0)
    if not torch.version.hip and torch.cuda.get_device_capability() < needed:
        return f"{dtype} needs a GPU of compute capability {needed[0]}.{needed[1]} or newer"
    return None


@_constant_when_compiled
def _self_test(dtype: torch.dtype, device: str) -> str | None:
    from kernels.selftest import failure

    reason = failure(dtype, device)
    if reason and current_backend() == "triton":
        raise BackendError(f"the triton backend cannot run here: {reason}; set NVS_KERNELS to auto or reference")
    if reason:
        warnings.warn(f"Triton is not used for {dtype} on {device}: {reason}; plain PyTorch runs", stacklevel=2)
    return reason


def _check(name: str, what: str) -> Backend:
    for known in get_args(Backend):
        if name == known:
            return known
    raise BackendError(f"{what} is {name!r}: choose one of {', '.join(get_args(Backend))}")
