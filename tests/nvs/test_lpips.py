"""LPIPS against torchmetrics' own arithmetic, with a weights file made on the spot; no download ever."""

import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from data import UserError
from nvs import lpips
from nvs.lpips import Lpips, Unavailable, load_lpips

CONVOLUTIONS = {0: (3, 64), 2: (64, 64), 5: (64, 128), 7: (128, 128), 10: (128, 256), 12: (256, 256), 14: (256, 256)}
CONVOLUTIONS |= {17: (256, 512)} | {i: (512, 512) for i in (19, 21, 24, 26, 28)}


@pytest.fixture(scope="module")
def backbone():
    """Random VGG16 weights under torchvision's names, scaled so that the signal survives 13 layers."""
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for index, (c_in, c_out) in CONVOLUTIONS.items():
        weight = torch.randn(c_out, c_in, 3, 3, generator=generator) * (2 / (9 * c_in)) ** 0.5
        tensors |= {f"features.{index}.weight": weight, f"features.{index}.bias": 0.01 * torch.ones(c_out)}
    return tensors


@pytest.fixture(scope="module")
def weights_file(backbone, tmp_path_factory):
    """The same as a file, with the classifier that torchvision's file also holds."""
    path = tmp_path_factory.mktemp("lpips") / "vgg16.pth"
    torch.save(backbone | {"classifier.0.bias": torch.zeros(4)}, path)
    return path


@pytest.fixture(scope="module")
def metric(weights_file):
    loaded = load_lpips(weights_file)
    assert isinstance(loaded, Lpips)
    return loaded


@pytest.fixture
def nothing_found(monkeypatch, tmp_path):
    """A machine without weights: no variable, an empty cache, no torchvision."""
    monkeypatch.delenv(lpips.WEIGHTS_VARIABLE, raising=False)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setitem(sys.modules, "torchvision.models", None)


