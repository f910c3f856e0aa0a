"""Which implementation runs: the one switch of this package."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

Backend = Literal["auto", "reference", "triton"]

_chosen: Backend | None = None


def current_backend() -> Backend:
    """The backend set by `use_backend`, else by the variable NVS_KERNELS, else "auto"."""
    if _chosen is not None:
        return _chosen
    return _check(os.environ.get("NVS_KERNELS", "auto"))


@contextmanager
def use_backend(backend: Backend) -> Iterator[None]:
    """Run the operators inside the `with` block on this backend; raises ValueError for an unknown name."""
    global _chosen
    before, _chosen = _chosen, _check(backend)
    try:
        yield
    finally:
        _chosen = before


def _check(name: str) -> Backend:
    for known in get_args(Backend):
        if name == known:
            return known
    raise ValueError(f"unknown kernel backend {name!r}; choose one of {', '.join(get_args(Backend))}")
