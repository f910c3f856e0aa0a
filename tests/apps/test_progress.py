"""Long work tells how far it is, also where its output goes to a file."""

from apps.progress import ProgressLines, progress_bar, progress_bars


def test_a_line_for_the_start_and_each_tenth(capsys):
    with progress_bar("packing", 250) as advance:
        for _ in range(250):
            advance()
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" (")[0] for line in lines] == [f"packing: {n} of 250" for n in range(0, 251, 25)]
    assert lines[0].endswith("(0.0 min)")


def test_each_kind_of_work_has_its_own_lines(capsys):
    with progress_bars() as on_step:
        assert isinstance(on_step, ProgressLines)
        for done in range(4):
            on_step("reading", done, 3)
        on_step("placing", 7, 9)
        on_step("nothing", 0, 0)
    told = [line.partition(" (")[0] for line in capsys.readouterr().err.splitlines()]
    assert told == [*(f"reading: {n} of 3" for n in range(4)), "placing: 7 of 9", "nothing: 0 of 0"]
