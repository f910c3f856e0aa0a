"""Smooth camera motion through keyframes: unit quaternions, computed in float64."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from data import Cameras, UserError


def interpolate(cameras: Cameras, n: int, loop: bool = False, smoothness: float = 0.0) -> Cameras:
    """Move through `cameras` as keyframes, `n` frames per segment, each keyframe hit exactly.

    The last keyframe ends the path; a loop goes on to the first one and stops one frame short of it, so that nothing
    is shown twice. Positions and principal points move in straight lines, rotations by the shortest turn, and focal
    lengths at a constant rate of zoom. With `smoothness` 1, positions and rotations follow Catmull-Rom splines without
    a kink at the keyframes; values between 0 and 1 blend the two.
    """
    check_cameras(cameras, "keyframes")
    if n < 1:
        raise UserError(f"{n} frames per segment is not possible: ask for 1 or more.")
    segments = cameras.num_views - (not loop)
    return _sample(cameras, n * segments + (not loop), n * segments, loop, smoothness)


def spread(cameras: Cameras, frames: int, loop: bool = False, smoothness: float = 0.0) -> Cameras:
    """Exactly `frames` cameras at even steps of the path that `interpolate` goes, each segment as long as the others.

    Without `loop` the first and the last keyframe are on it; the others are passed, not always hit.
    """
    check_cameras(cameras, "keyframes")
    if frames < 1:
        raise UserError(f"A path of {frames} frames is not possible: ask for 1 or more.")
    return _sample(cameras, frames, frames if loop else frames - 1, loop, smoothness)


def _sample(cameras: Cameras, frames: int, steps: int, loop: bool, smoothness: float) -> Cameras:
    """Cameras at 0, 1, 2, ... of `steps` even steps of the whole path; whole numbers hit the keyframes exactly."""
    if not 0 <= smoothness <= 1:
        raise UserError(f"A smoothness of {smoothness:g} is not possible: give a number from 0 (straight) to 1.")
    c2w, intrinsics = orthonormal(cameras.c2w.cpu().double()), cameras.intrinsics.cpu().double()
    count, steps = len(c2w), max(1, steps)
    place = torch.arange(frames) * (count if loop else count - 1)
    start, left = place // steps % count, place % steps
    end, t = (start + 1) % count, left[:, None].double() / steps

    quaternions = to_quaternion(c2w[:, :3, :3])
    rotation = slerp(quaternions[start], quaternions[end], t)
    position = torch.lerp(c2w[start, :3, 3], c2w[end, :3, 3], t)
    if smoothness:
        blend = torch.full((1,), float(smoothness), dtype=torch.float64)
        around = _around(start, count, loop)
        curved = torch.nn.functional.normalize(catmull_rom(_nearest_signs(quaternions[around]), t), dim=-1)
        rotation = slerp(rotation, curved, blend)
        position = torch.lerp(position, catmull_rom(c2w[around, :3, 3], t), blend)
    path = torch.eye(4, dtype=torch.float64).repeat(frames, 1, 1)
    path[:, :3, :3] = to_matrix(rotation)
    path[:, :3, 3] = position
    focal = torch.lerp(intrinsics[start, :2].log(), intrinsics[end, :2].log(), t).exp()
    centre = torch.lerp(intrinsics[start, 2:], intrinsics[end, 2:], t)
    lenses = torch.cat([focal, centre], dim=-1)
    exact = left == 0
    path[exact], lenses[exact] = c2w[start[exact]], intrinsics[start[exact]]
    return Cameras(path.to(cameras.c2w), lenses.to(cameras.intrinsics), cameras.image_size)


def catmull_rom(points: Float[Tensor, "n 4 d"], t: Float[Tensor, "n 1"]) -> Float[Tensor, "n d"]:
    """The curve between the second and the third of each four points, at `t` in 0..1 (Catmull and Rom 1974)."""
    before, start, end, after = points.unbind(1)
    linear = end - before
    square = 2 * before - 5 * start + 4 * end - after
    cubic = 3 * (start - end) + after - before
    return start + t / 2 * (linear + t * (square + t * cubic))


def _around(start: Tensor, count: int, loop: bool) -> Tensor:
    """For each start of a segment its two keyframes and their neighbours; open ends are their own neighbours."""
    numbers = start[:, None] + torch.arange(-1, 3)
    return numbers % count if loop else numbers.clamp(0, count - 1)


def _nearest_signs(quaternions: Float[Tensor, "n 4 4"]) -> Float[Tensor, "n 4 4"]:
    """Each four rotations with the signs that bring neighbours together: q and -q are the same rotation."""
    found = [quaternions[:, 0]]
    for following in quaternions.unbind(1)[1:]:
        flipped = (found[-1] * following).sum(-1, keepdim=True) < 0
        found.append(torch.where(flipped, -following, following))
    return torch.stack(found, dim=1)


def slerp(a: Float[Tensor, "*#n 4"], b: Float[Tensor, "*#n 4"], t: Float[Tensor, "*#n 1"]) -> Float[Tensor, "... 4"]:
    """Unit quaternion at `t` in 0..1 on the shorter arc from `a` to `b` (Shoemake 1985); shapes broadcast.

    A quaternion and its negative are the same rotation: of the two ends, the nearer one is taken. An exact half turn
    has two equally short arcs and goes along one of them.
    """
    b = torch.where((a * b).sum(-1, keepdim=True) < 0, -b, b)
    angle = 2 * torch.atan2((a - b).norm(dim=-1, keepdim=True), (a + b).norm(dim=-1, keepdim=True))
    small = angle < 1e-6
    divisor = torch.where(small, torch.ones_like(angle), angle.sin())
    from_a = torch.where(small, 1 - t, ((1 - t) * angle).sin() / divisor)
    from_b = torch.where(small, t, (t * angle).sin() / divisor)
    return torch.nn.functional.normalize(from_a * a + from_b * b, dim=-1)


def to_quaternion(rotation: Float[Tensor, "*n 3 3"]) -> Float[Tensor, "*n 4"]:
    """Unit quaternion x, y, z, w of the rotation nearest to each matrix (Bar-Itzhack 2000); its sign is arbitrary.

    It is the eigenvector of a symmetric matrix for the largest eigenvalue, which is well conditioned at every angle,
    half turns included.
    """
    (xx, xy, xz), (yx, yy, yz), (zx, zy, zz) = (row.unbind(-1) for row in rotation.unbind(-2))
    rows = [
        [xx - yy - zz, xy + yx, xz + zx, zy - yz],
        [xy + yx, yy - xx - zz, yz + zy, xz - zx],
        [xz + zx, yz + zy, zz - xx - yy, yx - xy],
        [zy - yz, xz - zx, yx - xy, xx + yy + zz],
    ]
    symmetric = torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)
    return torch.linalg.eigh(symmetric).eigenvectors[..., -1]


def to_matrix(quaternion: Float[Tensor, "*n 4"]) -> Float[Tensor, "*n 3 3"]:
    """Rotation matrix of each unit quaternion x, y, z, w."""
    x, y, z, w = quaternion.unbind(-1)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


def orthonormal(c2w: Float[Tensor, "v 4 4"]) -> Float[Tensor, "v 4 4"]:
    """The same cameras with exact rotations; those that are exact already come back bit for bit."""
    rotation = c2w[:, :3, :3]
    off = deviation(c2w) > 1e-6
    if not off.any():
        return c2w
    repaired = c2w.clone()
    repaired[off, :3, :3] = to_matrix(to_quaternion(rotation[off]))
    return repaired


def deviation(c2w: Float[Tensor, "v 4 4"]) -> Float[Tensor, " v"]:
    """Largest entry of |R^T R - 1| of each camera: 0 for a rotation or a reflection."""
    rotation = c2w[:, :3, :3]
    return (rotation.mT @ rotation - torch.eye(3).to(rotation)).abs().amax(dim=(-1, -2))


def check_cameras(cameras: Cameras, what: str = "cameras") -> None:
    """Refuse cameras that no path can be made from: none, a batch of scenes, NaN, no rotations, no focal length."""
    if cameras.c2w.ndim != 3:
        raise UserError(f"The {what} have shape {tuple(cameras.c2w.shape)}: give those of one scene, shape (v, 4, 4).")
    if cameras.num_views == 0:
        raise UserError(f"There are no {what}: give at least one camera.")
    finite = cameras.c2w.isfinite().all(-1).all(-1) & cameras.intrinsics.isfinite().all(-1)
    _refuse(~finite, what, "hold NaN or infinite numbers")
    c2w = cameras.c2w.double()
    _refuse((deviation(c2w) > 1e-2) | (torch.linalg.det(c2w[:, :3, :3]) < 0), what, "are not rotations with a position")
    _refuse((cameras.intrinsics[:, :2] <= 0).any(-1), what, "have a focal length of zero or less")


def _refuse(bad: Tensor, what: str, reason: str) -> None:
    if bad.any():
        numbers = bad.nonzero().flatten().tolist()
        shown = ", ".join(str(i) for i in numbers[:5]) + (", ..." if len(numbers) > 5 else "")
        raise UserError(f"Some {what} {reason} (counted from 0: {shown}): correct or remove them.")
