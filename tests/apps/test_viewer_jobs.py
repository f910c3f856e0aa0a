"""What is told of jobs that end, fail, are stopped or give way to a newer one."""

from types import SimpleNamespace

import pytest

gr = pytest.importorskip("gradio", reason="needs package gradio")

from apps.viewer.jobs import CLEARED, Jobs  # noqa: E402
from apps.viewer.progress import Progress  # noqa: E402
from data import UserError  # noqa: E402

REQUEST = SimpleNamespace(session_hash="one")


def steps(count):
    for done in range(count):
        yield Progress("working", done, count)


def failing():
    yield Progress("working", 0, 1)
    raise UserError("This is no <photo>.")


def test_a_job_shows_its_bar_and_clears_it():
    bars = list(Jobs().run(steps(2), REQUEST))
    assert "working" in bars[0][0] and bars[0][1]["visible"] and bars[-1] == CLEARED


def test_a_failure_is_told_with_a_button_that_closes_it():
    *_, (told, stop) = Jobs().run(failing(), REQUEST)
    assert "This is no &lt;photo&gt;." in told and "nvs-job-close" in told and not stop["visible"]


def test_a_job_that_was_stopped_clears_its_bar():
    jobs = Jobs()
    job = jobs.run(steps(9), REQUEST)
    next(job)
    jobs.stop(REQUEST)
    assert list(job) == [CLEARED]


def test_a_problem_is_told_again():
    first, second = ([*Jobs().run(failing(), REQUEST)][-1][0] for _ in range(2))
    assert first != second


def test_a_job_that_was_stopped_wipes_nothing_of_a_newer_one():
    jobs = Jobs()
    job = jobs.run(steps(9), REQUEST)
    next(job)
    jobs.stop(REQUEST)
    list(jobs.run(failing(), REQUEST))
    assert list(job) == [(gr.skip(), gr.skip())]


@pytest.mark.parametrize("newer", [failing, lambda: steps(2)])
@pytest.mark.parametrize("older", [failing, lambda: steps(9)])
def test_what_a_newer_job_tells_is_not_wiped_by_the_one_before(older, newer):
    jobs = Jobs()
    first = jobs.run(older(), REQUEST)
    next(first)
    list(jobs.run(newer(), REQUEST))
    assert list(first) == [(gr.skip(), gr.skip())]
