"""Where rays enter analytic shapes, and which way the surfaces face there.

Every shape has one size in coordinates of its own; an affine map puts it into the world:
  ellipsoid     x^2 + y^2 + z^2 <= 1
  box           |x|, |y|, |z| <= 1
  cylinder      x^2 + y^2 <= 1, |z| <= 1
  cone          x^2 + y^2 <= r(z)^2, |z| <= 1; the radius r falls from 1 at z = -1 to `top` at z = 1
  torus         (sqrt(x^2 + y^2) - 1 + tube)^2 + z^2 <= tube^2
  superquadric  ((|x|^p + |y|^p)^(q/p) + |z|^q)^(1/q) <= 1 with p, q >= 1
  halfspace     z <= 0

Selections are arithmetic on masks of 0 and 1: on a CPU, torch.where takes over ten times as long as a product.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

import torch
from torch import Tensor

FAR = 1e6
"""Ray parameter of rays that hit nothing."""
NEWTON_STEPS = 9
MARCHING_STEPS = 14
TORUS_SLANTS = (0.3, 0.3, 0.2, 0.1, 0.1, 0.1)
"""Least cosine between ray and normal that each of Newton's steps on a torus counts on: bold steps come last."""
TOLERANCE = 4e-3
"""So far outside of a torus or superquadric, in its own units, a ray still touches it."""

Vec = tuple[Tensor, Tensor, Tensor]
"""x, y and z of many points or directions: separate tensors, so that each step runs over contiguous memory."""


class Kind(IntEnum):
    """The shapes; those up to CONE and HALFSPACE are met in one closed-form interval."""

    ELLIPSOID = 0
    BOX = 1
    CYLINDER = 2
    CONE = 3
    HALFSPACE = 4
    TORUS = 5
    SUPERQUADRIC = 6


CLOSED_FORM = (Kind.ELLIPSOID, Kind.BOX, Kind.CYLINDER, Kind.CONE, Kind.HALFSPACE)


