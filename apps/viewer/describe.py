"""A scene as the browser is told of it."""

from __future__ import annotations

from typing import Any

from apps.viewer.scenes import OpenScene
from nvs import LaCT


def describe(scene: OpenScene) -> dict[str, Any]:
    """All that the page shows of a scene, as plain values; sizes are [h, w], matrices 16 numbers row by row."""
    cameras, place = scene.cameras(), scene.surroundings
    h, w = cameras.image_size
    lenses = (cameras.intrinsics / cameras.intrinsics.new_tensor([w, h, w, h])).tolist()
    matrices = cameras.c2w.flatten(1).tolist()
    world = scene.state.with_batch().world_to_scene[0]
    inputs, held_out = set(scene.inputs), set(scene.held_out)
    frames = scene.capture.frames if scene.capture else None
    photos = [
        {
            "i": i,
            "name": frames[i].name if frames else f"photo {i}",
            "role": "input" if i in inputs else "held-out" if i in held_out else "unused",
            "c2w": matrices[i],
            "lens": lenses[i],
            "pixels": frames is not None,
        }
        for i in range(len(matrices))
    ]
    first = min(scene.inputs)
    return {
        "id": scene.key,
        "capture": scene.capture_key,
        "name": scene.name,
        "format": scene.format,
        "source": scene.source,
        "model": describe_model(scene.model),
        "size": list(scene.size),
        "sizes": [list(size) for size in scene.full_sizes],
        "patch": scene.model.config.patch_size,
        "world_to_scene": world.flatten().tolist(),
        "centre": place.centre,
        "up": place.up,
        "radius": place.radius,
        "home": {"c2w": matrices[first], "lens": lenses[first]},
        "photos": photos,
        "editable": scene.capture is not None,
        "extendable": True,
        "hints": hints(scene),
        "warnings": list(scene.warnings),
    }


def describe_model(model: LaCT) -> dict[str, Any] | None:
    """What a model was trained on; None where that is not known."""
    trained = model.trained
    if trained is None:
        return None
    return {
        "description": trained.description,
        "steps": trained.steps,
        "views": list(trained.views),
        "image_size": list(trained.image_size),
        "fov": list(trained.fov_degrees),
        "normalization": trained.normalization,
        "background": trained.background,
    }


def hints(scene: OpenScene) -> list[str]:
    """One sentence for each way in which the scene is outside of what the model was trained on."""
    if scene.trained is None:
        return ["Nothing is known about what this model was trained on."]
    count = len(scene.inputs) if scene.capture else scene.state.num_inputs
    found = scene.trained.warnings_for(scene.state.cameras, count)
    return [text[0].upper() + text[1:] + "." for text in found]
