"""What tokens write and ask in the frame of their own ray, moved to the world and back (GTA, arXiv 2310.10375).

Numbers come in fours, as homogeneous coordinates. A key or value x of a token with ray-to-world pose T becomes T x, a
query q becomes T^-T q, and what was read comes back as T^-1 of it. So q . k is q^T T_q^-1 T_k k: it knows how the two
rays lie to each other, and does not change when the world is turned.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from data import Cameras


class RayFrames(NamedTuple):
    """Poses of tokens' rays: at the point nearest to the origin, z along the ray, x to the camera's right."""

    to_world: Float[Tensor, "b n 4 4"]
    to_ray: Float[Tensor, "b n 4 4"]


def to_world(frames: RayFrames, x: Float[Tensor, "bh n d"]) -> Float[Tensor, "bh n d"]:
    """Keys or values (heads folded into the batch) in the world."""
    return _moved(x, frames.to_world)


def ask_world(frames: RayFrames, q: Float[Tensor, "bh n d"]) -> Float[Tensor, "bh n d"]:
    """Queries for keys in the world."""
    return _moved(q, frames.to_ray.transpose(-1, -2))


def to_ray(frames: RayFrames, read: Float[Tensor, "bh n d"]) -> Float[Tensor, "bh n d"]:
    """What was read, in the frame of each token's ray."""
    return _moved(read, frames.to_ray)


def ray_frames(cameras: Cameras, patch: int) -> RayFrames:
    """Frames of the rays through the centres of all patches of all views of a batch, view by view."""
    h, w = cameras.image_size
    # Poses keep their own precision under autocast: in bfloat16 neighbouring patches would share one.
    with torch.autocast(cameras.c2w.device.type, enabled=False):
        origins, z = cameras.resize((h // patch, w // patch)).rays()
        right = cameras.c2w[..., None, None, :3, 0].expand_as(z)
        y = torch.nn.functional.normalize(torch.linalg.cross(z, right), dim=-1)
        axes = torch.stack([torch.linalg.cross(y, z), y, z], dim=-1)
        nearest = origins - (origins * z).sum(-1, keepdim=True) * z
        to_world, to_ray = _pose(axes, nearest), _pose(axes.mT, -(axes.mT @ nearest[..., None])[..., 0])
    return RayFrames(to_world.flatten(1, 3), to_ray.flatten(1, 3))


def _pose(rotation: Float[Tensor, "*b 3 3"], position: Float[Tensor, "*b 3"]) -> Float[Tensor, "*b 4 4"]:
    pose = torch.eye(4, dtype=position.dtype, device=position.device).repeat(*position.shape[:-1], 1, 1)
    pose[..., :3, :3], pose[..., :3, 3] = rotation, position
    return pose


def _moved(x: Tensor, poses: Tensor) -> Tensor:
    with torch.autocast(x.device.type, enabled=False):
        fours = x.to(poses.dtype).unflatten(0, (poses.shape[0], -1)).unflatten(-1, (4, -1))
        return torch.einsum("bnij,bhnje->bhnie", poses, fours).flatten(-2).flatten(0, 1).to(x.dtype)
