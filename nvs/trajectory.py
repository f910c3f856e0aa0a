"""Camera paths around a scene: orbit, turntable, spiral, interpolation of given cameras, and path files.

Every path is computed in float64 and returned with the dtype and device of the cameras that it was made from.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from data import Cameras, UserError, fit_normalization
from nvs.camera_path import CameraPath, load, read_path, save
from nvs.interpolation import check_cameras, interpolate, spread, to_matrix

__all__ = [
    "CameraPath",
    "interpolate",
    "load",
    "look_at",
    "orbit",
    "read_path",
    "save",
    "spiral",
    "spread",
    "turntable",
]

Vector = Float[Tensor, " 3"] | tuple[float, float, float]

MAX_ROLL_PER_TURN = 6.0
"""`look_at` rolls at most this many times as fast as it turns: level up to 80 degrees above or below the horizon."""


def orbit(
    cameras: Cameras | None,
    n: int,
    *,
    centre: Vector | None = None,
    up: Vector | None = None,
    radius: float | None = None,
    elevation: float | None = None,
    turns: float = 1.0,
    fov: float = 50.0,
    image_size: tuple[int, int] = (256, 256),
) -> Cameras:
    """Circle around `centre`, looking at it, `n` frames in all; whole turns close without showing a camera twice.

    What is not given is taken from `cameras`: the point they look at, the up direction, radius (world units), elevation
    (degrees above the horizon) and lens, and the direction to start from. Without cameras, radius and elevation are
    needed, up is +z, and `fov` (degrees, across the width) with `image_size` is the lens.
    """
    _check_count(n)
    if cameras is None:
        if radius is None or elevation is None:
            raise UserError("An orbit without cameras needs a radius and an elevation: give both.")
        cameras = _default_camera(fov, image_size)
        centre = (0.0, 0.0, 0.0) if centre is None else centre
    check_cameras(cameras)
    middle, axis = _centre_and_up(cameras, centre, up)
    offsets = cameras.positions.cpu().double() - middle
    height = (offsets @ axis)[:, None]
    radius = offsets.norm(dim=-1).mean().item() if radius is None else radius
    if not (math.isfinite(radius) and radius > 1e-9):
        raise UserError(f"An orbit of radius {radius:g} is not possible: give one above 0 (world units).")
    if elevation is None:
        elevation = math.degrees(torch.asin((normalize(offsets, dim=-1) @ axis).clamp(-1, 1)).mean().item())
    start = _any_horizontal(offsets - height * axis, axis)
    angle = math.radians(elevation)
    offset = radius * (math.cos(angle) * start + math.sin(angle) * axis)
    first = _frame(-offset, torch.linalg.cross(axis, start), middle + offset)
    path = _rotate_about(first[None], middle, axis, 2 * math.pi * turns * torch.arange(n, dtype=torch.float64) / n)
    return _with_mean_lens(path, cameras)


def turntable(
    cameras: Cameras,
    n: int,
    *,
    zoom: float = 1.0,
    centre: Vector | None = None,
    up: Vector | None = None,
    turns: float = 1.0,
) -> Cameras:
    """The first camera as it is, while the scene turns below it; the focal length grows to `zoom` times and back.

    Half way through the path the zoom is reached; 1 keeps the focal length. Whole turns close without a double frame.
    """
    _check_count(n)
    check_cameras(cameras)
    if not (math.isfinite(zoom) and zoom > 0):
        raise UserError(f"A zoom of {zoom:g} is not possible: give a factor above 0, for example 1.5.")
    middle, axis = _centre_and_up(cameras, centre, up)
    t = torch.arange(n, dtype=torch.float64) / n
    path = _rotate_about(cameras.c2w[:1].cpu().double(), middle, axis, 2 * math.pi * turns * t)
    lens = cameras.intrinsics[:1].cpu().double().repeat(n, 1)
    factor = zoom ** (0.5 - 0.5 * torch.cos(2 * math.pi * t))
    lens[:, :2] *= factor[:, None]
    return _like(cameras, path, lens)


def spiral(
    cameras: Cameras,
    n: int,
    *,
    turns: int = 2,
    size: float = 1.0,
    centre: Vector | None = None,
    up: Vector | None = None,
) -> Cameras:
    """A spiral around the mean camera of a forward-facing capture, always looking ahead to the depth of `centre`.

    The radii are those that hold 90 % of the cameras, times `size`; sideways and up it goes round `turns` times, to
    and fro along the view once, so that it closes (in the manner of Local Light Field Fusion, Mildenhall et al. 2019).
    For cameras all around the scene it is a small spiral around the first one.
    """
    _check_count(n)
    check_cameras(cameras)
    if not (math.isfinite(size) and size > 0):
        raise UserError(f"A spiral of size {size:g} is not possible: give a factor above 0, for example 1.")
    aim, upright = _centre_and_up(cameras, centre, up)
    middle, one_way = _central_camera(cameras, upright)
    axes, position = middle[:3, :3], middle[:3, 3]
    local = (cameras.positions.cpu().double() - position) @ axes
    depth = ((aim - position) @ axes[:, 2]).item()
    if not depth > 1e-9:
        depth = max(4.0 * local.norm(dim=-1).mean().item(), 1.0)
    radii = torch.quantile(local.abs(), 0.9, dim=0) if one_way else torch.full((3,), 0.15 * depth, dtype=torch.float64)
    radii = size * radii.clamp(0.02 * depth, 0.5 * depth) * torch.tensor([1.0, 1.0, 0.5], dtype=torch.float64)
    t = 2 * math.pi * torch.arange(n, dtype=torch.float64) / n
    swing = torch.stack([torch.cos(turns * t), -torch.sin(turns * t), -torch.sin(t)], dim=-1)
    path = look_at(position + (swing * radii) @ axes.T, position + depth * axes[:, 2], -axes[:, 1])
    return _with_mean_lens(path, cameras)


def look_at(
    positions: Float[Tensor, "v 3"], targets: Float[Tensor, "v 3"] | Float[Tensor, " 3"], up: Vector = (0.0, 0.0, 1.0)
) -> Float[Tensor, "v 4 4"]:
    """Camera-to-world matrices (float64) of a camera that moves along `positions` in time and looks at `targets`.

    The horizon is level wherever that needs no sudden roll. Near the poles, where "up" says little or turns round, the
    right-hand direction is carried over from the frame before, and the roll that is left over is undone step by step.
    """
    positions, targets = positions.cpu().double(), targets.cpu().double()
    upright = _unit(up, "The up direction")
    aims = targets - positions
    if not (positions.isfinite().all() and targets.isfinite().all()):
        raise UserError("Positions to look from, or targets to look at, hold NaN or infinite numbers: remove them.")
    if (aims.norm(dim=-1) < 1e-12).any():
        raise UserError("A camera stands on the point that it should look at: move one of them.")
    forwards = normalize(aims, dim=-1)
    right, before = _any_horizontal(torch.linalg.cross(forwards[:1], upright[None]), forwards[0]), forwards[0]
    path = []
    for position, forward in zip(positions, forwards, strict=True):
        right = _transport(right, before, forward)
        level = torch.linalg.cross(forward, upright)
        if level.norm() > 1e-9:
            turn = _angle(before, forward)
            roll = torch.atan2(torch.linalg.cross(right, level) @ forward, right @ level)
            limit = MAX_ROLL_PER_TURN * turn
            right = _rotate(right, forward, roll.clamp(-limit, limit))
        path.append(_frame(forward, right, position))
        before = forward
    return torch.stack(path)


def _centre_and_up(cameras: Cameras, centre: Vector | None, up: Vector | None) -> tuple[Tensor, Tensor]:
    """The given point and direction; else those that would become origin and +z in the frame that models see."""
    to_world = torch.from_numpy(fit_normalization(cameras.c2w.cpu().double().numpy(), "focus")).inverse()
    found = to_world[:3, 3] if centre is None else torch.as_tensor(centre, dtype=torch.float64).cpu()
    return found, _unit(to_world[:3, 2] if up is None else up, "The up direction")


def _central_camera(cameras: Cameras, up: Tensor) -> tuple[Float[Tensor, "4 4"], bool]:
    """The mean camera if all look roughly one way, else the first one; and whether they do."""
    forwards, positions = cameras.forward.cpu().double(), cameras.positions.cpu().double()
    one_way = bool(forwards.mean(0).norm() > 0.7)
    forward, position = (forwards.mean(0), positions.mean(0)) if one_way else (forwards[0], positions[0])
    right = _any_horizontal(torch.linalg.cross(forward, up)[None], normalize(forward, dim=-1))
    return _frame(forward, right, position), one_way


def _frame(forward: Tensor, right: Tensor, position: Tensor) -> Float[Tensor, "4 4"]:
    """Camera-to-world matrix from a viewing direction, a direction to the right of it, and a position."""
    forward = normalize(forward, dim=-1)
    right = normalize(right - (right @ forward) * forward, dim=-1)
    c2w = torch.eye(4, dtype=torch.float64)
    c2w[:3] = torch.stack([right, torch.linalg.cross(forward, right), forward, position], dim=-1)
    return c2w


def _any_horizontal(candidates: Float[Tensor, "v 3"], axis: Float[Tensor, " 3"]) -> Float[Tensor, " 3"]:
    """The first candidate that is not zero, else some direction at right angles to `axis`; a unit vector."""
    lengths = candidates.norm(dim=-1)
    usable = (lengths > 1e-6 * lengths.max().clamp(min=1e-6)).nonzero()
    if len(usable):
        return normalize(candidates[usable[0, 0]], dim=-1)
    other = torch.eye(3, dtype=torch.float64)[axis.abs().argmin()]
    return normalize(torch.linalg.cross(axis, other), dim=-1)


def _rotate_about(c2w: Float[Tensor, "1 4 4"], centre: Tensor, axis: Tensor, angles: Float[Tensor, " v"]) -> Tensor:
    """One camera carried around a vertical axis through `centre` by each angle (radians)."""
    half = angles[:, None] / 2
    rotation = to_matrix(torch.cat([half.sin() * axis, half.cos()], dim=-1))
    path = c2w.repeat(len(angles), 1, 1)
    path[:, :3, :3] = rotation @ c2w[:, :3, :3]
    path[:, :3, 3] = centre + (rotation @ (c2w[0, :3, 3] - centre)[:, None])[:, :, 0]
    path[angles == 0] = c2w
    return path


def _transport(vector: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Carry `vector` along by the smallest rotation that takes the unit vector `start` to `end`."""
    axis = torch.linalg.cross(start, end)
    if axis.norm() < 1e-12:
        return vector
    return _rotate(vector, normalize(axis, dim=-1), _angle(start, end))


