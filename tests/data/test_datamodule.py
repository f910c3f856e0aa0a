"""Training batches: reproducible, drawn from the right photos, in consistent frames."""

import json
import math
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

import data
from data.augmentation import Augmentation, move_world
from data.batches import BatchMaker, part_photos
from data.config import DataConfig
from data.datamodule import BatchStream, SceneData
from data.finding import find_scenes


@pytest.fixture
def scenes(write_capture):
    return [str(write_capture(name, frames)) for name, frames in (("one", 8), ("two", 10))]


def maker(scenes, seed=0, **settings) -> BatchMaker:
    config = DataConfig(
        **{"scenes": scenes, "image_size": (16, 16), "batch_size": 3, "input_views": (2, 3), "target_views": (1, 2)}
        | settings
    )
    module = SceneData(config, seed)
    module.setup()
    return BatchMaker(module.scenes, config, seed)


def equal(a: data.Views, b: data.Views) -> bool:
    return torch.equal(a.c2w, b.c2w) and torch.equal(a.images, b.images) and torch.equal(a.intrinsics, b.intrinsics)


def test_batch_is_a_function_of_seed_step_and_rank(scenes):
    augmented = {"rotate_world": True, "scale_jitter": 0.3}
    first, second = maker(scenes, **augmented), maker(scenes, **augmented)
    first.batch(3)  # what was loaded before does not matter
    assert equal(first.batch(7, 1).inputs, second.batch(7, 1).inputs)
    assert equal(first.batch(7, 1).targets, second.batch(7, 1).targets)
    draws = [first.draw(7, 1), first.draw(8, 1), first.draw(7, 0), maker(scenes, seed=1, **augmented).draw(7, 1)]
    assert all(a != b for i, a in enumerate(draws) for b in draws[:i])


def test_views_are_disjoint_counts_span_their_ranges_and_shapes_agree(scenes):
    made = maker(scenes)
    seen = set()
    for step in range(60):
        draws = made.draw(step)
        counts = {(len(d.inputs), len(d.targets)) for d in draws}
        assert len(counts) == 1
        seen |= counts
        assert all(not set(d.inputs) & set(d.targets) for d in draws)
    assert seen == {(2, 1), (2, 2), (3, 1), (3, 2)}
    batch = made.batch(0)
    assert batch.inputs.images.shape[:2] == batch.inputs.c2w.shape[:2]
    assert batch.inputs.images.shape[0] == 3 and batch.inputs.image_size == (16, 16)
    overlapping = maker(scenes, targets_may_be_inputs=True, input_views=(6, 6), target_views=(6, 6))
    assert all(set(d.inputs) & set(d.targets) for step in range(5) for d in overlapping.draw(step))


def test_two_workers_draw_different_batches_that_make_up_the_stream_of_one(scenes, monkeypatch):
    single = list(islice(BatchStream(maker(scenes), 5, 0), 4))
    for workers in (0, 2):
        module = SceneData(
            DataConfig(scenes, image_size=(16, 16), batch_size=3, input_views=(2, 3), target_views=(1, 2))
        )
        module.setup()
        stream = BatchStream(BatchMaker(module.scenes, module.config, 0), 5, 0)
        loaded = list(islice(torch.utils.data.DataLoader(stream, batch_size=None, num_workers=workers), 4))
        assert all(equal(a.inputs, b.inputs) for a, b in zip(loaded, single, strict=True))
    assert not equal(single[0].inputs, single[1].inputs)


def test_held_out_photos_are_never_drawn(scenes, write_capture):
    module = SceneData(DataConfig(scenes, holdout_every=4, input_views=(1, 2), target_views=(1, 1)))
    module.setup()
    assert [s.held_out for s in module.scenes] == [[2, 6], [2, 6]]
    made = BatchMaker(module.scenes, module.config, 0)
    drawn = {i for step in range(50) for d in made.draw(step) for i in (*d.inputs, *d.targets)}
    assert drawn == {0, 1, 3, 4, 5, 7, 8, 9}


