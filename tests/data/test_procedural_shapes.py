"""Where rays meet analytic shapes, against dense marching through independently written formulas."""

import numpy as np
import pytest
import torch

from data.procedural.objects import affine, random_rotation, support
from data.procedural.scene import Cut, Pattern, ProceduralScene, SceneTables, Shape, Texture, bounding_radius
from data.procedural.shapes import CLOSED_FORM, FAR, Kind, first_hit, interval, normal
from data.procedural.tracing import cast

PLAIN = Texture(Pattern.GRADIENT, np.full((4, 3), 0.5), np.eye(4)[:3])
PARAMS = {
    Kind.CONE: [(0.02, 0.0), (0.6, 0.0)],
    Kind.TORUS: [(0.15, 0.0), (0.4, 0.0)],
    Kind.SUPERQUADRIC: [(1.0, 1.0), (2.0, 2.0), (8.0, 1.3), (4.0, 6.0)],
}
END = 6.0
"""Length of the rays that are marched along."""
CASES = [(kind, params) for kind in Kind for params in PARAMS.get(kind, [(0.0, 0.0)])]


def implicit(kind: Kind, p, params):
    """Below 0 inside, in numpy or torch; written from the docstring of data.procedural.shapes."""
    x, y, z = p[..., 0], p[..., 1], p[..., 2]
    big = np.maximum if isinstance(p, np.ndarray) else torch.maximum
    if kind == Kind.ELLIPSOID:
        return x**2 + y**2 + z**2 - 1
    if kind == Kind.BOX:
        return big(big(abs(x), abs(y)), abs(z)) - 1
    if kind == Kind.CYLINDER:
        return big((x**2 + y**2) ** 0.5, abs(z)) - 1
    if kind == Kind.CONE:
        return big((x**2 + y**2) ** 0.5 - (1 - (1 - params[0]) * (z + 1) / 2), abs(z) - 1)
    if kind == Kind.TORUS:
        return (((x**2 + y**2) ** 0.5 - (1 - params[0])) ** 2 + z**2) ** 0.5 - params[0]
    if kind == Kind.SUPERQUADRIC:
        p, q = params
        return ((abs(x) ** p + abs(y) ** p) ** (q / p) + abs(z) ** q) ** (1 / q) - 1
    return z


