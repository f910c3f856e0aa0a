"""What happens to a model whose inner loop goes the wrong way, or whose queries are its keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nvs.analysis.probe import Case, NotApplicableError, changed, quality
from nvs.model import LaCT

QUESTIONS: dict[str, dict[str, Any]] = {
    "gradient ascent": {"direction": "ascent"},
    "keys in place of queries": {"query": "key"},
}
"""Settings of the memory layer that each question changes."""


@dataclass(frozen=True)
class Alternative:
    """PSNR in dB of one changed setting: at inference, and of models that were trained with it."""

    name: str
    psnr: float | None
    """The model as it is, with the setting changed at inference only; None where that cannot be."""
    reason: str | None
    """Why it cannot be."""
    retrained: dict[str, float]
    """Models that were trained with the setting, by the name of their checkpoint."""


def ask_alternatives(model: LaCT, others: Mapping[str, LaCT], cases: Sequence[Case]) -> list[Alternative]:
    """Change one setting at a time; `others` are further checkpoints, taken where they were trained with it."""
    found = []
    for name, settings in QUESTIONS.items():
        score, reason = None, None
        try:
            if _has(model, settings):
                raise NotApplicableError("This model was trained that way.")
            score = quality(changed(model, **settings), cases)
        except NotApplicableError as error:
            reason = str(error)
        retrained = {label: quality(other, cases) for label, other in others.items() if _has(other, settings)}
        found.append(Alternative(name, score, reason, retrained))
    return found


def _has(model: LaCT, settings: Mapping[str, Any]) -> bool:
    return all(getattr(model.config.memory, name, None) == value for name, value in settings.items())
