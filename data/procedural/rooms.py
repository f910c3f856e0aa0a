"""Random rooms: things on a floor between walls, or in the open, and cameras among them."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from data.camera_layouts import look_at
from data.procedural.config import ProceduralConfig
from data.procedural.materials import Style, distant_lights, lamps, random_color, random_texture
from data.procedural.objects import affine, bounds, fitted, moved, random_object
from data.procedural.scene import ProceduralScene, Shape, bounding_radius
from data.procedural.shapes import Kind

CLEARANCE = 0.2
"""Least distance of cameras from shapes, in world units, where there is room."""
TRIES = 12
"""Places looked at for each camera."""


def random_room(rng: np.random.Generator, config: ProceduralConfig, style: Style) -> tuple[ProceduralScene, np.ndarray]:
    """A room around the origin, and half its size: closed, without a ceiling, or a floor alone under the sky."""
    half = np.array([*rng.uniform(1.8, 3.2, 2), rng.uniform(0.9, 1.5)])
    walls = str(rng.choice(["closed", "open above", "none"], p=[0.6, 0.15, 0.25]))
    shapes = _planes(rng, config, style.pictures, half, walls)
    for _ in range(int(rng.integers(config.shapes[0], config.shapes[1] + 1))):
        shapes += _thing_on_floor(rng, config, style, half)
    if walls != "none":
        for _ in range(int(rng.integers(0, 5))):
            shapes.append(_thing_on_wall(rng, config, style.pictures, half))
    if walls == "closed":
        lights, ambient = lamps(rng, config, half)
        return ProceduralScene(tuple(shapes), lights, ambient, None), half
    lights, ambient = distant_lights(rng, config)
    horizon = np.array([0.9, 0.9, 0.95]) * rng.uniform(0.6, 1.0)
    overhead = random_color(rng, Style(0.6, 0.12, (0.2, 0.7), (0.6, 1.0), 0))
    return ProceduralScene(tuple(shapes), lights, ambient, np.stack([horizon, overhead])), half


def room_cameras(
    rng: np.random.Generator, scene: ProceduralScene, half: Float[np.ndarray, " 3"], views: int
) -> Float[np.ndarray, "v 4 4"]:
    """Cameras in the outer part of a room that look past its middle; view k is the same however many there are."""
    draws = rng.uniform(size=(views, TRIES + 1, 3))
    angle = draws[:, :-1, 0] * 2 * np.pi
    out = 0.5 + 0.4 * draws[:, :-1, 1] ** 0.5
    height = -0.5 + 1.3 * draws[:, :-1, 2]
    places = np.stack([np.cos(angle) * out, np.sin(angle) * out, height], axis=-1) * half
    free = np.minimum(_clearance(scene, places.reshape(-1, 3)).reshape(views, TRIES), CLEARANCE)
    positions = places[np.arange(views), free.argmax(1)]
    aims = ((draws[:, -1] - 0.5) * np.array([0.5, 0.5, 0.4]) - np.array([0, 0, 0.5])) * half
    return look_at(positions, aims)


def _clearance(scene: ProceduralScene, points: Float[np.ndarray, "n 3"]) -> Float[np.ndarray, " n"]:
    """A distance that points surely have from all shapes but the planes."""
    result = np.full(len(points), np.inf)
    for shape in scene.shapes:
        if shape.kind != Kind.HALFSPACE:
            inverse = np.linalg.inv(shape.pose)
            away = np.linalg.norm(points @ inverse[:3, :3].T + inverse[:3, 3], axis=1)
            gap = (away - bounding_radius(shape.kind, shape.params)) / np.linalg.norm(inverse[:3, :3], 2)
            result = np.minimum(result, gap)
    return result


def _planes(
    rng: np.random.Generator, config: ProceduralConfig, pictures: int, half: Float[np.ndarray, " 3"], walls: str
) -> list[Shape]:
    """Floor, walls (often alike) and ceiling as half-spaces, in paler colours than the things."""
    calm = [Style(rng.uniform(), 0.15, (0.05, 0.5), (0.45, 1.0), pictures) for _ in range(2)]
    floor, wall, ceiling = (random_texture(rng, s, config, np.ones(3), (0.5, 3.0)) for s in (*calm, calm[0]))
    planes = [Shape(Kind.HALFSPACE, _facing(np.array([0, 0, 1.0]), half), floor)]
    if walls == "none":
        return planes
    for direction in ((1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, -1, 0)):
        different = rng.uniform() < 0.35
        texture = random_texture(rng, calm[1], config, np.ones(3), (0.5, 3.0)) if different else wall
        planes.append(Shape(Kind.HALFSPACE, _facing(np.array(direction, float), half), texture))
    if walls == "closed":
        planes.append(Shape(Kind.HALFSPACE, _facing(np.array([0, 0, -1.0]), half), ceiling))
    return planes


def _facing(direction: Float[np.ndarray, " 3"], half: Float[np.ndarray, " 3"]) -> Float[np.ndarray, "4 4"]:
    """The pose of the half-space behind the side of a room that faces `direction`."""
    across = np.roll(np.abs(direction), 1)
    return affine(np.stack([across, np.cross(direction, across), direction], axis=1), -direction * half)


def _thing_on_floor(
    rng: np.random.Generator, config: ProceduralConfig, style: Style, half: Float[np.ndarray, " 3"]
) -> list[Shape]:
    """One to three shapes that stand on the floor of the inner part of a room."""
    radius = rng.uniform(0.25, 0.65)
    thing = fitted(random_object(rng, config, style, int(rng.integers(1, 4)))[:4], radius)
    low, _ = bounds(thing)
    angle, out = rng.uniform(0, 2 * np.pi), 0.62 * np.sqrt(rng.uniform())
    place = np.array([np.cos(angle) * out, np.sin(angle) * out, -1]) * half - np.array([0, 0, low[2] + 0.01])
    return [moved(shape, shift=place) for shape in thing]


def _thing_on_wall(
    rng: np.random.Generator, config: ProceduralConfig, pictures: int, half: Float[np.ndarray, " 3"]
) -> Shape:
    """A thin box on a wall: a picture, a window or a door."""
    side, axis = rng.choice([-1, 1]), int(rng.integers(2))
    size = np.array([*rng.uniform(0.2, 0.6, 2), rng.uniform(0.2, 0.5)])
    size[axis] = 0.03
    place = rng.uniform(-0.7, 0.7, 3) * half
    place[axis] = side * half[axis]
    return Shape(
        Kind.BOX,
        affine(np.diag(size), place),
        random_texture(rng, Style.random(rng, pictures), config, size, (2.0, 6.0)),
    )