def random_rays(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Rays from around the shapes that pass near or through them; directions are not of unit length."""
    origins = rng.normal(size=(count, 3))
    origins *= rng.uniform(2, 5, (count, 1)) / np.linalg.norm(origins, axis=1, keepdims=True)
    directions = (rng.uniform(-1.1, 1.1, (count, 3)) - origins) * rng.uniform(0.3, 3, (count, 1))
    return origins, directions


def march(inside, origins, directions, steps: int = 6000) -> tuple[np.ndarray, np.ndarray]:
    """First of many steps along each ray that is inside, and how many steps are (0: too thin to tell)."""
    t = np.linspace(0, END, steps) / np.linalg.norm(directions, axis=1, keepdims=True)
    hits = inside(origins[:, None] + t[..., None] * directions[:, None])
    return np.where(hits.any(1), t[np.arange(len(t)), hits.argmax(1)], np.inf), hits.sum(1)


def as_rows(points: np.ndarray):
    return tuple(torch.tensor(points[None, :, i], dtype=torch.float32) for i in range(3))


def agree(t: np.ndarray, expected: np.ndarray, thickness: np.ndarray, speed: np.ndarray) -> None:
    """Hits and misses are the same and in the same place, but for rays that only graze the shape."""
    hit, clear = t * speed < END, (thickness == 0) | (thickness > 60)
    assert clear.mean() > 0.9
    assert (hit == np.isfinite(expected))[thickness > 60].all()
    assert (hit & (thickness == 0)).mean() < 0.02
    both = hit & (thickness > 60)
    assert both.sum() > 20
    # The steps of the march are 0.001 apart.
    assert np.abs((t - expected) * speed)[both].max() < 2.5e-3


@pytest.mark.parametrize(("kind", "params"), CASES)
def test_first_hits_are_where_marching_finds_them(kind, params):
    origins, directions = random_rays(np.random.default_rng(kind), 400)
    if kind == Kind.HALFSPACE:
        origins[:, 2] = np.abs(origins[:, 2]) + 0.1
    expected, thickness = march(lambda p: implicit(kind, p, params) < 0, origins, directions)
    size = (1, len(origins))
    row = torch.tensor([params])
    t = first_hit(kind, as_rows(origins), as_rows(directions), row, torch.zeros(size), torch.full(size, 1e5))[0]
    agree(t.numpy(), expected, thickness, np.linalg.norm(directions, axis=1))


def test_balls_and_boxes_have_their_closed_form():
    origins, directions = random_rays(np.random.default_rng(0), 500)
    rays = as_rows(origins), as_rows(directions)
    near, far = (t[0].double().numpy() for t in interval(Kind.ELLIPSOID, *rays, torch.zeros(1, 2)))
    a, b = (directions**2).sum(1), (origins * directions).sum(1)
    inside = b**2 - a * ((origins**2).sum(1) - 1)
    hit = inside > 1e-3
    np.testing.assert_allclose(near[hit], ((-b - np.sqrt(inside.clip(0))) / a)[hit], rtol=1e-3)
    np.testing.assert_allclose(far[hit], ((-b + np.sqrt(inside.clip(0))) / a)[hit], rtol=1e-3)
    assert (near >= far)[inside < -1e-3].all()
    near, far = (t[0].double().numpy() for t in interval(Kind.BOX, *rays, torch.zeros(1, 2)))
    sides = (np.array([[-1.0], [1.0]])[..., None] - origins) / directions
    np.testing.assert_allclose(near, sides.min(0).max(1), rtol=1e-4)
    np.testing.assert_allclose(far, sides.max(0).min(1), rtol=1e-4)


@pytest.mark.parametrize(("kind", "params"), CASES)
def test_rays_that_start_inside_or_end_early(kind, params):
    inside = as_rows(np.array([[0.0, 0.0, -0.3], [0.0, 0.1, -0.3]]) + (kind == Kind.TORUS) * np.array([0.7, 0, 0.3]))
    ahead = as_rows(np.array([[0.2, 0.3, 0.1], [-0.1, 0.2, -0.4]]))
    low = torch.tensor([[0.03, 0.05]])
    assert torch.equal(first_hit(kind, inside, ahead, torch.tensor([params]), low, low + 1), low)
    origins = as_rows(np.array([[0.75, 0.1, 4.0]]))
    down = as_rows(np.array([[-0.05, 0.0, -1.0]]))
    ends = torch.tensor([[2.0]])
    assert first_hit(kind, origins, down, torch.tensor([params]), torch.zeros(1, 1), ends).item() == FAR


@pytest.mark.parametrize(("kind", "params"), CASES)
def test_normals_are_gradients(kind, params):
    origins, directions = random_rays(np.random.default_rng(7), 300)
    if kind == Kind.HALFSPACE:
        origins[:, 2] = np.abs(origins[:, 2]) + 0.1
    size, row = (1, len(origins)), torch.tensor([params])
    t = first_hit(kind, as_rows(origins), as_rows(directions), row, torch.zeros(size), torch.full(size, 1e5))[0]
    points = torch.tensor(origins + np.where(t < FAR, t, 0.0)[:, None] * directions)[t < FAR]
    points.requires_grad_()
    value = implicit(kind, points, params)
    # One in a few hundred rays grazes a torus and ends a little off.
    assert (value.abs() < 5e-3).double().mean() > 0.99
    (gradient,) = torch.autograd.grad(value.sum(), points)
    found = torch.stack(normal(kind, as_rows(points.detach().numpy()), row), -1)[0].double()
    cosine = torch.nn.functional.cosine_similarity(found, gradient)
    # At an edge either face may win.
    assert (cosine > 0.999).double().mean() > 0.97


@pytest.mark.parametrize("removes", [True, False])
@pytest.mark.parametrize("cut_kind", CLOSED_FORM)
def test_cuts_remove_or_keep_what_they_cover(cut_kind, removes):
    rng = np.random.default_rng([cut_kind, removes])
    for kind, params in ((Kind.BOX, (0.0, 0.0)), (Kind.TORUS, (0.35, 0.0)), (Kind.SUPERQUADRIC, (3.0, 1.5))):
        pose = affine(random_rotation(rng) @ np.diag([1.0, 0.7, 0.5]), rng.normal(size=3) * 0.2)
        cut = Cut(cut_kind, affine(random_rotation(rng) * 0.8, np.array([0.4, 0.2, 0.1])), removes, 0.3)
        shape = Shape(kind, pose, PLAIN, params, cut)
        tables = SceneTables.stack([ProceduralScene((shape,), (), np.ones((2, 3)))])
        to_shape, to_cut = np.linalg.inv(pose), np.linalg.inv(pose @ cut.pose)

        def covered(p, shape=shape, to_shape=to_shape, to_cut=to_cut):
            body = implicit(shape.kind, p @ to_shape[:3, :3].T + to_shape[:3, 3], shape.params) < 0
            other = implicit(cut_kind, p @ to_cut[:3, :3].T + to_cut[:3, 3], (0.3, 0.0)) < 0
            return body & (other != removes)

        origins, directions = random_rays(rng, 300)
        expected, thickness = march(covered, origins, directions)
        one = torch.zeros(1, dtype=torch.long)
        hits = cast(tables, one, as_rows(origins), as_rows(directions), 0.0, torch.full((1, 1), 1e5))
        agree(hits.t.amin(0).numpy(), expected, thickness, np.linalg.norm(directions, axis=1))


@pytest.mark.parametrize(("kind", "params"), [c for c in CASES if c[0] != Kind.HALFSPACE])
def test_bounds_hold_all_points_and_are_tight(kind, params):
    rng = np.random.default_rng(3)
    points = rng.uniform(-1, 1, (60000, 3))
    points = points[implicit(kind, points, params) < 0]
    assert np.linalg.norm(points, axis=1).max() <= bounding_radius(kind, params)
    pose = affine(random_rotation(rng) @ np.diag([0.5, 1.0, 0.2]), np.array([0.3, -0.2, 0.1]))
    directions = random_rotation(rng)
    reach = support([Shape(kind, pose, PLAIN, params)], directions)[0]
    extent = ((points @ pose[:3, :3].T + pose[:3, 3]) @ directions.T).max(0)
    assert (extent <= reach + 1e-9).all()
    assert (reach - extent).max() < 0.12
