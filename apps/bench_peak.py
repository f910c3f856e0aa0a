"""The part of `nvs bench` that measures peak memory: each way of encoding in a process of its own."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from apps.bench_table import PLAIN, WAYS

if TYPE_CHECKING:
    from data import Views
    from nvs import LaCT

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class ModelChoice:
    """Which model is measured, so that another process can build it again."""

    checkpoint: str | None
    dim: int
    layers: int
    expansion: int
    image_size: tuple[int, int]

    def build(self, precision: str = "fp32") -> LaCT:
        """The model, from its file or with random weights."""
        import torch

        from data import UserError
        from nvs import LaCT, ModelConfig, load_model
        from nvs.memory import LaCTConfig
        from nvs.tokens import check_patches
        from nvs.yardstick import Yardstick

        torch.manual_seed(0)
        try:
            if self.checkpoint is None:
                memory = LaCTConfig(head_dim=self.dim, expansion=self.expansion)
                model = LaCT(ModelConfig(dim=self.dim, layers=self.layers, memory=memory))
            else:
                model = load_model(self.checkpoint)
            Yardstick(model)
        except ValueError as error:
            hint = "Leave --checkpoint out" if self.checkpoint else "Change --dim, --layers or --expansion"
            raise UserError(f"{self.checkpoint or 'This model'} cannot be timed: {error}. {hint}.") from error
        check_patches(self.image_size, model.config.patch_size)
        model = model.eval().requires_grad_(False)
        if precision == "bf16":
            model.use_precision("bf16")
        return model

    def views(self, count: int) -> Views:
        """Random pictures seen from cameras around the scene, as a batch of one."""
        return random_views(count, self.image_size)


def random_views(count: int, image_size: tuple[int, int]) -> Views:
    """Random pictures seen from cameras around a scene, as a batch of one."""
    import torch

    import nvs
    from data import Views

    cameras = nvs.trajectory.orbit(None, count, radius=2.7, elevation=20.0, image_size=image_size)
    return Views(cameras.c2w, cameras.intrinsics, image_size, torch.rand(count, 3, *image_size)).add_batch()


def measure_peaks(
    choice: ModelChoice, inputs: int, slice_tokens: int, threads: int, tell: Callable[[str], None]
) -> dict[str, dict[str, int]]:
    """Bytes that encoding takes beyond model and views, by task and way; empty where the system does not tell."""
    if not CLEAR.exists():
        tell("peak memory is not measured: this system does not tell it (Linux does)")
        return {}
    found = {}
    for way in WAYS:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            try:
                found[way] = pool.submit(peak_bytes, choice, way, inputs, slice_tokens, threads).result()
            except PermissionError as error:  # some containers show the file and forbid to write it
                tell(f"peak memory is not measured: {error}")
                return {}
            except BrokenProcessPool:
                tell(
                    f"peak memory is not measured: encoding {inputs} views ({way}) was killed, perhaps for want of "
                    "memory; lower --memory-inputs"
                )
                return {}
        tell(f"peak memory, {way}: {found[way] / 2**20:.0f} MiB")
    return {f"peak memory, encode {inputs} views": found}


def peak_bytes(choice: ModelChoice, way: str, inputs: int, slice_tokens: int, threads: int) -> int:
    """The most memory that this process held while it encoded, less what it held before."""
    import torch

    from nvs.yardstick import Yardstick

    torch.set_num_threads(threads)
    model, views = choice.build("bf16" if "bf16" in way else "fp32"), choice.views(inputs)
    plain = Yardstick(model) if way == PLAIN else None
    CLEAR.write_text("5")  # the highest mark falls to what is held now
    before = _status("VmRSS")
    with torch.inference_mode():
        plain.encode(views) if plain else model.encode(views, slice_tokens)
    return _status("VmHWM") - before


def _status(name: str) -> int:
    line = re.search(rf"^{name}:\s+(\d+) kB", STATUS.read_text(), flags=re.MULTILINE)
    assert line is not None
    return int(line[1]) * 1024