def test_the_files_own_split_is_kept():
    toy = next(s for s in data.bundled_scenes().values() if "toy" in str(s))
    module = SceneData(DataConfig(scene=str(toy), holdout_every=2))
    module.setup()
    split = data.open_scene(toy).split
    assert module.scenes[0].train == split["train"]
    assert module.scenes[0].held_out == split["val"]
    assert not set(split["train"]) & {*split["val"], *split["test"]}


def test_normalisation_knows_the_input_views_only(scenes):
    made = maker(scenes)
    draw, batch = made.draw(4)[1], made.batch(4)
    scene = data.open_scene(scenes[draw.scene]).normalize(draw.inputs, "focus")
    for views, indices in ((batch.inputs, draw.inputs), (batch.targets, draw.targets)):
        torch.testing.assert_close(views.c2w[1], scene.cameras(indices, (16, 16)).c2w)
        torch.testing.assert_close(views.images[1], scene.load(indices, (16, 16)).images)
    assert batch.inputs.positions.norm(dim=-1).mean(1) == pytest.approx(2.7, rel=1e-4)


@pytest.mark.parametrize("up", ["y", "z"])
def test_moved_world_keeps_what_cameras_see(scenes, up):
    views = data.open_scene(scenes[0]).load([0, 1, 4], (16, 16))
    moved = move_world(views, Augmentation(angle=0.7, scale=1.3), up)
    axis = {"y": [0.0, 1.0, 0.0], "z": [0.0, 0.0, 1.0]}[up]
    turn = torch.matrix_exp(0.7 * torch.cross(torch.tensor(axis).expand(3, 3), torch.eye(3), dim=-1).T)
    origins, directions = views.rays()
    moved_origins, moved_directions = moved.rays()
    torch.testing.assert_close(moved_origins, 1.3 * origins @ turn.T, atol=1e-5, rtol=0)
    torch.testing.assert_close(moved_directions, directions @ turn.T, atol=1e-5, rtol=0)
    world = torch.tensor(data.open_scene(scenes[0]).frames[4].c2w)
    in_scene = moved.world_to_scene @ world[:, 3]
    torch.testing.assert_close(in_scene[:3].float(), moved.positions[2], atol=1e-5, rtol=0)
    assert torch.equal(moved.images, views.images)


def test_augmentation_reaches_its_range(scenes):
    made = maker(scenes, rotate_world=True, scale_jitter=0.5)
    draws = [d for step in range(100) for d in made.draw(step)]
    angles, scales = (np.array([getattr(d.augmentation, name) for d in draws]) for name in ("angle", "scale"))
    assert angles.min() < 0.1 and angles.max() > 2 * math.pi - 0.1
    assert 1 / 1.5 <= scales.min() < 0.7 and 1.45 < scales.max() <= 1.5
    assert abs(np.log(scales).mean()) < 0.05


def test_weights_are_shares_of_the_draws(scenes):
    made = maker(scenes, weights=[1.0, 3.0])
    draws = [d.scene for step in range(400) for d in made.draw(step)]
    assert np.mean(draws) == pytest.approx(0.75, abs=4 * math.sqrt(0.75 * 0.25 / len(draws)))


def test_validation_covers_held_out_and_training_photos_once(scenes):
    views = {"input_views": (2, 2), "target_views": (1, 1), "validation_views": (3, 5)}
    module = SceneData(DataConfig(scenes, image_size=(16, 16), holdout_every=4, **views))
    module.setup()
    items = list(module.val_dataloader())
    assert [(i.name, i.held_out) for i in items] == [("one", True), ("one", False), ("two", True), ("two", False)]
    assert [i.targets.num_views for i in items] == [2, 3, 2, 5]
    assert all(i.inputs.images.shape == (1, 3, 3, 16, 16) for i in items)


