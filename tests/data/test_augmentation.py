"""Varied scenes stay scenes that could be real: points are seen where the cameras say, colours change as one."""

import colorsys
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import data
from data.augmentation import Augmentation, augment, change_colors, draw_augmentation, move_world
from data.config import DataConfig

WHITE = (1.0, 1.0, 1.0)
SIZE = (10, 16)


def project(c2w, intrinsics, point):
    """Pixel (x, y) and depth of a point, in plain numpy."""
    in_camera = np.linalg.inv(c2w) @ [*point, 1.0]
    fx, fy, cx, cy = intrinsics
    return fx * in_camera[0] / in_camera[2] + cx, fy * in_camera[1] / in_camera[2] + cy, in_camera[2]


def views_of(look_at, count=3):
    rng = np.random.default_rng(count)
    eyes = rng.normal(size=(count, 3)) + np.array([0, -4, 1])
    c2w = np.stack([look_at(eye, rng.normal(size=3) * 0.1) for eye in eyes])
    numbers = torch.tensor([[20.0, 21.0, 7.5, 5.5]]).repeat(count, 1)
    images = torch.rand(count, 3, *SIZE, generator=torch.Generator().manual_seed(0))
    return data.Views(
        torch.from_numpy(c2w).float(),
        numbers,
        SIZE,
        images,
        alpha=images[:, :1].clone(),
        world_to_scene=torch.eye(4).double(),
    )


def test_a_mirrored_world_is_seen_mirrored(look_at):
    views = views_of(look_at)
    moved = move_world(views, Augmentation(mirrored=True))
    rng = np.random.default_rng(0)
    for point in rng.normal(size=(10, 3)) * 0.3:
        mirrored = point * [-1, 1, 1]
        for i in range(3):
            x, y, depth = project(views.c2w[i].double().numpy(), views.intrinsics[i].tolist(), point)
            new_x, new_y, new_depth = project(moved.c2w[i].double().numpy(), moved.intrinsics[i].tolist(), mirrored)
            assert (new_x, new_y, new_depth) == pytest.approx((SIZE[1] - x, y, depth), abs=1e-4)
    # The pixel that shows a point has gone with it.
    assert torch.equal(moved.images[:, :, 3, 2], views.images[:, :, 3, SIZE[1] - 1 - 2])
    assert moved.alpha is not None and views.alpha is not None
    assert torch.equal(moved.alpha[:, :, 3, 2], views.alpha[:, :, 3, SIZE[1] - 1 - 2])
    torch.testing.assert_close(torch.linalg.det(moved.c2w[:, :3, :3]), torch.ones(3))
    assert moved.world_to_scene is not None
    np.testing.assert_array_equal(moved.world_to_scene, np.diag([-1, 1, 1, 1]))


def test_photos_of_a_mirrored_scene_are_the_mirrored_photos(look_at):
    """A real scene of coloured balls, mirrored and rendered by the mirrored cameras, against the mirrored photos."""
    ball, radius = np.array([0.3, 0.1, 0.2]), 0.5
    views = views_of(look_at)
    moved = move_world(views, Augmentation(mirrored=True, angle=0.4, roll=0.3, roll_axis=1.0, scale=1.2))
    assert moved.world_to_scene is not None
    place = (moved.world_to_scene @ torch.tensor([*ball, 1.0]).double())[:3].numpy()

    def hits(cameras, center, size):
        origins, directions = (x.double().numpy() for x in cameras.rays())
        to_center = center - origins
        along = (to_center * directions).sum(-1)
        return (to_center**2).sum(-1) - along**2 < size**2

    before, after = hits(views, ball, radius), hits(moved, place, 1.2 * radius)
    assert before.any() and not before.all()
    np.testing.assert_array_equal(after, before[..., ::-1])


