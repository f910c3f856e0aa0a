"""Fixtures for all tests: the shared material beside the project, and a small synthetic capture."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import jaxtyping
import numpy as np
import pytest
from PIL import Image

# Position, radius and colour (0..1) of the balls of the synthetic scene; z is up and nothing else is there.
BALLS = (
    ((0.5, 0.1, 0.1), 0.30, (0.9, 0.1, 0.1)),
    ((-0.4, 0.4, -0.1), 0.25, (0.1, 0.7, 0.1)),
    ((-0.2, -0.5, 0.2), 0.28, (0.1, 0.2, 0.9)),
    ((0.0, 0.1, 0.6), 0.20, (0.9, 0.9, 0.1)),
)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder `shared` beside the project, with cases, golden numbers and sample captures."""
    folder = Path(__file__).resolve().parents[1].parent / "shared"
    if not folder.is_dir():
        pytest.skip("no folder `shared` beside the project")
    return folder


@pytest.fixture(scope="session")
def judge(shared: Path) -> ModuleType:
    """A program that judges dumped cameras and pixels and shares no code with ours."""
    spec = importlib.util.spec_from_file_location("judge_cameras", shared / "cases/_tools/judge_cameras.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def look_at() -> Callable[..., np.ndarray]:
    """`look_at(eye, target)`: a camera-to-world matrix with OpenCV axes, level in a world with z up."""
    return _look_at


@pytest.fixture
def write_capture(tmp_path: Path) -> Callable[..., Path]:
    """`write_capture(name, frames=8, size=(48, 64), alpha=False)`: writes a ring of photos of coloured balls.

    Returns the folder, which holds images/ and a transforms.json (OpenGL axes). With `alpha` the photos have a
    transparent background, otherwise a grey one.
    """

    def write(
        name: str = "balls", frames: int = 8, size: tuple[int, int] = (48, 64), alpha: bool = False, focal: float = 70.0
    ) -> Path:
        h, w = size
        folder = tmp_path / name
        (folder / "images").mkdir(parents=True)
        entries = []
        for i in range(frames):
            angle = 2 * np.pi * i / frames
            c2w = _look_at((2.6 * np.cos(angle), 2.6 * np.sin(angle), 0.5 + 0.6 * (i % 3)), (0, 0, 0.1))
            Image.fromarray(_render(c2w, focal, size, alpha)).save(folder / "images" / f"{i:03d}.png")
            opengl = c2w * np.array([1, -1, -1, 1])
            entries.append({"file_path": f"images/{i:03d}.png", "transform_matrix": opengl.tolist()})
        numbers = {"fl_x": focal, "fl_y": focal, "cx": w / 2, "cy": h / 2, "w": w, "h": h}
        (folder / "transforms.json").write_text(json.dumps({**numbers, "frames": entries}))
        return folder

    return write


@pytest.fixture
def capture(write_capture: Callable[..., Path]) -> Path:
    """A capture folder with 8 photos of 48x64 pixels (height x width)."""
    return write_capture()


@pytest.fixture
def no_shape_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switches off the run-time checks of shapes, which torch.compile cannot trace."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def _look_at(eye, target) -> np.ndarray:
    eye, forward = np.asarray(eye, float), np.asarray(target, float) - np.asarray(eye, float)
    forward /= np.linalg.norm(forward)
    right = np.cross(forward, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    c2w = np.eye(4)
    c2w[:3] = np.stack([right, np.cross(forward, right), forward, eye], axis=1)
    return c2w


def _render(c2w: np.ndarray, focal: float, size: tuple[int, int], alpha: bool, samples: int = 3) -> np.ndarray:
    """Flat-coloured balls, with `samples` x `samples` rays a pixel."""
    h, w = size
    y, x = (np.mgrid[0 : h * samples, 0 : w * samples] + 0.5) / samples
    rays = np.stack([(x - w / 2) / focal, (y - h / 2) / focal, np.ones_like(x)], -1) @ c2w[:3, :3].T
    rays /= np.linalg.norm(rays, axis=-1, keepdims=True)
    nearest, pixels = np.full(x.shape, np.inf), np.zeros((*x.shape, 4))
    for center, radius, color in BALLS:
        to_eye = c2w[:3, 3] - np.array(center)
        b = rays @ to_eye
        inside = b * b - (to_eye @ to_eye - radius**2)
        distance = np.where(inside > 0, -b - np.sqrt(np.maximum(inside, 0)), np.inf)
        hit = distance < nearest
        nearest = np.where(hit, distance, nearest)
        pixels[hit] = (*color, 1.0)
    pixels = pixels.reshape(h, samples, w, samples, 4).mean((1, 3))
    color, cover = pixels[..., :3], pixels[..., 3:]
    if alpha:
        straight = np.concatenate([color / np.maximum(cover, 1e-6), cover], -1)
        return (straight * 255).round().astype(np.uint8)
    return ((color + 0.6 * (1 - cover)) * 255).round().astype(np.uint8)
