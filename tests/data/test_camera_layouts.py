"""Cameras stand where a layout says and look at the middle."""

from __future__ import annotations

import numpy as np
import pytest

from data.camera_layouts import LAYOUTS, look_at, place_cameras


@pytest.mark.parametrize("layout", LAYOUTS)
def test_cameras_keep_their_ranges_and_look_at_the_origin(layout):
    c2w = place_cameras(layout, 40, (2.0, 3.0), (-10.0, 50.0), 0.0, np.random.default_rng(1))
    position = c2w[:, :3, 3]
    distance = np.linalg.norm(position, axis=1)
    elevation = np.degrees(np.arcsin(position[:, 2] / distance))
    assert ((distance >= 2) & (distance <= 3)).all()
    assert ((elevation >= -10 - 1e-9) & (elevation <= 50 + 1e-9)).all()
    np.testing.assert_allclose(c2w[:, :3, 2], -position / distance[:, None], atol=1e-12)
    np.testing.assert_allclose(
        c2w[:, :3, :3] @ c2w[:, :3, :3].transpose(0, 2, 1), np.tile(np.eye(3), (40, 1, 1)), atol=1e-12
    )
    np.testing.assert_allclose(np.linalg.det(c2w[:, :3, :3]), 1, atol=1e-12)
    np.testing.assert_allclose(c2w[:, 2, 0], 0, atol=1e-12)
    assert (c2w[:, 2, 1] < 0).all(), "the picture's down axis must point down in the world"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_repeat_for_a_seed(layout):
    first, again, other = (
        place_cameras(layout, 5, (2.0, 3.0), (-10.0, 50.0), 0.1, np.random.default_rng(seed)) for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_orbit_is_an_even_circle():
    c2w = place_cameras("orbit", 8, (2.0, 3.0), (0.0, 40.0), 0.1, np.random.default_rng(0))
    position = c2w[:, :3, 3]
    elevation = np.degrees(np.arcsin(position[:, 2] / np.linalg.norm(position, axis=1)))
    np.testing.assert_allclose(elevation, 20)
    steps = np.linalg.norm(position - np.roll(position, 1, axis=0), axis=1)
    np.testing.assert_allclose(steps, steps[0])


def test_fibonacci_spreads_better_than_chance():
    def nearest(layout):
        c2w = place_cameras(layout, 100, (1.0, 1.0), (-90.0, 90.0), 0.0, np.random.default_rng(0))
        gaps = np.linalg.norm(c2w[:, None, :3, 3] - c2w[None, :, :3, 3], axis=-1) + 9 * np.eye(100)
        return gaps.min()

    # 100 even points on a sphere are about sqrt(4 pi / 100) = 0.35 apart.
    assert nearest("fibonacci") > 0.25
    assert nearest("random-sphere") < 0.1


def test_random_sphere_is_even_in_area():
    c2w = place_cameras("random-sphere", 4000, (1.0, 1.0), (-90.0, 90.0), 0.0, np.random.default_rng(0))
    # On a sphere every coordinate is uniform in -1..1 (Archimedes): mean 0, variance 1/3.
    np.testing.assert_allclose(c2w[:, :3, 3].mean(axis=0), 0, atol=0.04)
    np.testing.assert_allclose(c2w[:, :3, 3].var(axis=0), 1 / 3, atol=0.02)


def test_looking_straight_down_is_a_rotation():
    c2w = look_at(np.array([[0.0, 0.0, 3.0], [0.0, 0.0, -3.0]]), np.zeros((2, 3)))
    np.testing.assert_allclose(np.linalg.det(c2w[:, :3, :3]), 1)
    np.testing.assert_allclose(c2w[0, :3, 2], [0, 0, -1])
