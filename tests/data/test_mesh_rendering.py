"""Renderings of meshes against ray-shape maths, known colours and the written cameras."""

from __future__ import annotations

import numpy as np
import pytest

from data.camera_layouts import look_at, place_cameras
from data.meshes.mesh import Material, Mesh, from_corners, linear_to_srgb, srgb_to_linear
from data.meshes.rendering import Lighting, MeshRenderer, normals

pytest.importorskip("open3d", reason="needs package open3d")

SIZE = (64, 64)
INTRINSICS = np.array([68.0, 66.0, 31.0, 33.5])
NO_LIGHTS = (np.zeros((0, 3)), np.zeros(0))
EVEN = Lighting(1.0, *NO_LIGHTS)


def mesh_of(vertices, triangles, uv=None, colors=None, material=None) -> Mesh:
    """A mesh of one material from plain lists."""
    vertices, triangles = np.asarray(vertices, np.float32), np.asarray(triangles)
    return Mesh(
        vertices,
        triangles,
        np.zeros((len(vertices), 2), np.float32) if uv is None else np.asarray(uv, np.float32),
        np.ones((len(vertices), 3), np.float32) if colors is None else np.asarray(colors, np.float32),
        np.zeros(len(triangles), np.int64),
        (material or Material(),),
    )


def sphere(rings: int = 128, segments: int = 256) -> Mesh:
    """A unit sphere of latitude and longitude triangles."""
    polar, azimuth = np.meshgrid(
        np.linspace(0, np.pi, rings + 1), np.linspace(0, 2 * np.pi, segments + 1), indexing="ij"
    )
    xyz = np.stack([np.sin(polar) * np.cos(azimuth), np.sin(polar) * np.sin(azimuth), np.cos(polar)], axis=-1)
    index = np.arange((rings + 1) * (segments + 1)).reshape(rings + 1, segments + 1)
    a, b, c, d = index[:-1, :-1], index[1:, :-1], index[1:, 1:], index[:-1, 1:]
    triangles = np.concatenate([np.stack(t, axis=-1).reshape(-1, 3) for t in ((a, b, c), (a, c, d))])
    mesh = mesh_of(xyz.reshape(-1, 3), triangles)
    corners = mesh.vertices[triangles]
    area = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1)
    return mesh_of(mesh.vertices, triangles[area > 1e-9])


def box(half: tuple[float, float, float]) -> Mesh:
    """A box around the origin that shares its eight vertices."""
    corners = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)]) * half
    quads = [[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4], [1, 5, 7, 3]]
    return mesh_of(corners, [t for a, b, c, d in quads for t in ([a, b, c], [a, c, d])])


def square(material: Material | None = None, z: float = 0.0, uv_scale: float = 1.0) -> Mesh:
    """A square of side 2 that faces up, its texture upright when seen from above with y up."""
    uv = np.array([[0, 1], [1, 1], [1, 0], [0, 0]]) * uv_scale
    return mesh_of([[-1, -1, z], [1, -1, z], [1, 1, z], [-1, 1, z]], [[0, 1, 2], [0, 2, 3]], uv, material=material)


