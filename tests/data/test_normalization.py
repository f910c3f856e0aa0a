"""Normalisation: what it promises on good captures, and that nothing bad comes out of strange ones."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.normalization import fit, focus_point, part_meeting_behind, transform_poses

KINDS = ("focus", "mean_pose")


def ring(look_at, count=12, radius=3.0, outwards=False, center=(0.0, 0.0, 0.0), seed=0):
    rng, poses = np.random.default_rng(seed), []
    for i in range(count):
        angle = 2 * np.pi * i / count
        eye = np.array([radius * np.cos(angle), radius * np.sin(angle), rng.uniform(0.2, 1.5) if not outwards else 0.0])
        poses.append(look_at(eye, 2 * eye if outwards else (0, 0, 0)))
    poses = np.stack(poses)
    poses[:, :3, 3] += center
    return poses


def random_similarity(seed):
    rng = np.random.default_rng(seed)
    q, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    matrix = np.eye(4)
    matrix[:3, :3] = rng.uniform(0.01, 100) * q * np.linalg.det(q)
    matrix[:3, 3] = rng.normal(size=3) * 10
    return matrix


@given(st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_focus_undoes_any_similarity_of_the_world(look_at, seed):
    poses = ring(look_at, seed=seed)
    moved = transform_poses(random_similarity(seed), poses)
    scene = transform_poses(fit(moved, "focus"), moved)
    np.testing.assert_allclose(np.linalg.norm(scene[:, :3, 3], axis=1).mean(), 2.7)
    # All cameras look at the origin, level, with +z up.
    np.testing.assert_allclose(focus_point(scene)[0], 0, atol=1e-9)
    np.testing.assert_allclose(scene[:, 2, 0], 0, atol=1e-9)
    assert (-scene[:, 2, 1]).mean() > 0.5
    # Distances between cameras are those of the capture, up to the one scale.
    pairs = np.linalg.norm(scene[:, None, :3, 3] - scene[:, :3, 3], axis=-1)
    wanted = np.linalg.norm(poses[:, None, :3, 3] - poses[:, :3, 3], axis=-1)
    np.testing.assert_allclose(pairs / pairs.max(), wanted / wanted.max(), atol=1e-9)


def test_a_level_centred_capture_at_the_usual_distance_is_left_alone(look_at):
    poses = ring(look_at)
    poses[:, :3, 3] *= 2.7 / np.linalg.norm(poses[:, :3, 3], axis=1).mean()
    np.testing.assert_allclose(fit(poses, "focus"), np.eye(4), atol=1e-9)


def test_mean_pose_centres_and_bounds_the_cameras(look_at):
    poses = transform_poses(random_similarity(3), ring(look_at, 5)[:3])
    scene = transform_poses(fit(poses, "mean_pose"), poses)
    np.testing.assert_allclose(scene[:, :3, 3].mean(0), 0, atol=1e-9)
    np.testing.assert_allclose(np.abs(scene[:, :3, 3]).max(), 1 / 1.35)
    forward = scene[:, :3, 2].mean(0)
    np.testing.assert_allclose(forward / np.linalg.norm(forward), [0, 0, 1], atol=1e-9)
    np.testing.assert_allclose(scene[:, 0, 1].mean(), 0, atol=1e-9)
    assert scene[:, 1, 1].mean() > 0


def test_none_keeps_the_world(look_at):
    np.testing.assert_array_equal(fit(ring(look_at), "none"), np.eye(4))
    with pytest.raises(ValueError, match="unknown normalization"):
        fit(ring(look_at), "median")  # type: ignore[arg-type]


def strange_captures(look_at):
    level = look_at((3, 0, 1), (0, 0, 0))
    down = np.diag([1.0, -1.0, -1.0, 1.0])
    row = np.stack([look_at((0.2 * i, -3.0, 0.0), (0.2 * i, 0.0, 0.0)) for i in range(5)])
    one_place = ring(look_at)
    one_place[:, :3, 3] = [1.0, 2.0, 3.0]
    rng = np.random.default_rng(0)
    down_grid = np.stack([down] * 9)
    down_grid[:, :3, 3] = rng.uniform(-1, 1, (9, 3)) + np.array([0, 0, 5])
    inverted = ring(look_at) * np.array([1, -1, -1, 1])
    return {
        "outward ring": ring(look_at, outwards=True),
        "one photo": level[None],
        "one photo straight down": down[None],
        "the same photo twice": np.stack([level, level]),
        "all at one place": one_place,
        "opposite pair": np.stack([look_at((3, 0, 0), (0, 0, 0)), look_at((-3, 0, 0), (0, 0, 0))]),
        "a row of parallel cameras": row,
        "a grid looking down": down_grid,
        "upside down": ring(look_at) * np.array([-1, -1, 1, 1]),
        "wrong axes": inverted,
        "tiny world": np.concatenate([ring(look_at)[:, :3] * [1, 1, 1, 1e-9], ring(look_at)[:, 3:]], axis=1),
        "map coordinates": ring(look_at, center=(5e5, 5e6, 100.0), radius=40.0),
        "huge world": np.concatenate([ring(look_at)[:, :3] * [1, 1, 1, 1e11], ring(look_at)[:, 3:]], axis=1),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_strange_captures_stay_finite_and_rigid(look_at, kind):
    for name, poses in strange_captures(look_at).items():
        similarity = fit(poses, kind)
        scene = transform_poses(similarity, poses)
        assert np.isfinite(scene).all(), name
        assert np.abs(scene[:, :3, 3]).max() < 20, name
        rotation = scene[:, :3, :3]
        np.testing.assert_allclose(rotation @ rotation.transpose(0, 2, 1), [np.eye(3)] * len(poses), atol=1e-8)
        assert (np.linalg.det(rotation) > 0.99).all(), name
        np.testing.assert_allclose(similarity[3], [0, 0, 0, 1])


def test_one_photo_keeps_the_scale_of_its_world(look_at):
    pose = look_at((3, 0, 1), (0, 0, 0))[None]
    for kind in KINDS:
        similarity = fit(pose, kind)
        np.testing.assert_allclose(np.linalg.det(similarity[:3, :3]), 1)
    scene = transform_poses(fit(pose, "focus"), pose)[0]
    np.testing.assert_allclose(np.linalg.norm(scene[:3, 3]), 2.7)
    np.testing.assert_allclose(scene[:3, 2], -scene[:3, 3] / 2.7, atol=1e-9)
    np.testing.assert_allclose(transform_poses(fit(pose, "mean_pose"), pose)[0], np.eye(4), atol=1e-9)


def test_rounding_noise_around_one_place_is_not_blown_up(look_at):
    poses = ring(look_at)
    poses[:, :3, 3] = [100.0, 200.0, 300.0] + np.random.default_rng(0).normal(size=(12, 3)) * 1e-6
    for kind in KINDS:
        np.testing.assert_allclose(np.linalg.det(fit(poses, kind)[:3, :3]), 1)


def test_map_coordinates_keep_ratios_of_distances(look_at):
    poses = ring(look_at, center=(5e5, 5e6, 100.0), radius=40.0)
    near = poses.copy()
    near[:, :3, 3] -= [5e5, 5e6, 100.0]
    for kind in KINDS:
        far_scene, near_scene = (transform_poses(fit(p, kind), p).astype(np.float32) for p in (poses, near))
        np.testing.assert_allclose(far_scene, near_scene, atol=1e-5)


def test_rays_that_meet_behind_are_counted(look_at):
    assert part_meeting_behind(ring(look_at)) == 0
    assert part_meeting_behind(ring(look_at) * np.array([1, -1, -1, 1])) == 1
    assert part_meeting_behind(ring(look_at)[:1] * np.array([1, -1, -1, 1])) == 0, "one ray meets nothing"


def test_a_forward_facing_row_is_seen_from_in_front(look_at):
    row = np.stack([look_at((0.2 * i, -3.0, 0.0), (0.2 * i, 0.0, 0.0)) for i in range(5)])
    scene = transform_poses(fit(row, "focus"), row)
    depth_of_origin = np.einsum("nj,nj->n", -scene[:, :3, 3], scene[:, :3, 2])
    assert (depth_of_origin > 0).all()
    np.testing.assert_allclose(scene[:, :3, 1], [[0, 0, -1]] * 5, atol=1e-9)


def test_two_cameras_face_to_face_meet_in_the_middle(look_at):
    pair = np.stack([look_at((5, 0, 1), (0, 0, 1)), look_at((-3, 0, 1), (0, 0, 1))])
    scene = transform_poses(fit(pair, "focus"), pair)
    np.testing.assert_allclose(scene[:, :3, 3], [[2.7, 0, 0], [-2.7, 0, 0]], atol=1e-9)


@pytest.mark.parametrize("degrees", [15, 30, 90])
def test_two_input_views_are_enough(look_at, degrees):
    angles = np.radians([0, degrees])
    pair = np.stack([look_at((3 * np.cos(a), 3 * np.sin(a), 1.0), (0, 0, 0)) for a in angles])
    scene = transform_poses(fit(pair, "focus"), pair)
    np.testing.assert_allclose(np.linalg.norm(scene[:, :3, 3], axis=1), 2.7)
    np.testing.assert_allclose(scene[:, :3, 2], -scene[:, :3, 3] / 2.7, atol=1e-9)
    np.testing.assert_allclose(scene[:, 2, 0], 0, atol=1e-9)
