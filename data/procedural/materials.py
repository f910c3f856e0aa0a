"""Random colours, textures and lights."""

from __future__ import annotations

import colorsys
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from data.procedural.config import ProceduralConfig
from data.procedural.scene import Light, Pattern, Texture

PATTERN_SHARES = {
    Pattern.NOISE: 0.25,
    Pattern.STRIPES: 0.17,
    Pattern.RINGS: 0.1,
    Pattern.CHECKS: 0.12,
    Pattern.PATCHES: 0.13,
    Pattern.SPOTS: 0.11,
    Pattern.GRADIENT: 0.12,
}
PLAIN_SHARE = 0.12
"""Share of textures with a single colour."""


class Style(NamedTuple):
    """What the colours of one scene have in common."""

    hue: float
    hue_spread: float
    saturation: tuple[float, float]
    value: tuple[float, float]
    pictures: int
    """How many pictures there are to choose from."""

    @staticmethod
    def random(rng: np.random.Generator, pictures: int) -> Style:
        """From a single tint to all colours, pale to vivid; pale and dark ones are rarer."""
        spread = rng.choice([0.06, 0.2, 0.5], p=[0.2, 0.25, 0.55])
        vivid = rng.beta(2.2, 1.2)
        low, high = 0.25 + 0.45 * vivid, 0.7 + 0.3 * vivid
        return Style(rng.uniform(), spread, (low, high), (0.35 + 0.3 * rng.uniform(), 1.0), pictures)


def random_color(rng: np.random.Generator, style: Style) -> Float[np.ndarray, " 3"]:
    """A linear colour of a style; one in seven is grey."""
    hue = (style.hue + rng.uniform(-style.hue_spread, style.hue_spread)) % 1
    saturation = rng.uniform(*style.saturation) if rng.uniform() > 1 / 7 else rng.uniform(0, 0.12)
    return np.array(colorsys.hsv_to_rgb(hue, saturation, rng.uniform(*style.value))) ** 2.2


def random_texture(
    rng: np.random.Generator,
    style: Style,
    config: ProceduralConfig,
    size: Float[np.ndarray, " 3"],
    density: tuple[float, float] = (1.5, 6.0),
) -> Texture:
    """A texture for a shape whose coordinates of 1 are `size` long; `density` is features per world unit."""
    if style.pictures and rng.uniform() < config.picture_share:
        pattern = Pattern.PICTURE
    else:
        pattern = Pattern(rng.choice(list(PATTERN_SHARES), p=list(PATTERN_SHARES.values())))
    frequency, matrix = _to_pattern(rng, pattern, size, density)
    soft = pattern in (Pattern.NOISE, Pattern.GRADIENT)
    colors = np.stack([random_color(rng, style) for _ in range(4)])
    if pattern in (Pattern.STRIPES, Pattern.RINGS) and rng.uniform() < 0.6:
        colors[2:] = colors[:2]
    if rng.uniform() < PLAIN_SHARE:
        colors[:] = colors[0]
    return Texture(
        pattern,
        colors,
        matrix,
        warp=rng.uniform(0.3, 3.0) if rng.uniform() < 0.4 else 0.0,
        sharpness=rng.uniform(8, 25) if rng.uniform() < (0.35 if soft else 0.75) else 1.0,
        grain=rng.uniform(0, 0.5) if rng.uniform() < 0.5 else 0.0,
        gloss=rng.uniform(0.1, 0.6) if rng.uniform() < 0.35 else 0.0,
        picture=int(rng.integers(max(style.pictures, 1))),
        density=frequency,
    )


def _to_pattern(
    rng: np.random.Generator, pattern: Pattern, size: Float[np.ndarray, " 3"], density: tuple[float, float]
) -> tuple[float, Float[np.ndarray, "3 4"]]:
    """Features per world unit, and the map from a shape's coordinates to those of the pattern."""
    if pattern == Pattern.GRADIENT:
        along_axis = np.roll(np.eye(3), rng.integers(3), axis=0)
        return 1.0, np.concatenate([along_axis, np.zeros((3, 1))], axis=1)
    frequency = np.exp(rng.uniform(*np.log(density)))
    if pattern == Pattern.NOISE:
        frequency = 0.4 * frequency
    if pattern == Pattern.PICTURE:
        frequency = rng.uniform(0.5, 1.5)
    tiled = pattern in (Pattern.CHECKS, Pattern.PATCHES) and rng.uniform() < 0.7
    rotation = np.eye(3) if tiled or pattern == Pattern.PICTURE else random_rotation(rng)
    # Rings have their middle near that of the shape; all others may start anywhere.
    shift = rng.normal(size=3) if pattern == Pattern.RINGS else rng.uniform(0, 64, 3)
    return frequency, np.concatenate([rotation * frequency * size, shift[:, None]], axis=1)


def random_rotation(rng: np.random.Generator) -> Float[np.ndarray, "3 3"]:
    """A rotation, evenly among all of them (from a unit quaternion)."""
    w, x, y, z = (q := rng.normal(size=4)) / np.linalg.norm(q)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def distant_lights(
    rng: np.random.Generator, config: ProceduralConfig
) -> tuple[tuple[Light, ...], Float[np.ndarray, "2 3"]]:
    """Lights from above and the even light; a white surface that faces the first comes out about white."""
    count = int(rng.integers(config.lights[0], config.lights[1] + 1))
    even = rng.uniform(0.35, 0.65) if count else 1.0
    shares = rng.dirichlet(np.linspace(4, 1.5, count)) if count else []
    total = rng.uniform(0.9, 1.2)
    lights = []
    for share in shares:
        azimuth, elevation = rng.uniform(0, 2 * np.pi), np.radians(rng.uniform(20, 80))
        flat = np.cos(elevation)
        place = np.array([flat * np.cos(azimuth), flat * np.sin(azimuth), np.sin(elevation), 0])
        lights.append(Light(place, total * (1 - even) * 1.4 * share * _tint(rng), rng.uniform(0.01, 0.1)))
    return tuple(lights), total * even * np.array([[0.75], [1.0]]) * _tint(rng)


def lamps(
    rng: np.random.Generator, config: ProceduralConfig, half: Float[np.ndarray, " 3"]
) -> tuple[tuple[Light, ...], Float[np.ndarray, "2 3"]]:
    """Lamps below the ceiling of a room that reaches from -half to half, and the even light."""
    count = int(rng.integers(config.lights[0], config.lights[1] + 1))
    even = rng.uniform(0.45, 0.7) if count else 1.0
    lights = []
    for _ in range(count):
        x, y = rng.uniform(-0.6, 0.6, 2) * half[:2]
        place = np.array([x, y, half[2] * rng.uniform(0.75, 0.95), 1])
        lights.append(Light(place, (1 - even) * 1.5 / count * _tint(rng), rng.uniform(0.03, 0.12)))
    return tuple(lights), even * np.array([[0.8], [1.0]]) * _tint(rng)


def _tint(rng: np.random.Generator) -> Float[np.ndarray, " 3"]:
    """White, a little warm or cold."""
    warm = rng.normal() * 0.06
    return np.array([1 + warm, 1.0, 1 - warm]).clip(0.8, 1.2)
