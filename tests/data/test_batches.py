"""What a training batch shows: photos near in time, inputs well spread, sizes that fit the photos."""

import numpy as np
import pytest
import torch

import data
from data.batches import BatchMaker, nearest_size
from data.config import DataConfig
from data.datamodule import SceneData


@pytest.fixture
def clip(write_capture):
    return str(write_capture("clip", 20, (12, 16)))


def maker(scenes, **settings) -> BatchMaker:
    config = DataConfig(
        **{"scenes": scenes, "image_size": (8, 8), "batch_size": 2, "input_views": (2, 3), "target_views": (1, 2)}
        | settings
    )
    module = SceneData(config, 0)
    module.setup()
    return BatchMaker(module.scenes, config, 0)


def test_clips_are_drawn_within_the_distance_between_their_first_and_last_input(clip):
    made = maker([clip], frame_distance=(6, 9))
    spans = set()
    for step in range(100):
        for draw in made.draw(step):
            first, last = min(draw.inputs), max(draw.inputs)
            spans.add(last - first)
            assert all(first < t < last for t in draw.targets)
            assert not set(draw.inputs) & set(draw.targets)
    assert spans == {6, 7, 8, 9}


def test_held_out_photos_count_as_time_but_are_not_drawn(clip):
    made = maker([clip], frame_distance=(4, 6), holdout_every=4, input_views=(2, 2), target_views=(1, 1))
    draws = [d for step in range(50) for d in made.draw(step)]
    assert {max(d.inputs) - min(d.inputs) for d in draws} <= {4, 5, 6}
    assert not {i for d in draws for i in d.inputs + d.targets} & {2, 6, 10, 14, 18}


def test_clips_that_are_too_short_are_left_out(clip, write_capture):
    short = str(write_capture("short", 8, (12, 16)))
    module = SceneData(DataConfig([clip, short], frame_distance=(10, 12), input_views=(2, 3)), 0)
    with pytest.raises(data.UserError, match=r"short has no capture .* at most 12 and at least 10 frames apart"):
        module.setup()


@pytest.mark.parametrize("selection", ["kmeans", "spread"])
def test_inputs_stand_farther_apart_than_by_chance(write_capture, selection):
    ring = str(write_capture("ring", 24, (12, 16)))

    def nearest(**settings):
        made = maker([ring], input_views=(4, 4), target_views=(2, 2), **settings)
        positions = made.scenes[0].scene.world_c2w[:, :2, 3]
        found = []
        for step in range(40):
            for draw in made.draw(step):
                assert not set(draw.inputs) & set(draw.targets) and len(set(draw.inputs)) == 4
                some = positions[draw.inputs]
                apart = np.linalg.norm(some[:, None] - some, axis=-1) + 9 * np.eye(4)
                found.append(apart.min())
        return np.mean(found)

    # Four on a ring of radius 2.6 can be sqrt(2) x 2.6 = 3.7 apart; one of each group may be next to one of the next.
    assert nearest(input_selection=selection) > {"spread": 2.6, "kmeans": 1.5 * nearest()}[selection]


def test_photos_are_shown_at_the_size_nearest_to_their_aspect(write_capture):
    wide, high, square = (str(write_capture(n, 8, s)) for n, s in (("w", (16, 32)), ("h", (32, 16)), ("s", (16, 17))))
    sizes = [(8, 16), (16, 8)]
    made = maker([wide, high, square], image_sizes=sizes, weights=[1, 1, 2], batch_size=3)
    draws = {step: made.draw(step) for step in range(300)}
    assert all(len({d.image_size for d in some}) == 1 for some in draws.values())
    shown = {(d.scene, d.image_size) for some in draws.values() for d in some}
    assert shown == {(0, (8, 16)), (1, (16, 8)), (2, (8, 8))}
    shares = [np.mean([some[0].image_size == size for some in draws.values()]) for size in ((8, 8), *sizes)]
    assert shares == pytest.approx([0.5, 0.25, 0.25], abs=0.09)
    for step in range(4):
        batch = made.batch(step)
        h, w = draws[step][0].image_size
        assert batch.inputs.images.shape[-2:] == (h, w) == batch.inputs.image_size
        scene = made.scenes[draws[step][0].scene].scene.normalize(draws[step][0].inputs)
        torch.testing.assert_close(batch.inputs.images[0], scene.load(draws[step][0].inputs, (h, w)).images)
    assert nearest_size(data.open_scene(wide), [(8, 8), *sizes]) == (8, 16)


def test_sizes_of_one_aspect_share_the_captures(write_capture):
    made = maker([str(write_capture("s", 8, (16, 16)))], image_sizes=[(16, 16)])
    assert {d.image_size for step in range(30) for d in made.draw(step)} == {(8, 8), (16, 16)}


def test_a_batch_is_varied_by_capture_not_by_view(write_capture):
    capture = str(write_capture("balls", 8, (48, 64), alpha=True))
    made = maker([capture], color_jitter=0.1, flip_share=0.5, roll_degrees=20, background="black", image_size=(48, 64))
    for step in range(6):
        for item, draw in enumerate(made.draw(step)):
            scene = made.scenes[0].scene.normalize(draw.inputs)
            views = scene.load(draw.inputs, (48, 64))
            batch = made.batch(step).inputs
            before = views.images.flip(-1) if draw.augmentation.mirrored else views.images
            alpha = views.alpha.flip(-1) if draw.augmentation.mirrored else views.alpha
            assert torch.equal(batch.alpha[item], alpha)
            # One linear map explains the colours of all views together, where nothing is clipped.
            color = batch.images[item].permute(0, 2, 3, 1)
            whole = (alpha[:, 0] == 1) & ((color > 0.02) & (color < 0.98)).all(-1)
            first = before.permute(0, 2, 3, 1)[whole].double()
            first = torch.cat([first, torch.ones(len(first), 1)], dim=1)
            assert len(first) > 50
            fitted = torch.linalg.lstsq(first, color[whole].double(), driver="gelsd").solution
            assert (first @ fitted - color[whole]).abs().max() < 1e-4
