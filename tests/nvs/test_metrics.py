"""PSNR, SSIM and the colour measure against reference numbers, other libraries and closed forms."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from data import UserError
from nvs.metrics import chroma_error, psnr, psnr_inside, ssim

CASE = "cases/13-metrics-reference-offline"


@pytest.fixture
def pairs(shared):
    """Predictions and photos of the reference pairs, in 0..1, with the expected numbers."""
    folder = shared / CASE

    def load(name):
        files = sorted((folder / "input" / name).glob("*.png"))
        images = [np.asarray(Image.open(f).convert("RGB"), dtype=np.float32) / 255 for f in files]
        return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)

    return load("pred"), load("gt"), json.loads((folder / "expected.json").read_text())


def test_psnr_of_the_reference_pairs(pairs):
    pred, target, expected = pairs
    values = psnr(pred, target)
    assert values.shape == (5,)
    for value, entry in zip(values.tolist(), expected["per_image"], strict=True):
        assert value == pytest.approx(100.0 if entry["psnr"] is None else entry["psnr"], abs=0.01)
    mean = values[1:].mean().item()
    assert mean == pytest.approx(expected["mean_of_per_image_psnr_without_the_identical_pair"], abs=0.01)
    assert mean > expected["psnr_of_the_pooled_error_without_the_identical_pair"] + 10


def test_identical_images_do_not_spoil_the_mean(pairs):
    pred, target, _ = pairs
    values = psnr(pred, target)
    assert values[0] == 100.0
    assert torch.isfinite(values.mean())


def test_ssim_of_the_reference_pairs_is_the_reflect_padded_variant(pairs):
    pred, target, expected = pairs
    values = ssim(pred, target).tolist()
    for value, entry in zip(values, expected["per_image"], strict=True):
        assert value == pytest.approx(entry["ssim_reflect_padded"], abs=1e-4)
    assert np.mean(values) == pytest.approx(expected["mean_ssim"]["reflect_padded"], abs=1e-4)


def test_ssim_agrees_with_torchmetrics():
    from torchmetrics.functional.image import structural_similarity_index_measure

    generator = torch.Generator().manual_seed(0)
    target = torch.rand(3, 3, 24, 37, generator=generator)
    pred = (target + 0.2 * torch.randn(target.shape, generator=generator)).clamp(0, 1)
    other = structural_similarity_index_measure(pred, target, data_range=1.0, reduction="none")
    torch.testing.assert_close(ssim(pred, target), other, atol=1e-5, rtol=0)


def test_leading_axes_are_kept():
    pred, target = torch.rand(2, 4, 3, 16, 20), torch.rand(2, 4, 3, 16, 20)
    mask = torch.ones(2, 4, 1, 16, 20)
    for values in (psnr(pred, target), ssim(pred, target), chroma_error(pred, target), psnr_inside(pred, target, mask)):
        assert values.shape == (2, 4)
    torch.testing.assert_close(ssim(pred, target)[1, 2], ssim(pred[1, 2], target[1, 2]))


def test_ssim_of_tiny_images_is_refused_in_a_sentence():
    with pytest.raises(UserError, match="at least 11x11 pixels"):
        ssim(torch.rand(1, 3, 10, 64), torch.rand(1, 3, 10, 64))
    assert ssim(torch.rand(1, 3, 11, 11), torch.rand(1, 3, 11, 11)).isfinite().all()


def test_psnr_inside_counts_only_the_mask():
    target = torch.zeros(1, 3, 8, 8)
    pred = target.clone()
    pred[..., :4] = 0.1
    left, right = torch.zeros(1, 1, 8, 8), torch.zeros(1, 1, 8, 8)
    left[..., :4], right[..., 4:] = 1, 1
    assert psnr_inside(pred, target, left).item() == pytest.approx(20.0, abs=1e-4)
    assert psnr_inside(pred, target, right).item() == 100.0
    torch.testing.assert_close(psnr_inside(pred, target, torch.ones_like(left)), psnr(pred, target))
    assert psnr_inside(pred, target, torch.zeros_like(left)).isnan()


def test_nan_is_not_hidden():
    pred = torch.full((1, 3, 16, 16), float("nan"))
    assert psnr(pred, torch.zeros_like(pred)).isnan()


def test_chroma_error_agrees_with_kornia():
    from kornia.color import rgb_to_lab

    generator = torch.Generator().manual_seed(1)
    pred, target = torch.rand(4, 3, 9, 7, generator=generator), torch.rand(4, 3, 9, 7, generator=generator)
    expected = (rgb_to_lab(pred) - rgb_to_lab(target))[:, 1:].square().sum(dim=1).sqrt().mean(dim=(1, 2))
    torch.testing.assert_close(chroma_error(pred, target), expected, atol=0.02, rtol=0)


def test_chroma_error_sees_missing_colour_and_not_brightness():
    colour = torch.tensor([0.7, 0.3, 0.2]).view(1, 3, 1, 1).expand(1, 3, 8, 8)
    grey = colour.mean(dim=1, keepdim=True).expand(1, 3, 8, 8)
    assert chroma_error(grey, colour).item() > 25
    assert chroma_error(grey * 0.5, grey).item() < 0.1


def test_gradients_are_finite():
    target = torch.rand(1, 3, 16, 16)
    for metric in (psnr, ssim):
        pred = (target + 0.01).requires_grad_()
        (gradient,) = torch.autograd.grad(metric(pred, target).sum(), pred)
        assert gradient.isfinite().all()
