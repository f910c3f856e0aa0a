"""Speed of several models, measured fairly: all take turns on the same views, so that a busy machine hits all."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from data import Views, stack_views
from nvs.ablation import Speed
from nvs.losses import pixel_loss
from nvs.model import LaCT
from nvs.optimizers import build_optimizer
from nvs.training_config import TrainingConfig

WARM_UP_ROUNDS = 2


def measure_speeds(
    models: Mapping[str, LaCT], scenes: Sequence[tuple[Views, Views]], training: TrainingConfig, rounds: int
) -> dict[str, Speed]:
    """Medians over `rounds` of a training step on input and target views, and of encoding and rendering one scene.

    Training steps take all scenes at once, in the precision of `training`; encoding and rendering take the first, in
    float32.
    """
    jobs = {name: _jobs(model, scenes, training) for name, model in models.items()}
    seconds: dict[str, list[list[float]]] = {name: [[], [], []] for name in jobs}
    for round_ in range(-WARM_UP_ROUNDS, rounds):
        # Each round starts with another model, so that none always follows the same one.
        start = round_ % len(jobs)
        for name in [*jobs][start:] + [*jobs][:start]:
            for job, taken in zip(jobs[name], seconds[name], strict=True):
                begin = time.perf_counter()
                job()
                if round_ >= 0:
                    taken.append(time.perf_counter() - begin)
    speeds = {}
    for name, taken in seconds.items():
        step, encode, render = map(statistics.median, taken)
        speeds[name] = Speed(len(scenes) / step, 1000 * encode, 1000 * render / scenes[0][1].num_views)
    return speeds


def _jobs(
    model: LaCT, scenes: Sequence[tuple[Views, Views]], training: TrainingConfig
) -> tuple[Callable[[], None], Callable[[], None], Callable[[], None]]:
    """A training step, encoding one scene, rendering all targets of one scene."""
    second = training.learning_rate if training.muon_learning_rate is None else training.muon_learning_rate
    learner = copy.deepcopy(model).requires_grad_(True).train()
    optimizer = build_optimizer(learner, training.optimizer, training.learning_rate, training.weight_decay, second)
    inputs, targets = stack_views([pair[0] for pair in scenes]), stack_views([pair[1] for pair in scenes])
    one, wanted = scenes[0][0], scenes[0][1].cameras
    with torch.inference_mode():
        state = model.encode(one)

    def train() -> None:
        with torch.autocast(inputs.images.device.type, torch.bfloat16, enabled=training.precision != "fp32"):
            images = learner(inputs, targets.cameras)
        pixel_loss(images, targets.images).backward()
        optimizer.step()
        optimizer.zero_grad()

    @torch.inference_mode()
    def encode() -> None:
        model.encode(one)

    @torch.inference_mode()
    def render() -> None:
        model.render(state, wanted)

    return train, encode, render