def _rotate(vector: Tensor, axis: Tensor, angle: Tensor) -> Tensor:
    """Rotate about a unit axis by an angle in radians (Rodrigues' formula)."""
    along = (axis @ vector) * axis
    return along + angle.cos() * (vector - along) + angle.sin() * torch.linalg.cross(axis, vector)


def _angle(a: Tensor, b: Tensor) -> Tensor:
    """Angle between unit vectors in radians, exact for small ones."""
    return 2 * torch.atan2((a - b).norm(), (a + b).norm())


def _unit(vector: Vector, what: str) -> Float[Tensor, " 3"]:
    found = torch.as_tensor(vector, dtype=torch.float64).cpu()
    if found.shape != (3,) or not found.isfinite().all() or found.norm() < 1e-12:
        raise UserError(f"{what} is {found.tolist()}: give three numbers that are not all zero.")
    return normalize(found, dim=-1)


def _default_camera(fov: float, image_size: tuple[int, int]) -> Cameras:
    if not 0 < fov < 180:
        raise UserError(f"A field of view of {fov:g} degrees is not possible: give one between 0 and 180.")
    h, w = image_size
    focal = w / 2 / math.tan(math.radians(fov) / 2)
    c2w = _frame(torch.tensor([-1.0, 0, 0]).double(), torch.tensor([0, 1.0, 0]).double(), torch.zeros(3).double())
    c2w[0, 3] = 1.0
    return Cameras(c2w[None].float(), torch.tensor([[focal, focal, w / 2, h / 2]]), (h, w))


def _with_mean_lens(path: Tensor, cameras: Cameras) -> Cameras:
    lens = cameras.intrinsics.cpu().double().mean(0, keepdim=True).repeat(len(path), 1)
    return _like(cameras, path, lens)


def _like(cameras: Cameras, path: Float[Tensor, "v 4 4"], lens: Float[Tensor, "v 4"]) -> Cameras:
    return Cameras(path.to(cameras.c2w), lens.to(cameras.intrinsics), cameras.image_size)


def _check_count(n: int) -> None:
    if n < 1:
        raise UserError(f"A path of {n} frames is not possible: ask for 1 or more.")
