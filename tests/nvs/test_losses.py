"""The pixel loss against NumPy."""

import numpy as np
import pytest
import torch

from nvs.losses import pixel_loss


@pytest.fixture
def pictures():
    rng = np.random.default_rng(0)
    return rng.random((2, 3, 3, 4, 5)), rng.random((2, 3, 3, 4, 5)), rng.random((2, 3, 1, 4, 5))


def test_without_weights_it_is_the_mean_squared_error(pictures):
    pred, target, alpha = pictures
    expected = ((pred - target) ** 2).mean()
    for given in (None, torch.tensor(alpha)):
        assert pixel_loss(torch.tensor(pred), torch.tensor(target), given).item() == pytest.approx(expected)


def test_foreground_counts_as_often_as_asked(pictures):
    pred, target, alpha = pictures
    weight = np.broadcast_to(1 - alpha + 4 * alpha, pred.shape)
    expected = np.average((pred - target) ** 2, weights=weight)
    loss = pixel_loss(*(torch.tensor(x) for x in pictures), foreground_weight=4.0)
    assert loss.item() == pytest.approx(expected)
