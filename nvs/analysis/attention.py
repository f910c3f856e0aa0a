"""Where a patch reads from: one step of fast weights written as linear attention over the input patches."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from data import Cameras, UserError, Views
from nvs.analysis.probe import Case, NotApplicableError, memories, trace
from nvs.memory import split_tokens
from nvs.model import LaCT

RAY_DEPTHS = (0.4, 1.6)
"""The part of a patch's ray that is drawn, over the distance of its camera from the origin."""


@dataclass(frozen=True)
class ReadMap:
    """Where one patch of a target view reads from, in every block."""

    scene: str
    target: int
    """Number of the target view among the targets."""
    patch: tuple[int, int]
    """Row and column of the patch."""
    grid: tuple[int, int]
    """Rows and columns of patches in a view."""
    shares: list[Float[Tensor, "v i j"]]
    """For every block, the share of each input patch in what is read of the input views; all sum to 1."""
    from_views: tuple[float, ...]
    """For every block, the norm of what is read of the input views over that and the norm of what was learned in
    training together (0..1): the two can cancel, so that it is no share of their sum."""
    rays: list[list[tuple[float, float]]]
    """The patch's ray as a line in each input view, in pixels."""
    inputs: Views
    targets: Views


def check_place(model: LaCT, case: Case, target: int, patch: tuple[int, int] | None) -> tuple[int, int]:
    """Rows and columns of patches in a view; raises UserError if there is no such target view or patch."""
    rows, columns = (side // model.config.patch_size for side in case.image_size)
    if not 0 <= target < len(case.targets):
        raise UserError(
            f"There is no target view {target} of {case.scene.name}: they are numbered 0 to {len(case.targets) - 1}."
        )
    if patch is not None and not (0 <= patch[0] < rows and 0 <= patch[1] < columns):
        raise UserError(f"There is no patch {patch[0]} {patch[1]}: a view has {rows} rows and {columns} columns.")
    return rows, columns


@torch.no_grad()
def read_map(model: LaCT, case: Case, target: int, patch: tuple[int, int] | None) -> ReadMap:
    """Follow one patch; by default the one with most contrast. Numbers start at 0."""
    layers = memories(model, "read_map", "does not tell how much it reads of which input patch")
    inputs, targets = case.views(model)
    size = model.config.patch_size
    grid = check_place(model, case, target, patch)
    if patch is None:
        patches = rearrange(targets.images[target], "c (i p) (j q) -> (i j) (c p q)", p=size, q=size)
        most = patches.std(-1).argmax().item()
        patch = (int(most) // grid[1], int(most) % grid[1])
    camera = targets.cameras.select(target)
    shares, parts = [], []
    for layer, seen in zip(layers, trace(model, inputs, camera), strict=True):
        one, place = split_tokens(seen.read, 1, seen.read_grid)[patch[0] * grid[1] + patch[1]]
        try:
            found = layer.read_map(seen.before, seen.written, one, seen.written_grid, place)
        except UserError as error:
            raise NotApplicableError(str(error)) from error
        shares.append(shares_of(found.scores[0, :, 0], found.values[0]).view(-1, *grid))
        read, learned = (found.scores @ found.values).norm(), found.base.norm()
        parts.append((read / (read + learned)).item())
    rays = ray_lines(camera, patch, size, inputs.cameras)
    return ReadMap(case.scene.name, target, patch, grid, shares, tuple(parts), rays, inputs, targets)


def shares_of(scores: Float[Tensor, "h n"], values: Float[Tensor, "h n e"]) -> Float[Tensor, " n"]:
    """How much each token adds to the sum of all along the direction of that sum; the shares themselves sum to 1."""
    added = scores[..., None] * values
    total = added.sum(1)
    along = torch.einsum("hne,he->n", added.double(), total.double())
    return (along / total.double().square().sum().clamp(min=torch.finfo(torch.float64).tiny)).float()


def ray_lines(camera: Cameras, patch: tuple[int, int], size: int, others: Cameras) -> list[list[tuple[float, float]]]:
    """The middle ray of a patch (of `size` pixels) of one camera, as pixels (x, y) of other cameras, where in front."""
    origins, directions = camera.rays()
    row, column = (int((i + 0.5) * size) for i in patch)
    origin, direction = origins[0, row, column].double(), directions[0, row, column].double()
    depths = torch.linspace(*RAY_DEPTHS, 33, dtype=torch.float64) * camera.positions[0].norm().double()
    points = origin + depths[:, None] * direction
    lines = []
    for c2w, (fx, fy, cx, cy) in zip(others.c2w.double(), others.intrinsics.double().tolist(), strict=True):
        x, y, z = ((points - c2w[:3, 3]) @ c2w[:3, :3]).T
        seen = z > 1e-3
        lines.append(list(zip((fx * x / z + cx)[seen].tolist(), (fy * y / z + cy)[seen].tolist(), strict=True)))
    return lines