def test_scenes_are_found_by_path_pattern_and_list(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    listing = tmp_path / "some.txt"
    listing.write_text("a\n\n# not this one\nc\n")
    assert find_scenes(str(tmp_path / "a")) == [tmp_path / "a"]
    assert find_scenes(str(tmp_path / "[ab]")) == [tmp_path / "a", tmp_path / "b"]
    assert find_scenes(str(listing)) == [tmp_path / "a", tmp_path / "c"]
    with pytest.raises(data.UserError, match="pattern"):
        find_scenes(str(tmp_path / "x*"))
    with pytest.raises(data.UserError, match=r"none\.txt"):
        find_scenes(str(tmp_path / "none.txt"))


def test_folder_of_captures_stands_for_all_folders_in_it(scenes, tmp_path):
    (tmp_path / "broken").mkdir()
    (tmp_path / ".hidden").mkdir()
    assert find_scenes(tmp_path) == [tmp_path / name for name in ("broken", "one", "two")]
    assert find_scenes(tmp_path / "one") == [tmp_path / "one"]


def test_validation_on_a_single_photo_is_refused(scenes, write_capture):
    views = {"input_views": (2, 2), "target_views": (1, 1)}
    single = str(write_capture("single", 1))
    with pytest.raises(data.UserError, match=r"single of data\.validation_scenes has one photo"):
        SceneData(DataConfig(scenes, validation_scenes=[single], **views)).setup()
    pair = SceneData(DataConfig(scenes, validation_scenes=[str(write_capture("pair", 2))], **views))
    pair.setup()
    assert [(i.inputs.num_views, i.targets.num_views) for i in pair.val_dataloader()] == [(1, 1)]


def test_photos_that_a_capture_does_not_name_for_training_are_held_out(scenes):
    capture = Path(scenes[0])
    content = json.loads((capture / "transforms.json").read_text())
    content["train_filenames"] = [f["file_path"] for f in content["frames"][::2]]
    (capture / "transforms.json").write_text(json.dumps(content))
    parted = part_photos(data.open_scene(capture), holdout_every=2)
    count = len(content["frames"])
    assert parted.train == list(range(0, count, 2)) and parted.held_out == list(range(1, count, 2))


def test_captures_that_cannot_be_used_are_left_out_and_told(scenes, write_capture, tmp_path):
    write_capture("few", 2)
    (tmp_path / "broken").mkdir()
    module = SceneData(DataConfig([str(tmp_path / "*")], input_views=(2, 4), target_views=(1, 1)))
    module.setup()
    assert [s.scene.name for s in module.scenes] == ["one", "two"]
    assert len(module.warnings) == 2
    assert "broken" in " ".join(module.warnings) and "few" in " ".join(module.warnings)
    with pytest.raises(data.UserError, match="5 training photos are needed"):
        SceneData(DataConfig([str(tmp_path / "few")], input_views=(2, 4), target_views=(1, 1))).setup()


@pytest.mark.parametrize("workers", [0, 1])
def test_photo_that_vanishes_is_named(scenes, workers):
    module = SceneData(DataConfig(scene=scenes[0], input_views=(4, 4), target_views=(4, 4), workers=workers))
    module.setup()
    (module.scenes[0].scene.path / "images/003.png").unlink()
    with pytest.raises(data.UserError) as caught:
        next(iter(module.train_dataloader()))
    assert "003.png cannot be used" in str(caught.value).strip().splitlines()[-1]


@pytest.mark.parametrize(
    "settings",
    [
        {"input_views": (0, 2)},
        {"target_views": (3, 2)},
        {"batch_size": 0},
        {"holdout_every": 1},
        {"workers": -1},
        {"image_size": (0, 8)},
        {"image_sizes": [(8, 0)]},
        {"flip_share": 1.5},
        {"color_jitter": -0.1},
        {"roll_degrees": float("nan")},
        {"frame_distance": (0, 20)},
        {"frame_distance": (9, 8)},
        {"frame_distance": (1, 8)},  # ten views are asked for
        {"shard_shuffle": 0},
        {"shards": ["a"]},
        {"source": "shards", "scenes": ["a"]},
        {"source": "shards", "image_sizes": [(8, 16)]},
        {"source": "procedural", "input_selection": "kmeans"},
        {"source": "procedural", "frame_distance": (1, 20)},
        {"scenes": ["a"], "weights": [1.0, 2.0]},
        {"scenes": ["a"], "weights": [0.0]},
    ],
)
def test_settings_that_cannot_work_are_refused(settings):
    with pytest.raises(ValueError, match=r"data\."):
        DataConfig(**settings)
