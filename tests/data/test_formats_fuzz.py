"""A short run of tests/fuzz/formats.py; `make fuzz` is the long one."""

import resource

import pytest
from fuzz import formats

INPUTS = 60


@pytest.mark.parametrize("name", formats.FORMATS)
def test_damaged_files_end_in_a_scene_or_in_one_sentence(name):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    counts = formats.run_format(name, INPUTS)
    assert sum(counts.values()) == INPUTS and counts["refused"] > 0
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < formats.MOST_BYTES