def first_hit(kind: Kind, o: Vec, d: Vec, params: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    """The least t in [lo, hi) for which o + t d is in the shape, or FAR; exactly `lo` for rays that start inside.

    `params` [r 2] holds top (cone), tube (torus) or p and q (superquadric) for each row of rays.
    """
    if kind in CLOSED_FORM:
        near, far = interval(kind, o, d, params)
        t = torch.maximum(near, lo)
        return _or_far(t, torch.minimum(far, hi) - t)
    near, far = _interval_box(o, d, params[:, :1] if kind == Kind.TORUS else 1.0)
    t, end = torch.maximum(near, lo), torch.minimum(far, hi)
    # The steps take long: only rows in which some ray meets the box go through them.
    rows = (end - t).amax(1).gt(0).nonzero()[:, 0]
    o, d = ((x[0][rows], x[1][rows], x[2][rows]) for x in (o, d))
    some = _hit_torus if kind == Kind.TORUS else _hit_superquadric
    found = some(o, d, params[rows], t.index_select(0, rows), end.index_select(0, rows))
    return torch.full_like(t, FAR).index_copy(0, rows, found)


def interval(kind: Kind, o: Vec, d: Vec, params: Tensor) -> tuple[Tensor, Tensor]:
    """Where rays enter and leave a shape of closed form; near >= far for those that miss it."""
    if kind == Kind.ELLIPSOID:
        return _interval_ball(o, d)
    if kind == Kind.BOX:
        return _interval_box(o, d, 1.0)
    if kind == Kind.CYLINDER:
        round_near, round_far = _interval_ball(o[:2], d[:2])
        flat_near, flat_far = _slab(o[2], d[2], 1.0)
        return torch.maximum(round_near, flat_near), torch.minimum(round_far, flat_far)
    if kind == Kind.CONE:
        return _interval_cone(o, d, params[:, :1])
    if kind == Kind.HALFSPACE:
        t = -o[2] / _nonzero(d[2])
        upward = step(d[2])
        return torch.lerp(t, torch.full_like(t, -FAR), upward), torch.lerp(torch.full_like(t, FAR), t, upward)
    raise ValueError(f"{kind.name} has no closed form")


def normal(kind: Kind, p: Vec, params: Tensor) -> Vec:
    """Outward directions (of any length) at points of the surface, in the shape's coordinates."""
    x, y, z = p
    zero = torch.zeros_like(x)
    if kind == Kind.ELLIPSOID:
        return p
    if kind == Kind.BOX:
        sizes = [c.abs() for c in p]
        most = torch.maximum(torch.maximum(sizes[0], sizes[1]), sizes[2])
        return vec((1 - (most - size).sign()) * c.sign() for size, c in zip(sizes, p, strict=True))
    if kind == Kind.HALFSPACE:
        return zero, zero, zero + 1
    radius = (x * x + y * y).sqrt()
    if kind in (Kind.CYLINDER, Kind.CONE):
        slope = (params[:, :1] - 1) / 2 if kind == Kind.CONE else torch.zeros_like(params[:, :1])
        side_radius = 1 + slope * (z + 1)
        flat = step((z.abs() - 1) - (radius - side_radius))
        on_side = 1 - flat
        return x * on_side, y * on_side, torch.lerp(-slope * side_radius, z.sign(), flat)
    if kind == Kind.TORUS:
        shrink = 1 - (1 - params[:, :1]) / radius.clamp_min(1e-9)
        return x * shrink, y * shrink, z
    return _gauge(p, params[:, :1], params[:, 1:])[1]


def vec(parts: Iterable[Tensor]) -> Vec:
    """Three tensors as x, y and z."""
    x, y, z = parts
    return x, y, z


def dot(a: Vec, b: Vec) -> Tensor:
    """Inner products."""
    return torch.addcmul(torch.addcmul(a[0] * b[0], a[1], b[1]), a[2], b[2])


def along(o: Vec, t: Tensor, d: Vec) -> Vec:
    """The points o + t d."""
    return torch.addcmul(o[0], t, d[0]), torch.addcmul(o[1], t, d[1]), torch.addcmul(o[2], t, d[2])


def step(x: Tensor) -> Tensor:
    """1 where x > 0, else 0."""
    return x.sign().clamp_min(0)


def _or_far(t: Tensor, valid: Tensor) -> Tensor:
    """`t` where `valid` is positive, else FAR."""
    return torch.lerp(torch.full_like(t, FAR), t, step(valid))


def _nonzero(x: Tensor) -> Tensor:
    """The same, but never 0: adds what is lost in rounding otherwise."""
    return x + torch.copysign(torch.full_like(x, 1e-12), x)


def _slab(o: Tensor, d: Tensor, size: Tensor | float) -> tuple[Tensor, Tensor]:
    inverse = 1 / _nonzero(d)
    a, b = (-size - o) * inverse, (size - o) * inverse
    return torch.minimum(a, b), torch.maximum(a, b)


def _interval_box(o: Vec, d: Vec, height: Tensor | float) -> tuple[Tensor, Tensor]:
    x, y, z = _slab(o[0], d[0], 1.0), _slab(o[1], d[1], 1.0), _slab(o[2], d[2], height)
    near = torch.maximum(torch.maximum(x[0], y[0]), z[0])
    return near, torch.minimum(torch.minimum(x[1], y[1]), z[1])


def _interval_ball(o: tuple[Tensor, ...], d: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Unit ball (or disc in two dimensions), from the point of closest approach: exact for far origins too."""
    length, toward = d[0] * d[0], o[0] * d[0]
    for a, b in zip(o[1:], d[1:], strict=True):
        length, toward = torch.addcmul(length, b, b), torch.addcmul(toward, a, b)
    length = length.clamp_min(1e-12)
    middle = -toward / length
    room = torch.ones_like(length)
    for a, b in zip(o, d, strict=True):
        closest = torch.addcmul(a, middle, b)
        room = torch.addcmul(room, closest, closest, value=-1)
    half = (room.clamp_min(0) / length).sqrt()
    return middle - half, middle + half


def _interval_cone(o: Vec, d: Vec, top: Tensor) -> tuple[Tensor, Tensor]:
    """Roots of a t^2 + 2 b t + c, the square distance from the axis less that of the side, taken near the shape."""
    middle = -dot(o, d) / dot(d, d)
    p = along(o, middle, d)
    slope = (top - 1) / 2
    radius, grow = 1 + slope * (p[2] + 1), slope * d[2]
    a = _nonzero(d[0] * d[0] + d[1] * d[1] - grow * grow)
    b = p[0] * d[0] + p[1] * d[1] - radius * grow
    c = p[0] * p[0] + p[1] * p[1] - radius * radius
    inside = b * b - a * c
    q = _nonzero(-(b + torch.copysign(inside.clamp_min(0).sqrt(), b)))
    first, second = q / a, c / q
    low, high = torch.minimum(first, second), torch.maximum(first, second)
    # A ray steeper than the side (a < 0) is in the cone beyond both roots on the side where the radius grows.
    steep, growing, far = step(-a), step(grow), torch.full_like(low, FAR)
    near = torch.lerp(torch.lerp(low, torch.lerp(-far, high, growing), steep), far, step(-inside))
    side_far = torch.lerp(high, torch.lerp(low, far, growing), steep)
    flat_near, flat_far = _slab(p[2], d[2], 1.0)
    return torch.maximum(near, flat_near) + middle, torch.minimum(side_far, flat_far) + middle


def _hit_torus(o: Vec, d: Vec, params: Tensor, t: Tensor, end: Tensor) -> Tensor:
    """Steps of the distance to the surface, which never jump over it, then Newton's method, which minds the slant."""
    tube, start = params[:, :1], t
    ring, speed = 1 - tube, 1 / dot(d, d).sqrt()
    for _ in range(MARCHING_STEPS):
        x, y, z = along(o, t, d)
        away = (x * x + y * y).sqrt() - ring
        t = t + ((away * away + z * z).sqrt() - tube).clamp_min(0) * speed
    here, outside = t, t
    for slant in TORUS_SLANTS:
        here = t
        x, y, z = along(o, t, d)
        radius = (x * x + y * y).sqrt().clamp_min(1e-9)
        away = radius - ring
        distance = (away * away + z * z).sqrt()
        closing = -(away / radius * (x * d[0] + y * d[1]) + z * d[2]) / distance.clamp_min(1e-9) * speed
        outside = distance - tube
        t = torch.maximum(t + outside * speed / closing.clamp_min(slant), start)
    return _or_far(here, step(end - here) * step(TOLERANCE - outside))


def _hit_superquadric(o: Vec, d: Vec, params: Tensor, t: Tensor, end: Tensor) -> Tensor:
    """Newton's method on the gauge, a norm and so convex along the ray: steps from outside never pass the surface."""
    p, q = params[:, :1], params[:, 1:]
    start, outside = t, t
    for _ in range(NEWTON_STEPS):
        value, slope = _gauge(along(o, t, d), p, q)
        outside = value - 1
        t = torch.minimum(t + (outside / -dot(slope, d).clamp_max(-1e-3)).clamp_min(0), torch.maximum(end, start))
    return _or_far(t, step(end - t) * step(TOLERANCE - outside))


def _gauge(point: Vec, p: Tensor, q: Tensor) -> tuple[Tensor, Vec]:
    """The norm whose unit ball is the superquadric, and its gradient; far outside, powers stay in range."""
    x, y, z = (c.abs().clamp(1e-6, 4) for c in point)
    xp, yp, zq = (p * x.log2()).exp2(), (p * y.log2()).exp2(), (q * z.log2()).exp2()
    flat = xp + yp
    flat_q = (q / p * flat.log2()).exp2()
    total = flat_q + zq
    value = (total.log2() / q).exp2()
    outer = value / total
    inner = outer * flat_q / flat
    return value, (
        torch.copysign(inner * xp / x, point[0]),
        torch.copysign(inner * yp / y, point[1]),
        torch.copysign(outer * zq / z, point[2]),
    )
