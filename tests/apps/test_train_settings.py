"""What a checkpoint says of its training data."""

import numpy as np
import pytest

import data
from apps.train_settings import trained_range
from data.config import DataConfig
from data.datamodule import SceneData


def test_fields_of_view_are_those_of_the_size_that_a_capture_is_shown_at(write_capture):
    capture = write_capture("wide", 12, (32, 64))
    module = SceneData(DataConfig([str(capture)], image_size=(8, 8), image_sizes=[(8, 16)]))
    module.setup()
    scene = data.open_scene(capture)
    fx = scene.cameras(range(12), (8, 16)).intrinsics[:, 0].numpy()
    angles = np.degrees(2 * np.arctan(16 / 2 / fx))
    told = trained_range(module.scenes, module.config).fov_degrees
    assert told == pytest.approx((angles.min(), angles.max()), abs=1e-3)
