"""Laws of cameras, checked against kornia's pinhole projection, which shares no code with ours."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kornia.geometry.camera import PinholeCamera

from data import Cameras, join_cameras

SIZES = st.tuples(st.integers(2, 12), st.integers(2, 12))


@st.composite
def cameras(draw, views=2):
    """Random cameras in double precision: any rotation, an off-centre principal point, unequal focal lengths."""
    seed, (h, w) = draw(st.integers(0, 2**31)), draw(SIZES)
    rng = torch.Generator().manual_seed(seed)
    rotation = torch.linalg.qr(torch.randn(views, 3, 3, generator=rng, dtype=torch.float64)).Q
    rotation = rotation * torch.linalg.det(rotation)[:, None, None]
    c2w = torch.eye(4, dtype=torch.float64).repeat(views, 1, 1)
    c2w[:, :3, :3], c2w[:, :3, 3] = rotation, torch.randn(views, 3, generator=rng, dtype=torch.float64)
    unit = torch.rand(views, 4, generator=rng, dtype=torch.float64)
    intrinsics = (0.5 + unit) * torch.tensor([w, h, w / 2, h / 2], dtype=torch.float64)
    return Cameras(c2w, intrinsics, (h, w))


def project(camera: Cameras, points: torch.Tensor) -> torch.Tensor:
    """Pixel positions [v n 2] of world points [v n 3], by kornia."""
    k = torch.eye(4, dtype=torch.float64).repeat(camera.num_views, 1, 1)
    k[:, 0, 0], k[:, 1, 1], k[:, 0, 2], k[:, 1, 2] = camera.intrinsics.unbind(-1)
    h, w = (torch.full((camera.num_views,), float(x), dtype=torch.float64) for x in camera.image_size)
    pinhole = PinholeCamera(k, torch.linalg.inv(camera.c2w), h, w)
    return pinhole.project(points)


def points_before(camera: Cameras, count: int = 5) -> torch.Tensor:
    local = torch.rand(camera.num_views, count, 3, dtype=torch.float64) + torch.tensor([-0.5, -0.5, 1.0])
    return local @ camera.c2w[:, :3, :3].mT + camera.positions[:, None]


@given(cameras())
@settings(max_examples=30, deadline=None)
def test_rays_project_onto_the_centres_of_their_pixels(camera):
    origins, directions = camera.rays()
    h, w = camera.image_size
    points = (origins + 2.5 * directions).flatten(1, 2)
    y, x = torch.meshgrid(torch.arange(h) + 0.5, torch.arange(w) + 0.5, indexing="ij")
    expected = torch.stack([x, y], -1).reshape(1, -1, 2).double().expand(camera.num_views, -1, -1)
    torch.testing.assert_close(project(camera, points), expected, atol=1e-9, rtol=0)
    torch.testing.assert_close(directions.norm(dim=-1), torch.ones_like(directions[..., 0]))


@given(cameras(), SIZES)
@settings(max_examples=30, deadline=None)
def test_resize_scales_projections_per_axis(camera, size):
    points = points_before(camera)
    scale = torch.tensor([size[1] / camera.image_size[1], size[0] / camera.image_size[0]], dtype=torch.float64)
    torch.testing.assert_close(project(camera.resize(size), points), project(camera, points) * scale)


@given(cameras(), SIZES, SIZES)
@settings(max_examples=30, deadline=None)
def test_resize_in_two_steps_is_resize_in_one(camera, first, second):
    torch.testing.assert_close(camera.resize(first).resize(second).intrinsics, camera.resize(second).intrinsics)


@given(cameras(), st.data())
@settings(max_examples=30, deadline=None)
def test_crop_keeps_the_rays_of_the_window(camera, data):
    h, w = camera.image_size
    top, left = data.draw(st.integers(0, h - 1)), data.draw(st.integers(0, w - 1))
    size = (data.draw(st.integers(1, h - top)), data.draw(st.integers(1, w - left)))
    _, whole = camera.rays()
    _, window = camera.crop(top, left, size).rays()
    torch.testing.assert_close(window, whole[:, top : top + size[0], left : left + size[1]])


@given(cameras(), st.integers(0, 2**31), st.floats(0.01, 100))
@settings(max_examples=30, deadline=None)
def test_moving_scene_and_cameras_together_changes_no_pixel(camera, seed, scale):
    rng = torch.Generator().manual_seed(seed)
    rotation = torch.linalg.qr(torch.randn(3, 3, generator=rng, dtype=torch.float64)).Q
    similarity = torch.eye(4, dtype=torch.float64)
    similarity[:3, :3] = scale * rotation * torch.linalg.det(rotation)
    similarity[:3, 3] = torch.randn(3, generator=rng, dtype=torch.float64)
    points, moved = points_before(camera), camera.transform(similarity)
    moved_points = points @ similarity[:3, :3].mT + similarity[:3, 3]
    torch.testing.assert_close(project(moved, moved_points), project(camera, points), atol=1e-7, rtol=1e-7)
    identity = torch.eye(3, dtype=torch.float64).expand(2, 3, 3)
    torch.testing.assert_close(moved.c2w[:, :3, :3] @ moved.c2w[:, :3, :3].mT, identity)
    torch.testing.assert_close(moved.transform(torch.linalg.inv(similarity)).c2w, camera.c2w, atol=1e-7, rtol=1e-7)


@given(cameras(views=4))
@settings(max_examples=10, deadline=None)
def test_select_and_join_are_inverse(camera):
    joined = join_cameras([camera.select(0), camera.select([1, 2]), camera.select(slice(3, 4))])
    assert torch.equal(joined.c2w, camera.c2w)
    assert torch.equal(joined.intrinsics, camera.intrinsics)
    batched = camera.add_batch()
    assert torch.equal(batched.select([2, 0]).c2w, camera.c2w[None, [2, 0]])


def test_cameras_of_different_sizes_are_not_joined():
    camera = Cameras(torch.eye(4)[None], torch.tensor([[5.0, 5.0, 4.0, 4.0]]), (8, 8))
    with pytest.raises(ValueError, match="resize them first"):
        join_cameras([camera, camera.resize((4, 4))])
