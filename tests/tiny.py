"""A tiny model with lively weights, and random views around it."""

import torch

import nvs
from data import Views
from nvs.memory import LaCTConfig

TINY = nvs.ModelConfig(
    dim=32, layers=3, attention_head_dim=16, memory=LaCTConfig(head_dim=16, newton_schulz_dtype="float32")
)


def make_model(config: nvs.ModelConfig = TINY, seed: int = 0, dtype: torch.dtype = torch.float32) -> nvs.LaCT:
    torch.manual_seed(seed)
    model = nvs.LaCT(config).to(dtype)
    for parameter in model.parameters():  # the small standard init hides mistakes
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.15)
    return model.eval()


def make_views(count: int, size: tuple[int, int] = (16, 24), batch: int | None = None, seed: int = 0) -> Views:
    cameras = nvs.trajectory.orbit(None, count, radius=2.7, elevation=20.0 + seed, image_size=size)
    generator = torch.Generator().manual_seed(seed)
    views = Views(
        cameras.c2w.float(), cameras.intrinsics.float(), size, torch.rand(count, 3, *size, generator=generator)
    )
    if batch is None:
        return views
    moved = [views.select(torch.randperm(count, generator=generator)) for _ in range(batch)]
    return Views(
        torch.stack([v.c2w for v in moved]),
        torch.stack([v.intrinsics for v in moved]),
        size,
        torch.rand(batch, count, 3, *size, generator=generator),
    )