def _images(seed, *shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def test_agrees_with_torchmetrics(metric, backbone, monkeypatch):
    from torchmetrics.functional.image import lpips as other

    def features(net, pretrained=False):
        layers = []
        for index in range(30):
            if index in CONVOLUTIONS:
                layer = nn.Conv2d(*CONVOLUTIONS[index], 3, padding=1)
                layer.load_state_dict({k: backbone[f"features.{index}.{k}"] for k in ("weight", "bias")})
                layers.append(layer)
            else:
                layers.append(nn.MaxPool2d(2, 2) if index in (4, 9, 16, 23) else nn.ReLU())
        return nn.Sequential(*layers)

    monkeypatch.setattr(other, "_get_tv_model_features", features)
    reference = other._LPIPS(pretrained=True, net="vgg", pnet_rand=True)
    pred, target = _images(1, 3, 3, 32, 48), _images(2, 3, 3, 32, 48)
    with torch.no_grad():
        expected = reference(pred, target, normalize=True).flatten()
    torch.testing.assert_close(metric(pred, target), expected, rtol=1e-4, atol=1e-6)


def test_agrees_with_the_formula_in_float64(metric, backbone):
    import torchmetrics

    heads_file = Path(torchmetrics.__file__).parent / "functional/image/lpips_models/vgg.pth"
    heads = torch.load(heads_file, map_location="cpu", weights_only=True)
    pred, target = _images(3, 1, 3, 16, 16), _images(4, 1, 3, 16, 16)
    shift = torch.tensor([-0.030, -0.088, -0.188], dtype=torch.float64).view(1, 3, 1, 1)
    scale = torch.tensor([0.458, 0.448, 0.450], dtype=torch.float64).view(1, 3, 1, 1)
    pair = torch.cat([((2 * x.double() - 1) - shift) / scale for x in (pred, target)])
    total, stage = 0.0, 0
    for index in range(30):
        if index in CONVOLUTIONS:
            weight, bias = (backbone[f"features.{index}.{k}"].double() for k in ("weight", "bias"))
            pair = F.conv2d(pair, weight, bias, padding=1)
        elif index in (4, 9, 16, 23):
            pair = F.max_pool2d(pair, 2)
        else:
            pair = pair.relu()
        if index in (3, 8, 15, 22, 29):
            unit = F.normalize(pair, dim=1)
            head = heads[f"lin{stage}.model.1.weight"].double()
            total += F.conv2d((unit[:1] - unit[1:]).square(), head).mean().item()
            stage += 1
    assert metric(pred, target).item() == pytest.approx(total, rel=1e-4)


def test_identical_pair_is_zero_and_axes_are_kept(metric):
    pred, target = _images(5, 2, 2, 3, 16, 16), _images(6, 2, 2, 3, 16, 16)
    assert metric(target, target).abs().max() == 0
    values = metric(pred, target)
    assert values.shape == (2, 2)
    torch.testing.assert_close(values[1, 0], metric(pred[1, 0], target[1, 0]), rtol=1e-4, atol=1e-6)
    assert (values > 0).all()


def test_is_differentiable_and_keeps_its_own_weights_fixed(metric):
    target = _images(7, 1, 3, 16, 16)
    pred = (target + 0.05).clamp(0, 1).requires_grad_()
    metric(pred, target).sum().backward()
    assert pred.grad is not None
    assert pred.grad.isfinite().all()
    assert pred.grad.abs().max() > 0
    assert not any(p.requires_grad for p in metric.parameters())
    black = torch.zeros(1, 3, 16, 16, requires_grad=True)
    metric(black, torch.zeros_like(black)).sum().backward()
    assert black.grad is not None and black.grad.isfinite().all()


def test_without_weights_it_says_so_and_what_to_do(nothing_found):
    missing = load_lpips()
    assert isinstance(missing, Unavailable)
    assert str(missing).startswith("not available: ")
    assert "--lpips-weights" in str(missing)
    assert "https://download.pytorch.org/models/vgg16-397923af.pth" in str(missing)


def test_weights_are_found_in_variable_and_cache(nothing_found, weights_file, monkeypatch, tmp_path):
    monkeypatch.setenv(lpips.WEIGHTS_VARIABLE, str(weights_file))
    named = load_lpips()
    assert isinstance(named, Lpips)
    assert "not the published" in named.source
    monkeypatch.delenv(lpips.WEIGHTS_VARIABLE)
    cached = tmp_path / "checkpoints" / lpips.BACKBONE_FILE
    cached.parent.mkdir()
    cached.symlink_to(weights_file)
    assert isinstance(load_lpips(), Lpips)


def test_a_named_file_that_is_missing_or_damaged_is_an_error(weights_file, tmp_path):
    with pytest.raises(UserError, match="There is no file"):
        load_lpips(tmp_path / "nothing.pth")
    cut = tmp_path / "cut.pth"
    cut.write_bytes(weights_file.read_bytes()[:100_000])
    with pytest.raises(UserError, match="cannot be read as weights"):
        load_lpips(cut)


def test_a_file_with_code_in_it_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "opened"), "w"))

    path = tmp_path / "evil.pth"
    torch.save({"features.0.weight": Evil()}, path)
    with pytest.raises(UserError, match="cannot be read as weights"):
        load_lpips(path)
    assert not (tmp_path / "opened").exists()


def test_wrong_names_shapes_and_numbers_are_refused(backbone, tmp_path):
    path = tmp_path / "wrong.pth"
    torch.save({k: v for k, v in backbone.items() if "28" not in k}, path)
    with pytest.raises(UserError, match="2 tensors are missing"):
        load_lpips(path)
    torch.save(backbone | {"features.0.bias": torch.zeros(63)}, path)
    with pytest.raises(UserError, match=r"for example 0\.bias"):
        load_lpips(path)
    torch.save(backbone | {"features.0.bias": torch.full((64,), float("nan"))}, path)
    with pytest.raises(UserError, match="NaN"):
        load_lpips(path)


def test_tiny_images_are_refused_in_a_sentence(metric):
    with pytest.raises(UserError, match="at least 16x16 pixels"):
        metric(torch.rand(1, 3, 15, 32), torch.rand(1, 3, 15, 32))
