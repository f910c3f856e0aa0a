"""`nvs bench`: speed of this machine on the model, against a plain version of the same model."""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from apps.bench_table import PLAIN, WAYS, in_words, speed_table

if TYPE_CHECKING:
    import torch

    from data import Views
    from nvs import LaCT
    from nvs.yardstick import Yardstick

Times = dict[str, dict[str, list[float]]]
"""Seconds or bytes of every run, by task and way."""


def bench_model(
    checkpoint: str | None = None,
    dim: int = 768,
    layers: int = 14,
    expansion: int = 2,
    image_size: tuple[int, int] = (256, 256),
    inputs: int = 4,
    memory_inputs: int = 32,
    slice_tokens: int = 2048,
    train: bool = True,
    newton_schulz_form: Literal["standard", "gram"] = "standard",
    compile: bool = False,
    runs: int = 5,
    threads: int | None = None,
    processor_time: bool = False,
) -> None:
    """Time the model on this machine's CPU beside a plain, un-optimised version with the same weights.

    Tasks: rendering one view, encoding the input views, the training step of configs/tiny_cpu.yaml, and the peak memory
    of encoding many views in slices. Printed are medians of interleaved runs for the plain version in float32 and for
    ours in float32 and bfloat16, and how ours compare. Without a checkpoint it takes random weights of the published
    size l14_d768_ttt2x.

      nvs bench --threads 2
      nvs bench --threads 2 --newton-schulz-form gram --compile     # all that makes it faster

    A word times something else and has options of its own (nvs bench data --help):

      nvs bench data       loading of training data
      nvs bench memory     the memory layers, recurrent and in parallel
      nvs bench scaling    what more input views cost

    Args:
        checkpoint: model to time instead of random weights (published configuration only).
        dim: token width of the random model.
        layers: blocks of the random model.
        expansion: hidden width of the fast weights over their head width.
        image_size: height and width of input and rendered views, in pixels.
        inputs: number of input views.
        memory_inputs: number of input views whose peak memory is measured, once each way; 0: not at all.
        slice_tokens: tokens that our versions work on at a time when memory is measured.
        train: whether to time the training step, too.
        newton_schulz_form: how our versions orthogonalise; gram is faster, and in bfloat16 less exact.
        compile: compile our training steps with torch.compile, as training.compile does; adds a minute of warm-up.
        runs: timed rounds; each round runs every version once.
        threads: CPU threads to use (default: what PyTorch chooses).
        processor_time: count the seconds that the CPU worked instead of those that passed: for a machine that others
            use, too, with one thread.
    """
    import torch
    from rich.console import Console

    from apps.bench_peak import ModelChoice, measure_peaks
    from data import UserError

    if compile and not train:
        raise UserError("--compile is for the training step, which --no-train leaves out: give one of them.")
    _check({"--runs": runs, "--inputs": inputs, "--threads": threads, "--slice-tokens": slice_tokens}, memory_inputs)
    if threads is not None:
        torch.set_num_threads(threads)
    choice = ModelChoice(checkpoint, dim, layers, expansion, image_size)
    model = choice.build()
    h, w = image_size
    about = f"{inputs} input views of {h}x{w}, {torch.get_num_threads()} CPU threads, {runs} interleaved runs"
    about += f"{', gram' if newton_schulz_form == 'gram' else ''}{', compiled training step' if compile else ''}"
    about += ", processor time" if processor_time else ""
    _tell(about)
    tasks = _use_tasks(model, choice.views(inputs), newton_schulz_form)
    tasks |= _training_tasks(newton_schulz_form, compile) if train else {}
    times = _interleave(tasks, runs, time.process_time if processor_time else time.perf_counter)
    del tasks
    peaks = measure_peaks(choice, memory_inputs, slice_tokens, torch.get_num_threads(), _tell) if memory_inputs else {}
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(speed_table(times, peaks, f"{about}, {in_words(torch.backends.cpu.get_cpu_capability())}"))


