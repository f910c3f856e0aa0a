"""What takes long on the page of the viewer: shown as a bar, stopped by a button, failing in plain words."""

from __future__ import annotations

import itertools
import sys
import traceback
from collections.abc import Generator, Iterator
from html import escape
from typing import TYPE_CHECKING, Any

import gradio as gr

from apps.viewer.pictures import plain_message
from data import UserError

if TYPE_CHECKING:
    from apps.viewer.progress import Progress

QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
"""Arguments of an event that only the page uses and that shows its progress by itself."""
CLEARED = ("", gr.update(visible=False))
KEPT = (gr.skip(), gr.skip())
NUMBERS = itertools.count()


class _Job:
    stopped = overtaken = False
    """Whether it is to end, and whether another one has begun since, which shows its own bar or problem."""


class Jobs:
    """Jobs of one kind, at most one for each session at a time."""

    def __init__(self) -> None:
        self._newest: dict[str, _Job] = {}

    def stop(self, request: gr.Request) -> None:
        """End the job of this session at its next step. Gradio's own way loses what the page is told afterwards."""
        if job := self._newest.get(request.session_hash or ""):
            job.stopped = True

    def run(self, steps: Iterator[Progress], request: gr.Request) -> Iterator[tuple[Any, Any]]:
        """Take the steps of a job and yield its bar and the state of its stop button."""
        for bar, stop, _ in self.run_for_file(steps, request):
            yield bar, stop

    def run_for_file(self, steps: Iterator[Progress], request: gr.Request) -> Iterator[tuple[Any, Any, str | None]]:
        """The same with the file that the job made, at its end. It ends the job before it, if that still runs."""
        file, session, this = None, request.session_hash or "", _Job()
        if before := self._newest.get(session):
            before.overtaken = True
        self._newest[session] = this
        try:
            for step in steps:
                if this.stopped or this.overtaken:
                    file = None
                    break
                file = step.file
                yield _bar(step), gr.update(visible=True), None
        except Exception as error:
            if not isinstance(error, UserError):
                traceback.print_exc(file=sys.stderr)
            bar, stop = _problem(plain_message(error, "This did not work")), gr.update(visible=False)
            yield (*KEPT, None) if this.overtaken else (bar, stop, None)
        else:
            yield (*KEPT, None) if this.overtaken else (*CLEARED, file)
        finally:
            if isinstance(steps, Generator):
                steps.close()
            if self._newest.get(session) is this:
                del self._newest[session]


def _bar(step: Progress) -> str:
    share = step.done / step.total if step.total else None
    value = "" if share is None else f' value="{share:.4f}"'
    count = f"{step.done} of {step.total}" if step.total > 1 else ""
    left = "" if step.seconds_left is None else f"{_duration(step.seconds_left)} left"
    details = ", ".join(part for part in (count, left) if part)
    return (
        f'<div class="nvs-job"><span role="status">{escape(step.text)}</span>'
        f'<progress max="1"{value} aria-label="{escape(step.text)}"></progress><span>{details}</span></div>'
    )


def _problem(message: str) -> str:
    close = '<button type="button" class="nvs-button nvs-job-close" aria-label="Close">&times;</button>'
    # Gradio draws only what differs from before, and the person may have closed the same message.
    return (
        f'<div class="nvs-job nvs-job-problem" role="alert" data-number="{next(NUMBERS)}">'
        f"<span>{escape(message)}</span>{close}</div>"
    )


def _duration(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole} s" if whole < 90 else f"{whole / 60:.0f} min"