def analytic_rays(c2w: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Rays of n x n samples a pixel by the pinhole formula, [h w n n 3]."""
    h, w = SIZE
    fx, fy, cx, cy = INTRINSICS
    row, column, i, j = np.meshgrid(np.arange(h), np.arange(w), np.arange(n), np.arange(n), indexing="ij")
    x, y = column + (j + 0.5) / n, row + (i + 0.5) / n
    d = np.stack([(x - cx) / fx, (y - cy) / fy, np.ones_like(x)], axis=-1) @ c2w[:3, :3].T
    return c2w[:3, 3], d / np.linalg.norm(d, axis=-1, keepdims=True)


def cameras(count: int = 3) -> np.ndarray:
    return place_cameras("random-sphere", count, (2.5, 3.0), (-60.0, 80.0), 0.1, np.random.default_rng(5))


def from_above(distance: float = 3.0) -> np.ndarray:
    return look_at(np.array([[0.0, 0.0, distance]]), np.zeros((1, 3)))[0]


def test_silhouette_of_a_sphere():
    renderer = MeshRenderer(sphere())
    for c2w in cameras():
        alpha = renderer.render(c2w, INTRINSICS, SIZE, EVEN, rays_per_side=4)[..., 3] / 255
        origin, d = analytic_rays(c2w, 4)
        # |o + t d| = 1 has a solution when (o.d)^2 >= |o|^2 - 1.
        b = (d @ origin) ** 2 - (origin @ origin - 1)
        expected = (b >= 0).mean(axis=(2, 3))
        # The flat triangles lie up to 1 - cos(pi / 256) = 0.00008 inside the sphere: 0.002 pixels.
        sure = (np.abs(b) > 4e-4).all(axis=(2, 3))
        assert sure.mean() > 0.98
        np.testing.assert_allclose(alpha[sure], expected[sure], atol=0.5 / 255 + 1e-9)
        assert alpha.sum() == pytest.approx(expected.sum(), rel=1e-3)


def test_silhouette_of_a_box():
    half = np.array([0.7, 0.5, 0.3])
    renderer = MeshRenderer(box(tuple(half)))
    for c2w in cameras():
        alpha = renderer.render(c2w, INTRINSICS, SIZE, EVEN, rays_per_side=2)[..., 3] / 255
        origin, d = analytic_rays(c2w, 2)
        near, far = np.sort([(-half - origin) / d, (half - origin) / d], axis=0)
        expected = (near.max(axis=-1) < far.min(axis=-1)).mean(axis=(2, 3))
        np.testing.assert_allclose(alpha, expected, atol=0.5 / 255 + 1e-9)


def test_supersampling_is_the_mean_of_finer_pixels():
    colors = np.random.default_rng(0).random((8, 3))
    shape = box((0.7, 0.5, 0.3))
    renderer = MeshRenderer(mesh_of(shape.vertices, shape.triangles, colors=colors))
    lighting = Lighting.random(np.random.default_rng(1))
    c2w, n = cameras(1)[0], 4
    coarse = renderer.render(c2w, INTRINSICS, SIZE, lighting, rays_per_side=n) / 255
    fine_size = (SIZE[0] * n, SIZE[1] * n)
    fine = renderer.render(c2w, INTRINSICS * n, fine_size, lighting, rays_per_side=1) / 255
    assert set(np.unique(fine[..., 3])) == {0.0, 1.0}
    blocks = fine.reshape(SIZE[0], n, SIZE[1], n, 4)
    alpha = blocks[..., 3].mean(axis=(1, 3))
    np.testing.assert_allclose(coarse[..., 3], alpha, atol=0.5 / 255 + 1e-9)
    premultiplied = (blocks[..., :3] * blocks[..., 3:]).mean(axis=(1, 3))
    np.testing.assert_allclose(coarse[..., :3] * alpha[..., None], premultiplied, atol=1 / 255 + 1e-9)


def quadrants(size: int = 64) -> np.ndarray:
    pixels = np.full((size, size, 4), 255, np.uint8)
    half = size // 2
    pixels[:half, :half, :3], pixels[:half, half:, :3] = (200, 30, 30), (30, 200, 30)
    pixels[half:, :half, :3], pixels[half:, half:, :3] = (30, 30, 200), (200, 200, 30)
    return pixels


def test_texture_is_upright_and_keeps_its_colours():
    picture = MeshRenderer(square(Material(texture=quadrants()))).render(from_above(), INTRINSICS, SIZE, EVEN)
    row, column = 33, 31
    for y, x, color in (
        (-9, -9, (200, 30, 30)),
        (-9, 9, (30, 200, 30)),
        (9, -9, (30, 30, 200)),
        (9, 9, (200, 200, 30)),
    ):
        np.testing.assert_array_equal(picture[row + y, column + x], (*color, 255))


def test_fine_textures_fade_to_their_mean():
    checks = np.full((64, 64, 4), 255, np.uint8)
    checks[np.add.outer(np.arange(64), np.arange(64)) % 2 == 0, :3] = 55
    renderer = MeshRenderer(square(Material(texture=checks), uv_scale=8))
    inside = renderer.render(from_above(), INTRINSICS, SIZE, EVEN)[20:45, 20:40, :3]
    np.testing.assert_allclose(inside, 155, atol=2)


def test_material_and_vertex_colours_multiply_in_linear_light():
    plain = square(Material(color=np.array([0.5, 0.25, 1.0], np.float32)))
    mesh = mesh_of(plain.vertices, plain.triangles, colors=np.full((4, 3), 0.5), material=plain.materials[0])
    picture = MeshRenderer(mesh).render(from_above(), INTRINSICS, SIZE, EVEN)
    expected = np.round(linear_to_srgb(np.array([0.25, 0.125, 0.5])) * 255)
    np.testing.assert_array_equal(picture[33, 31, :3], expected)


def test_lambert_shading_on_both_sides():
    light = np.array([[0.0, np.sin(np.pi / 3), np.cos(np.pi / 3)]])
    renderer = MeshRenderer(square(Material(color=np.full(3, 0.8, np.float32))))
    lighting = Lighting(0.2, light, np.array([0.6]))
    above = renderer.render(from_above(), INTRINSICS, SIZE, lighting)[33, 31, 0]
    assert above == round(255 * float(linear_to_srgb(np.array(0.8 * (0.2 + 0.6 * 0.5)))))
    below = renderer.render(from_above(-3.0), INTRINSICS, SIZE, lighting)[33, 31, 0]
    assert below == round(255 * float(linear_to_srgb(np.array(0.8 * 0.2 * 0.7)))), "the back has ambient light only"


def test_holes_show_what_is_behind():
    half_clear = np.full((2, 2, 4), 255, np.uint8)
    half_clear[:, 1, 3] = 0
    front = square(Material(texture=half_clear, alpha_cutoff=0.5), z=0.2)
    back = mesh_of([[0.2, -0.5, 0], [0.8, -0.5, 0], [0.8, 0.5, 0], [0.2, 0.5, 0]], [[0, 1, 2], [0, 2, 3]])
    both = from_corners(
        np.concatenate([front.vertices[front.triangles], back.vertices[back.triangles]]),
        np.concatenate([front.uv[front.triangles], back.uv[back.triangles]]),
        np.concatenate([np.full((2, 3, 3), 0.2), np.full((2, 3, 3), 0.9)]),
        np.array([0, 0, 1, 1]),
        (front.materials[0], Material()),
    )
    picture = MeshRenderer(both).render(from_above(), INTRINSICS, SIZE, EVEN)
    dark, bright = (round(255 * float(linear_to_srgb(np.array(x)))) for x in (0.2, 0.9))
    np.testing.assert_array_equal(picture[33, 21], (dark, dark, dark, 255))
    np.testing.assert_array_equal(picture[33, 43], (bright, bright, bright, 255))
    assert picture[15, 43, 3] == 0


def test_normals_are_smooth_on_a_ball_and_sharp_on_a_box():
    ball = sphere(32, 64)
    _, corner = normals(ball)
    np.testing.assert_allclose(np.abs((corner * ball.vertices[ball.triangles]).sum(axis=-1)), 1, atol=2e-3)
    face, corner = normals(box((1, 1, 1)))
    np.testing.assert_allclose(corner, np.repeat(face[:, None], 3, axis=1))
    np.testing.assert_allclose(np.sort(np.abs(face), axis=1), np.tile([0, 0, 1], (12, 1)), atol=1e-12)


def test_srgb_white_stays_in_range_under_random_light():
    for seed in range(50):
        lighting = Lighting.random(np.random.default_rng(seed))
        light = lighting.arriving(np.array([[0.0, 0, 1], [0, 0, -1], [1, 0, 0], [0, 1, 0]]))
        assert srgb_to_linear(np.array(0.5)) < light.min()
        assert light.max() < 1.2
