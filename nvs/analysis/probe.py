"""What every question needs: scenes to ask on, changed copies of a model, and what goes in and out of its memories."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from data import Cameras, PhotoCache, Scene, UserError, Views, open_scene
from nvs.blocks import Block
from nvs.evaluation import (
    Settings,
    SkippedScene,
    choose_image_size,
    choose_views,
    find_places,
    holdout_every,
    run_scene,
)
from nvs.memory import Grid, State
from nvs.metrics import psnr
from nvs.model import LaCT

OnStep = Callable[[int], object]
"""Told how much of the work on a question is done, in the question's own unit."""


class NotApplicableError(Exception):
    """Why a question has no meaning for a model, as one sentence."""


@dataclass(frozen=True)
class Case:
    """A scene with the frames that a model is given and those that it is compared with."""

    scene: Scene
    inputs: list[int]
    targets: list[int]
    image_size: tuple[int, int]

    def views(self, model: LaCT) -> tuple[Views, Views]:
        """Input and target views in the frame that the model knows."""
        normalization = model.trained.normalization if model.trained else "focus"
        scene = self.scene.normalize(self.inputs, normalization)
        return scene.load(self.inputs, self.image_size), scene.load(self.targets, self.image_size)


class Trace(NamedTuple):
    """What went through the memory of one block, and its state before and after the input views."""

    before: State
    after: State
    written: Float[Tensor, "b n d"]
    """Tokens of the input views, as the memory got them."""
    read: Float[Tensor, "b m d"]
    """Tokens of the target views, as the memory got them."""
    written_grid: Grid
    """Where the tokens of the input views come from."""
    read_grid: Grid
    """Where the tokens of the target views come from."""


def find_cases(model: LaCT, paths: Sequence[Path | str], settings: Settings) -> list[Case]:
    """Every capture behind the paths; raises UserError for one that cannot be used."""
    size = choose_image_size(model, settings.image_size)
    background, cache = model.trained.background if model.trained else "white", PhotoCache()
    cases = []
    for place in find_places(paths):
        if isinstance(place, SkippedScene):
            raise UserError(place.detail)
        scene = open_scene(place, background=background, cache=cache).hold_out(holdout_every(model, settings))
        cases.append(Case(scene, *choose_views(scene, settings), size))
    if not cases:
        raise UserError("There is no capture to look at: give at least one.")
    return cases


def quality(model: LaCT, cases: Sequence[Case]) -> float:
    """Mean over all target views of all cases of the PSNR of each, in dB."""
    scores = []
    for case in cases:
        run = run_scene(model, case.scene, case.inputs, case.targets, case.image_size)
        scores.append(psnr(run.renderings, run.targets.images))
    return torch.cat(scores).mean().item()


def changed(model: LaCT, **settings: Any) -> LaCT:
    """A copy with other settings of its memory layers and the same weights."""
    memory = model.config.memory
    missing = [name for name in settings if name not in {f.name for f in fields(memory)}]
    if missing:
        raise NotApplicableError(f"The memory layer {memory.kind} has no setting {missing[0]}.")
    try:
        return model.with_memory(**settings)
    except ValueError as error:
        raise NotApplicableError(f"Not possible with this memory layer: {error}.") from error


def memories(model: LaCT, method: str = "update_state", lack: str = "") -> list[Any]:
    """The memory layer of every block; NotApplicableError without a method, which `lack` puts in words."""
    found = [block.memory for block in model.blocks if isinstance(block, Block)]
    if not hasattr(found[0], method):
        raise NotApplicableError(f"The memory layer {model.config.memory.kind} {lack}.")
    return found


@torch.no_grad()
def trace(model: LaCT, inputs: Views, targets: Cameras) -> list[Trace]:
    """Encode and render once, and tell for each block what its memory got and became."""
    with _recorded(model) as record:
        model.render(model.encode(inputs), targets)
    return [Trace(**noted) for noted in record]


@contextmanager
def _recorded(model: LaCT) -> Iterator[list[dict[str, Any]]]:
    """While this lasts, note the arguments and results of every memory layer; of several calls, the last."""
    layers = memories(model)
    record: list[dict[str, Any]] = [{} for _ in layers]

    def watch(index: int, memory: Any) -> None:
        update, apply = memory.update_state, memory.apply_state

        def noted_update(state: State, x: Tensor, slice_tokens: int | None, grid: Grid) -> State:
            after = update(state, x, slice_tokens, grid)
            record[index] |= {"before": state, "after": after, "written": x, "written_grid": grid}
            return after

        def noted_apply(state: State, x: Tensor, grid: Grid) -> Tensor:
            record[index] |= {"read": x, "read_grid": grid}
            return apply(state, x, grid)

        memory.update_state, memory.apply_state = noted_update, noted_apply

    for index, memory in enumerate(layers):
        watch(index, memory)
    try:
        yield record
    finally:
        for memory in layers:
            del memory.update_state, memory.apply_state
