"""Training batches of procedural scenes: reproducible, in the frame of captures, never seen in validation."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

import data
from data import ProceduralConfig, procedural_views
from data.config import DataConfig
from data.datamodule import BatchStream, SceneData
from data.procedural_batches import FIRST_TRAINED, ProceduralBatchMaker

CONFIG = DataConfig(
    source="procedural",
    image_size=(16, 16),
    batch_size=3,
    input_views=(2, 3),
    target_views=(1, 2),
    procedural=ProceduralConfig(shapes=(1, 3)),
)


def equal(a: data.Views, b: data.Views) -> bool:
    return torch.equal(a.c2w, b.c2w) and torch.equal(a.images, b.images) and torch.equal(a.intrinsics, b.intrinsics)


def test_batch_is_a_function_of_seed_step_and_rank():
    augmented = replace(CONFIG, rotate_world=True, scale_jitter=0.3)
    first, second = ProceduralBatchMaker(augmented, 5), ProceduralBatchMaker(augmented, 5)
    first.batch(3)  # what was made before does not matter
    assert equal(first.batch(7, 1).inputs, second.batch(7, 1).inputs)
    assert equal(first.batch(7, 1).targets, second.batch(7, 1).targets)
    draws = [first.draw(7, 1), first.draw(8, 1), first.draw(7, 0), ProceduralBatchMaker(augmented, 6).draw(7, 1)]
    assert all(a != b for i, a in enumerate(draws) for b in draws[:i])
    assert all(d.index >= FIRST_TRAINED for draw in draws for d in draw)


def test_augmentation_and_sizes_work_on_random_scenes():
    config = replace(CONFIG, image_sizes=[(8, 16)], flip_share=1.0, color_jitter=0.4, background="#3366ff")
    maker = ProceduralBatchMaker(config, 2)
    batches = {step: maker.batch(step) for step in range(8)}
    assert {b.inputs.image_size for b in batches.values()} == {(16, 16), (8, 16)}
    step = next(s for s, b in batches.items() if b.inputs.image_size == (16, 16))
    draw, batch = maker.draw(step)[0], batches[step]
    views = procedural_views(maker.scenes, draw.index, 5, (16, 16)).select(draw.inputs)
    alpha = views.alpha
    assert alpha is not None and draw.augmentation.mirrored and batch.inputs.alpha is not None
    assert torch.equal(batch.inputs.alpha[0], alpha.flip(-1))
    # The background keeps its colour, what stands before it does not.
    outside, inside = (alpha.flip(-1) == edge for edge in (0, 1))
    color = torch.tensor([0.2, 0.4, 1.0]).view(3, 1, 1).expand_as(views.images)
    assert torch.equal(batch.inputs.images[0][outside.expand_as(color)], color[outside.expand_as(color)])
    change = (batch.inputs.images[0] - views.images.flip(-1)).abs()
    assert change[inside.expand_as(change)].mean() > 0.01


def test_views_are_disjoint_and_counts_span_their_ranges():
    maker = ProceduralBatchMaker(CONFIG, 0)
    draws = [maker.draw(step) for step in range(60)]
    assert {(len(d.inputs), len(d.targets)) for draw in draws for d in draw} == {(2, 1), (2, 2), (3, 1), (3, 2)}
    assert all(not set(d.inputs) & set(d.targets) for draw in draws for d in draw)
    batch = maker.batch(0)
    assert batch.inputs.images.shape == (3, batch.inputs.num_views, 3, 16, 16)
    assert batch.targets.alpha is not None and batch.targets.alpha.shape[1] == batch.targets.num_views
    overlapping = ProceduralBatchMaker(replace(CONFIG, targets_may_be_inputs=True, target_views=(2, 3)), 0)
    assert any(set(d.inputs) & set(d.targets) for step in range(5) for d in overlapping.draw(step))


@pytest.mark.parametrize("normalization", ["focus", "mean_pose", "none"])
def test_batches_show_the_scenes_in_the_frame_of_captures(normalization):
    maker = ProceduralBatchMaker(replace(CONFIG, normalization=normalization, background="black"), 1)
    draws, batch = maker.draw(0), maker.batch(0)
    for item, draw in enumerate(draws):
        views = procedural_views(maker.scenes, draw.index, 5, (16, 16))
        assert torch.equal(batch.inputs.images[item], views.images[draw.inputs])
        assert torch.equal(batch.targets.images[item], views.images[draw.targets])
        assert batch.inputs.world_to_scene is not None
        fitted = data.fit_normalization(views.c2w[draw.inputs].double().numpy(), normalization)
        np.testing.assert_allclose(batch.inputs.world_to_scene[item].numpy(), fitted)
        moved = views.transform(torch.from_numpy(fitted))
        torch.testing.assert_close(batch.targets.c2w[item], moved.c2w[draw.targets])
    if normalization == "focus":
        assert batch.inputs.positions.norm(dim=-1).mean(-1) == pytest.approx([2.7] * 3, abs=0.2)
    assert batch.inputs.images[:, :, :, 0, 0].amin() < 0.01


def test_two_workers_make_up_the_stream_of_one(monkeypatch):
    alone = list(islice(BatchStream(ProceduralBatchMaker(CONFIG, 0), 4, 0), 4))
    module = SceneData(replace(CONFIG, workers=2), 0)
    module.setup()
    assert not module.scenes
    monkeypatch.setattr(module, "trainer", None)
    from_start = list(islice(module.train_dataloader(), 5))
    assert equal(from_start[4].inputs, alone[0].inputs)
    assert not equal(from_start[3].inputs, alone[0].inputs)


def test_validation_shows_scenes_that_training_never_draws():
    module = SceneData(replace(CONFIG, validation_max_scenes=2, validation_views=(2, 3)), 9)
    module.setup()
    items = list(module.val_dataloader())
    assert [item.name for item in items] == ["procedural 0", "procedural 1"]
    assert all(item.held_out for item in items)
    assert [(i.inputs.num_views, i.targets.num_views) for i in items] == [(2, 3)] * 2
    views = procedural_views(CONFIG.procedural, 1, 5, (16, 16))
    assert torch.equal(items[1].targets.images[0], views.images[2:])


def test_captures_validate_a_model_of_random_scenes(write_capture):
    capture = str(write_capture())
    module = SceneData(replace(CONFIG, validation_scenes=[capture], validation_views=(2, 3)), 0)
    module.setup()
    assert [item.name for item in module.val_dataloader()] == ["balls"]


def test_captures_beside_random_scenes_are_refused():
    with pytest.raises(ValueError, match="leave out"):
        DataConfig(source="procedural", scenes=["a"])
