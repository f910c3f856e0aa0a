"""Ray frames: poses against the rays themselves, and what attention in them knows and does not know."""

import pytest
import torch
from tiny import make_views

from data import Cameras
from nvs.memory import Grid, LaCTConfig, RayFrames, SoftmaxConfig, SoftmaxMemory, build_memory, ray_frames
from nvs.memory.frames import ask_world, to_ray, to_world


def cameras(seed: int = 0, batch: int = 2) -> Cameras:
    return make_views(3, batch=batch, seed=seed).cameras.to(torch.float64)


def turned(seen: Cameras) -> Cameras:
    generator = torch.Generator().manual_seed(3)
    turn = torch.eye(4, dtype=torch.float64)
    turn[:3, :3] = torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64))[0]
    turn[:3, :3] *= turn[:3, :3].det().sign()
    return Cameras(turn @ seen.c2w, seen.intrinsics, seen.image_size)


def test_a_frame_lies_on_its_ray_where_it_comes_nearest_to_the_origin():
    seen = cameras()
    patch = 4
    frames = ray_frames(seen, patch)
    h, w = seen.image_size
    origins, directions = (x.flatten(1, 3) for x in seen.resize((h // patch, w // patch)).rays())
    torch.testing.assert_close(frames.to_world @ frames.to_ray, torch.eye(4).double().expand_as(frames.to_ray))
    axes, at = frames.to_world[..., :3, :3], frames.to_world[..., :3, 3]
    torch.testing.assert_close(torch.linalg.det(axes), torch.ones(axes.shape[:2]).double())
    torch.testing.assert_close(axes[..., 2], directions)
    assert (at * directions).sum(-1).abs().max() < 1e-9  # the foot of the perpendicular from the origin
    torch.testing.assert_close(torch.linalg.cross(at - origins, directions), torch.zeros_like(at), rtol=0, atol=1e-9)
    right = seen.c2w[:, :, None, :3, 0].expand(-1, -1, frames.to_world.shape[1] // 3, -1).flatten(1, 2)
    assert (axes[..., 0] * right).sum(-1).min() > 0.5


def test_query_and_key_meet_in_the_relative_pose_of_their_rays():
    frames = ray_frames(cameras(), 4)
    generator = torch.Generator().manual_seed(1)
    q, k = (torch.randn(4, frames.to_ray.shape[1], 8, generator=generator, dtype=torch.float64) for _ in range(2))
    scores = ask_world(frames, q) @ to_world(frames, k).mT
    for bh, m, n in ((0, 0, 5), (1, 3, 2), (3, 7, 1)):  # two heads a scene
        relative = frames.to_ray[bh // 2, m] @ frames.to_world[bh // 2, n]
        expected = (q[bh, m].view(4, 2) * (relative @ k[bh, n].view(4, 2))).sum()
        torch.testing.assert_close(scores[bh, m, n], expected)
    torch.testing.assert_close(to_ray(frames, to_world(frames, k)), k)


def test_attention_in_ray_frames_does_not_change_when_the_world_turns():
    torch.manual_seed(0)
    memory = SoftmaxMemory(16, SoftmaxConfig(head_dim=8, ray_frames=True)).double()
    inputs, targets = cameras(), cameras(seed=4)
    n = ray_frames(inputs, 4).to_ray.shape[1]
    x, asking = torch.randn(2, n, 16).double() * 5, torch.randn(2, n, 16).double() * 5

    def read(inputs: Cameras, targets: Cameras) -> torch.Tensor:
        state = memory.update_state(memory.init_state(2), x, grid=Grid(2, 2, ray_frames(inputs, 4)))
        return memory.apply_state(state, asking, Grid(2, 2, ray_frames(targets, 4)))

    there, elsewhere = read(inputs, targets), read(cameras(seed=9), targets)
    assert (there - elsewhere).abs().max() > 1e-3
    torch.testing.assert_close(read(turned(inputs), turned(targets)), there, rtol=1e-7, atol=1e-9)


def test_precision_of_what_is_moved_is_kept_under_autocast():
    frames = RayFrames(*(x.float() for x in ray_frames(cameras(), 4)))
    x = torch.randn(4, frames.to_ray.shape[1], 8)
    with torch.autocast("cpu", torch.bfloat16):
        again = to_ray(frames, to_world(frames, x))
    torch.testing.assert_close(again, x, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "config", [LaCTConfig(head_dim=8, ray_frames=True), SoftmaxConfig(head_dim=8, ray_frames=True)]
)
def test_rays_that_were_not_given_are_asked_for(config):
    memory = build_memory(16, config)
    with pytest.raises(ValueError, match="give a grid with frames"):
        memory.update_state(memory.init_state(1), torch.zeros(1, 4, 16), grid=Grid(2, 2))


@pytest.mark.parametrize("kind", [LaCTConfig, SoftmaxConfig])
def test_heads_must_be_whole_homogeneous_coordinates(kind):
    with pytest.raises(ValueError, match="multiple of 4, got 6"):
        kind(head_dim=6, ray_frames=True)