@given(st.integers(0, 10_000), st.sampled_from("yz"))
@settings(max_examples=30, deadline=None)
def test_whatever_is_drawn_points_are_seen_where_they_were(seed, up):
    rng = np.random.default_rng(seed)
    config = DataConfig(rotate_world=True, roll_degrees=40, scale_jitter=0.5, flip_share=0.5)
    drawn = draw_augmentation(rng, config)
    c2w = np.eye(4)
    c2w[:3, :3] = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    c2w[:3, :3] *= np.sign(np.linalg.det(c2w[:3, :3]))
    c2w[:3, 3] = rng.normal(size=3)
    point = c2w[:3, :3] @ [rng.uniform(-1, 1), rng.uniform(-1, 1), 3.0] + c2w[:3, 3]
    views = data.Views(
        torch.from_numpy(c2w).float()[None],
        torch.tensor([[20.0, 21.0, 7.5, 5.5]]),
        SIZE,
        torch.rand(1, 3, *SIZE),
        world_to_scene=torch.eye(4).double(),
    )
    moved = move_world(views, drawn, up)
    assert moved.world_to_scene is not None
    new_point = (moved.world_to_scene.numpy() @ [*point, 1.0])[:3]
    x, y, depth = project(c2w, views.intrinsics[0].tolist(), point)
    seen = project(moved.c2w[0].double().numpy(), moved.intrinsics[0].tolist(), new_point)
    expected = (SIZE[1] - x if drawn.mirrored else x, y, depth * drawn.scale)
    assert seen == pytest.approx(expected, abs=1e-3)
    upright = {"z": [0, 0, 1.0, 0], "y": [0, 1.0, 0, 0]}[up]
    tilted = moved.world_to_scene.numpy() @ upright
    cosine = tilted[:3] @ upright[:3] / np.linalg.norm(tilted)
    assert math.degrees(math.acos(min(1, cosine))) == pytest.approx(abs(math.degrees(drawn.roll)), abs=1e-4)


def test_draws_fill_their_ranges_and_what_is_off_stays_off():
    rng = np.random.default_rng(0)
    plain = draw_augmentation(rng, DataConfig())
    assert plain == Augmentation()
    config = DataConfig(roll_degrees=10, flip_share=0.25, color_jitter=0.5)
    draws = [draw_augmentation(rng, config) for _ in range(2000)]
    rolls = np.degrees([d.roll for d in draws])
    assert -10 <= rolls.min() < -9.5 and 9.5 < rolls.max() <= 10
    assert np.mean([d.mirrored for d in draws]) == pytest.approx(0.25, abs=0.04)
    for name in ("brightness", "contrast", "saturation"):
        values = np.array([getattr(d, name) for d in draws])
        assert 1 / 1.5 <= values.min() < 0.69 and 1.45 < values.max() <= 1.5
    hues = np.degrees([d.hue for d in draws])
    assert -30 <= hues.min() < -29 and 29 < hues.max() <= 30
    assert all(d.angle == 0 and d.scale == 1 for d in draws)


def test_colors_change_as_other_libraries_say():
    color = (0.5, 0.3, 0.2)
    image = torch.tensor(color).view(1, 3, 1, 1)

    def changed(**how):
        return change_colors(image, None, Augmentation(**how), WHITE).flatten().tolist()

    assert changed(brightness=1.5) == pytest.approx([0.75, 0.45, 0.3])
    assert changed(contrast=0.5) == pytest.approx([0.5, 0.4, 0.35])
    grey = changed(saturation=0.0)
    assert grey == pytest.approx([0.2126 * 0.5 + 0.7152 * 0.3 + 0.0722 * 0.2] * 3, abs=1e-6)
    # A third of a turn moves each channel on by one; Python's own hue agrees.
    turned = changed(hue=2 * math.pi / 3)
    assert turned == pytest.approx([0.2, 0.5, 0.3], abs=1e-6)
    difference = colorsys.rgb_to_hsv(*turned)[0] - colorsys.rgb_to_hsv(*color)[0]
    assert difference % 1 == pytest.approx(1 / 3, abs=1e-6)
    assert changed(hue=1.0) != pytest.approx(color, abs=0.05)
    assert sum(changed(hue=1.0)) == pytest.approx(sum(color))


def test_all_views_change_alike_and_the_background_stays(look_at):
    views = views_of(look_at)
    behind = (0.1, 0.6, 0.9)
    drawn = Augmentation(brightness=1.3, contrast=0.8, saturation=1.4, hue=0.5)
    alpha, straight = views.alpha, torch.rand(3, 3, *SIZE)
    assert alpha is not None
    backdrop = torch.tensor(behind).view(3, 1, 1)
    over = views.images.new_tensor(0) + straight * alpha + backdrop * (1 - alpha)
    result = change_colors(over, alpha, drawn, behind)
    # Changing the straight colours and laying them over the background afterwards is the definition.
    alone = change_colors(straight, None, drawn, WHITE)
    torch.testing.assert_close(result, alone * alpha + backdrop * (1 - alpha), atol=1e-5, rtol=0)
    same = straight[:1].expand(3, -1, -1, -1)
    result = change_colors(same.contiguous(), None, drawn, behind)
    assert torch.equal(result[0], result[1]) and torch.equal(result[0], result[2])
    assert augment(views, Augmentation(), "z", WHITE) is views
