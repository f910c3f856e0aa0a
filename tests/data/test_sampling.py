import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import UserError, draw_views, spread
from data.sampling import draw_inputs, draw_stretch, every, spread_cameras


def circle(count):
    angle = 2 * np.pi * np.arange(count) / count
    return np.stack([np.cos(angle), np.sin(angle), 0 * angle], 1)


@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_spread_on_a_circle_leaves_even_gaps(count):
    chosen = spread(circle(24), count)
    gaps = np.diff([*chosen, chosen[0] + 24])
    assert gaps.max() - gaps.min() <= 2


def test_spread_finds_each_cluster():
    rng = np.random.default_rng(0)
    centers = np.array([[0, 0, 0], [10, 0, 0], [0, 10, 0], [0, 0, 10]])
    points = (centers[:, None] + rng.normal(size=(4, 9, 3)) * 0.1).reshape(-1, 3)
    assert sorted(i // 9 for i in spread(points, 4)) == [0, 1, 2, 3]


@given(st.integers(1, 20), st.integers(0, 10_000), st.booleans())
@settings(max_examples=50, deadline=None)
def test_spread_gives_distinct_frames_again_and_again(total, seed, same_place):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(total, 3)) * (0 if same_place else 1) + 5
    count = int(rng.integers(1, total + 1))
    chosen = spread(points, count)
    assert len(set(chosen)) == count == len(chosen)
    assert chosen == sorted(chosen) == spread(points.copy(), count)
    assert all(isinstance(i, int) and 0 <= i < total for i in chosen)


@pytest.mark.parametrize("count", [0, 4])
def test_spread_refuses_impossible_counts(count):
    with pytest.raises(ValueError, match="cannot choose"):
        spread(circle(3), count)


@given(st.integers(0, 10_000), st.booleans())
@settings(max_examples=50, deadline=None)
def test_drawn_views_are_disjoint_and_in_range(seed, overlap):
    inputs, targets = draw_views(np.random.default_rng(seed), 12, (2, 6), (1, 4), overlap)
    assert 2 <= len(inputs) <= 6 and 1 <= len(targets) <= 4
    assert len(set(inputs)) == len(inputs) and len(set(targets)) == len(targets)
    assert set(inputs) | set(targets) <= set(range(12))
    assert overlap or not set(inputs) & set(targets)
    assert (inputs, targets) == draw_views(np.random.default_rng(seed), 12, (2, 6), (1, 4), overlap)


def test_every_frame_and_every_count_is_drawn():
    rng = np.random.default_rng(0)
    draws = [draw_views(rng, 6, (1, 3), 2) for _ in range(200)]
    assert {len(i) for i, _ in draws} == {1, 2, 3}
    assert {i for inputs, _ in draws for i in inputs} == set(range(6))


def test_too_few_frames_are_told():
    with pytest.raises(UserError, match="has 3 frames, but 2 input and 2 target"):
        draw_views(np.random.default_rng(0), 3, 2, 2)


def test_every_takes_even_steps():
    assert every(list(range(10, 21)), 3) == [10, 15, 20]
    assert every([4, 5, 6], 1) == [5]
    assert every([4, 5, 6], 3) == [4, 5, 6]
    assert every(range(2), 5) == [0, 1]
    assert every([], 1) == []
    assert every([4, 5, 6], 0) == []


def test_cameras_that_stand_together_are_spread_by_where_they_look(look_at):
    angles = np.radians(np.arange(0, 360, 30))
    c2w = np.stack([look_at((1, 2, 3), (1 + np.cos(a), 2 + np.sin(a), 3)) for a in angles])
    chosen = spread_cameras(c2w, 3)
    gaps = np.diff([*chosen, chosen[0] + 12])
    assert gaps.max() - gaps.min() <= 2


def cameras_at(positions):
    c2w = np.tile(np.eye(4), (len(positions), 1, 1))
    c2w[:, :3, 3] = positions
    return c2w


def test_kmeans_takes_one_camera_of_each_group_and_in_time_all_of_them():
    rng = np.random.default_rng(0)
    centers = np.array([[0, 0, 0], [10, 0, 0], [0, 10, 0], [0, 0, 10]])
    points = (centers[:, None] + rng.normal(size=(4, 5, 3)) * 0.1).reshape(-1, 3)
    draws = [draw_inputs(rng, cameras_at(points), 4, "kmeans") for _ in range(200)]
    assert all(sorted(i // 5 for i in d) == [0, 1, 2, 3] for d in draws)
    assert {i for d in draws for i in d} == set(range(20))


def test_spread_inputs_start_anywhere_and_are_far_apart():
    rng = np.random.default_rng(1)
    draws = [draw_inputs(rng, cameras_at(circle(24)), 4, "spread") for _ in range(100)]
    assert {d[0] for d in draws} == set(range(24))
    for draw in draws:
        gaps = np.diff([*sorted(draw), sorted(draw)[0] + 24])
        assert gaps.min() >= 5


@pytest.mark.parametrize("selection", ["kmeans", "spread"])
def test_inputs_are_distinct_even_where_cameras_coincide(selection):
    rng = np.random.default_rng(2)
    for positions in (np.zeros((6, 3)), np.repeat(circle(2), 3, axis=0)):
        for count in (1, 3, 6):
            chosen = draw_inputs(rng, cameras_at(positions), count, selection)
            assert len(set(chosen)) == count == len(chosen) and set(chosen) <= set(range(6))


@given(st.integers(0, 10_000))
@settings(max_examples=100, deadline=None)
def test_stretches_of_a_clip_are_all_that_brute_force_finds_and_equally_likely(seed):
    rng = np.random.default_rng(seed)
    frames = sorted(rng.choice(30, size=int(rng.integers(1, 15)), replace=False).tolist())
    low = int(rng.integers(1, 10))
    distance, needed = (low, low + int(rng.integers(0, 10))), int(rng.integers(1, 6))
    valid = {
        (a, b)
        for a in range(len(frames))
        for b in range(a, len(frames))
        if distance[0] <= frames[b] - frames[a] <= distance[1] and b - a + 1 >= needed
    }
    draws = [draw_stretch(rng, frames, distance, needed) for _ in range(30)]
    assert (set(draws) == {None}) if not valid else (set(draws) <= valid)


def test_stretches_are_equally_likely():
    rng = np.random.default_rng(0)
    draws = [draw_stretch(rng, [0, 1, 2, 5], (1, 3), 2) for _ in range(4000)]
    found, counts = np.unique(draws, axis=0, return_counts=True)
    assert found.tolist() == [[0, 1], [0, 2], [1, 2], [2, 3]]
    assert counts.min() > 850
