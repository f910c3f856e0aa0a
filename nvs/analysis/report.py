"""All questions put to a model, one after the other; a question without meaning for it is answered with the reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any

from torch import Tensor

from data import Cameras
from nvs.analysis.alternatives import Alternative, ask_alternatives
from nvs.analysis.attention import ReadMap, read_map
from nvs.analysis.distributions import Overlap, query_key_overlap
from nvs.analysis.inner_steps import StepCurve, inner_step_curve
from nvs.analysis.probe import Case, NotApplicableError, OnStep, quality
from nvs.analysis.throughput import ThroughputCurve, chunk_throughput
from nvs.analysis.updates import Update, memory_updates
from nvs.analysis.view_counts import ViewCurve, view_curve
from nvs.evaluation import SkipError
from nvs.model import LaCT


@dataclass(frozen=True)
class Questions:
    """What is asked, and how far."""

    steps: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    """Numbers of inner steps."""
    view_counts: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12)
    """Numbers of input views."""
    chunks: tuple[int, ...] = (1, 4, 16, 64)
    """Numbers of chunks for the throughput."""
    rounds: int = 5
    """Rounds of the throughput measurement."""
    target: int = 0
    """The target view whose patch is followed."""
    patch: tuple[int, int] | None = None
    """Row and column of the patch that is followed; None: the one with most contrast."""


@dataclass(frozen=True)
class Answers:
    """What was found; a question without meaning for the model has its reason in `unanswered` and no answer."""

    psnr: float
    """Mean PSNR on held-out photos, in dB."""
    others: dict[str, float]
    """The same of further checkpoints."""
    steps: StepCurve | None
    alternatives: list[Alternative]
    overlaps: list[Overlap]
    updates: list[Update]
    maps: list[ReadMap]
    views: ViewCurve
    throughput: list[ThroughputCurve]
    unanswered: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without pixels."""
        return {name: _plain(getattr(self, name)) for name in self.__dataclass_fields__}


def ask(
    model: LaCT,
    cases: Sequence[Case],
    questions: Questions,
    others: Mapping[str, LaCT],
    on_step: Callable[[str, int, int], object] = lambda text, done, total: None,
) -> Answers:
    """Put all questions; `others` are checkpoints to compare with.

    `on_step` hears what is being done, how much of it is done and how much there is.
    """
    unanswered: dict[str, str] = {}

    def put(name: str, text: str, question: Callable[[OnStep], Any], otherwise: Any, total: int = 1) -> Any:
        on_step(text, 0, total)
        try:
            answer = question(lambda done: on_step(text, done, total))
        except (NotApplicableError, SkipError) as reason:  # what diverges when it is changed is no loss to the rest
            unanswered[name] = str(reason)
            answer = otherwise
        on_step(text, total, total)
        return answer

    q, turns = questions, sum(questions.chunks) * (questions.rounds + 1)
    on_step("quality as trained", 0, 1)
    as_trained = quality(model, cases)
    on_step("quality as trained", 1, 1)
    return Answers(
        psnr=as_trained,
        others={label: quality(other, cases) for label, other in others.items()},
        steps=put("steps", "inner steps", lambda on: inner_step_curve(model, cases, q.steps, on), None, sum(q.steps)),
        alternatives=put("alternatives", "ascent, keys", lambda _: ask_alternatives(model, others, cases), []),
        overlaps=put("overlaps", "queries and keys", lambda _: query_key_overlap(model, cases), []),
        updates=put("updates", "updates of the memory", lambda _: memory_updates(model, cases), []),
        maps=put("maps", "read maps", lambda _: [read_map(model, case, q.target, q.patch) for case in cases], []),
        views=put(
            "views",
            "numbers of input views",
            lambda on: view_curve(model, cases, q.view_counts, on),
            None,
            len(q.view_counts),
        ),
        throughput=put(
            "throughput", "throughput", lambda on: chunk_throughput(model, q.chunks, q.rounds, on), [], turns
        ),
        unanswered=unanswered,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Cameras):
        return None
    if isinstance(value, Tensor):
        return [_plain(round(x, 6)) for x in value.flatten().tolist()]
    if is_dataclass(value) and not isinstance(value, type):
        return {k: _plain(getattr(value, k)) for k in value.__dataclass_fields__ if k not in ("inputs", "targets")}
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value
