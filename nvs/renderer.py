"""Rendering a path of cameras from one scene state, a few at a time and at any image size."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from data import Cameras, UserError
from nvs.model import LaCT
from nvs.scene_state import SceneState


class Renderer:
    """Renders cameras of one scene in order, `views_per_batch` at a time: more is faster and takes more memory.

    `slice_tokens` bounds the tokens worked on at a time within such a batch.
    """

    def __init__(
        self, model: LaCT, state: SceneState, views_per_batch: int = 8, slice_tokens: int | None = None
    ) -> None:
        if views_per_batch < 1:
            raise UserError(f"{views_per_batch} views per batch is not possible: give 1 or more.")
        if state.batched and len(state.world_to_scene) != 1:
            raise ValueError(f"a renderer shows one scene, but the state holds {len(state.world_to_scene)}")
        self.model, self.state = model, state
        self.views_per_batch, self.slice_tokens = views_per_batch, slice_tokens

    def frames(self, cameras: Cameras) -> Iterator[Float[Tensor, "3 h w"]]:
        """One picture (0..1, float32) per camera, in order; cameras are in the scene's frame and of any image size.

        The network sees whole patches: a size that cannot be cut into them is widened evenly on all sides, and what
        was added is cut off again, so that the picture shows exactly what the camera sees.
        """
        (h, w), patch = cameras.image_size, self.model.config.patch_size
        high, wide = (-(-side // patch) * patch for side in (h, w))
        top, left = (high - h) // 2, (wide - w) // 2
        widened = cameras.crop(-top, -left, (high, wide))
        for start in range(0, cameras.num_views, self.views_per_batch):
            images = self._render(widened.select(slice(start, start + self.views_per_batch)))
            yield from images[:, :, top : top + h, left : left + w].float()

    @torch.inference_mode()
    def _render(self, cameras: Cameras) -> Float[Tensor, "v 3 h w"]:
        cameras = cameras.to(self.state.cameras.c2w)
        if self.state.batched:
            return self.model.render(self.state, cameras.add_batch(), self.slice_tokens)[0]
        return self.model.render(self.state, cameras, self.slice_tokens)


def reframe(cameras: Cameras, image_size: tuple[int, int]) -> Cameras:
    """The same cameras at another size (h, w): scaled until they cover it, the rest cropped evenly; pixels keep shape.

    This is what loading does to photos, so no camera comes to see a wider field of view than before.
    """
    (h, w), (new_h, new_w) = cameras.image_size, image_size
    if min(image_size) < 1:
        raise UserError(f"An image of {new_h}x{new_w} pixels is not possible: give a height and a width of 1 or more.")
    scale = max(new_h / h, new_w / w)
    shift = cameras.intrinsics.new_tensor([0.0, 0.0, (w * scale - new_w) / 2, (h * scale - new_h) / 2])
    return Cameras(cameras.c2w, cameras.intrinsics * scale - shift, image_size)