def _check(counts: dict[str, int | None], memory_inputs: int) -> None:
    from data import UserError

    for option, number in counts.items():
        if number is not None and number < 1:
            raise UserError(f"{option} {number} is not possible: give 1 or more.")
    if memory_inputs < 0:
        raise UserError(f"--memory-inputs {memory_inputs} is not possible: give 0 or more.")


def _use_tasks(model: LaCT, views: Views, newton_schulz_form: str) -> dict[str, dict[str, Callable]]:
    """Rendering and encoding, by task and way."""
    import torch

    from nvs.yardstick import Yardstick

    plain, model = Yardstick(model), model.with_memory(newton_schulz_form=newton_schulz_form)
    half = copy.deepcopy(model)
    half.use_precision("bf16")
    camera = views.cameras.select(0)
    with torch.inference_mode():
        plain_state, state = plain.encode(views), model.encode(views)
    used = {
        "render one view": (
            lambda: plain.render(plain_state, camera),
            lambda: model.render(state, camera),
            lambda: half.render(state, camera),
        ),
        f"encode {views.num_views} views": (
            lambda: plain.encode(views),
            lambda: model.encode(views),
            lambda: half.encode(views),
        ),
    }
    return {task: dict(zip(WAYS, map(torch.inference_mode(), calls), strict=True)) for task, calls in used.items()}


def _training_tasks(newton_schulz_form: str = "standard", compile: bool = False) -> dict[str, dict[str, Callable]]:
    """One step of configs/tiny_cpu.yaml with AdamW: 4 scenes, 6 input and 4 target views of 64x64."""
    from nvs import LaCT
    from nvs.yardstick import Yardstick

    model = LaCT(tiny_cpu()).train()
    plain, model = Yardstick(model, trainable=True), model.with_memory(newton_schulz_form=newton_schulz_form)
    half = copy.deepcopy(model)
    for ours in (model, half) if compile else ():
        ours.compile_blocks()
    inputs, targets = (_scenes(4, count) for count in (6, 4))
    ways = {
        PLAIN: _step(plain, list(plain.weights.values()), inputs, targets),
        WAYS[1]: _step(model, list(model.parameters()), inputs, targets),
        WAYS[2]: _step(half, list(half.parameters()), inputs, targets, half=True),
    }
    return {"training step of tiny_cpu": ways}


def tiny_cpu():
    """The network of configs/tiny_cpu.yaml, which is not there in an installed package."""
    from nvs import ModelConfig
    from nvs.memory import LaCTConfig

    return ModelConfig(dim=128, layers=6, attention_head_dim=32, memory=LaCTConfig(head_dim=64), frustum_points=8)


def _step(
    model: LaCT | Yardstick, weights: list[torch.Tensor], inputs: Views, targets: Views, half: bool = False
) -> Callable[[], torch.Tensor]:
    import torch

    from nvs.losses import pixel_loss

    optimizer = torch.optim.AdamW(weights, lr=1e-5)

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = pixel_loss(model(inputs, targets.cameras), targets.images)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def _scenes(batch: int, count: int) -> Views:
    import torch

    from apps.bench_peak import random_views
    from data import Views

    views = random_views(count, (64, 64))
    c2w, intrinsics = (x.expand(batch, *x.shape[1:]) for x in (views.c2w, views.intrinsics))
    return Views(c2w, intrinsics, (64, 64), torch.rand(batch, count, 3, 64, 64))


def _interleave(tasks: dict[str, dict[str, Callable]], runs: int, clock: Callable[[], float]) -> Times:
    times: Times = {task: {way: [] for way in ways} for task, ways in tasks.items()}
    for round_ in range(runs + 1):
        start = time.perf_counter()
        for task, ways in tasks.items():
            for way, call in ways.items():
                begun = clock()
                call()
                if round_:  # the first round warms up
                    times[task][way].append(clock() - begun)
        _tell(f"{f'round {round_} of {runs}' if round_ else 'warm-up'}: {time.perf_counter() - start:.1f} s")
    return times


def _tell(line: str) -> None:
    """Progress, line by line, so that it can be followed in a file, too."""
    print(line, file=sys.stderr, flush=True)
