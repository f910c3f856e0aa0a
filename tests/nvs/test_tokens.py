"""Rendered patches put together, with and without overlap."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny import make_views
from torch.nn.functional import pad

import nvs
from data import UserError
from nvs.checkpoint import save_published
from nvs.model import LaCT
from nvs.scene_state import fingerprint
from nvs.starting_point import start_model
from nvs.tokens import blend_patches, unpatchify, widen_decoder

CONFIG = nvs.ModelConfig(
    dim=32, layers=1, patch_size=4, attention_head_dim=16, memory=nvs.memory.LaCTConfig(head_dim=16), decode_overlap=1
)


def cut(image: torch.Tensor, patch: int, overlap: int) -> torch.Tensor:
    """Patches of a picture [v, 3, h, w] with what lies `overlap` pixels around each, pixel by pixel."""
    h, w = image.shape[-2:]
    wide = pad(image, [overlap] * 4, mode="replicate")
    side = patch + 2 * overlap
    found = [wide[..., y : y + side, x : x + side] for y in range(0, h, patch) for x in range(0, w, patch)]
    return torch.stack([x.permute(0, 2, 3, 1).flatten(1) for x in found], dim=1)


@pytest.mark.parametrize(("patch", "overlap"), [(4, 0), (4, 1), (4, 2), (8, 3)])
def test_patches_of_one_picture_give_that_picture(patch, overlap):
    image = torch.rand(2, 3, 16, 24, generator=torch.Generator().manual_seed(0))
    assert blend_patches(cut(image, patch, overlap)[:0], (16, 24), patch, overlap).shape == (0, 3, 16, 24)
    together = blend_patches(cut(image, patch, overlap), (16, 24), patch, overlap)
    torch.testing.assert_close(together, image, atol=1e-6, rtol=0)


def test_patches_that_disagree_fade_over_in_a_straight_line():
    """Two patches in a row, black and white, each reaching 2 pixels into the other."""
    patches = torch.stack([torch.zeros(1, 3 * 64), torch.ones(1, 3 * 64)], dim=1)
    row = blend_patches(patches, (4, 8), 4, 2)[0, 0, 1]
    torch.testing.assert_close(row, torch.tensor([0, 0, 1 / 8, 3 / 8, 5 / 8, 7 / 8, 1, 1]))


def test_a_widened_decoder_repeats_the_edges_of_its_patches():
    old = LaCT(replace(CONFIG, decode_overlap=0))
    x = torch.randn(1, 6, 32)
    narrow, wide = (x @ widen_decoder(old.decode.weight, 4, 0, after).T for after in (0, 2))
    one = unpatchify(narrow[:, :1], (4, 4), 4)
    torch.testing.assert_close(unpatchify(wide[:, :1], (8, 8), 8), pad(one, [2] * 4, mode="replicate"))
    back = widen_decoder(widen_decoder(old.decode.weight, 4, 0, 2), 4, 2, 0)
    assert torch.equal(back, old.decode.weight)


def test_a_run_with_overlap_starts_from_weights_without(tmp_path):
    old = LaCT(replace(CONFIG, decode_overlap=0))
    nvs.save_model(old, tmp_path / "old.safetensors")
    model, lines = start_model(CONFIG, None, str(tmp_path / "old.safetensors"))
    assert model.config.decode_overlap == 1 and "random" not in " ".join(lines)
    assert torch.equal(model.decode.weight, widen_decoder(old.decode.weight, 4, 0, 1))


def test_a_checkpoint_without_a_fitting_decoder_starts_with_a_random_one(tmp_path):
    old = LaCT(replace(CONFIG, decode_overlap=0, patch_size=8))
    nvs.save_model(old, tmp_path / "old.safetensors")
    _, lines = start_model(CONFIG, None, str(tmp_path / "old.safetensors"))
    assert "decode.weight" in next(line for line in lines if "random start" in line)


def test_models_without_overlap_keep_the_identity_that_they_had_before_there_was_one():
    assert fingerprint(replace(CONFIG, decode_overlap=0), {}) == "7a76eed8f914"  # as the version before had it
    one, other = (fingerprint(replace(CONFIG, decode_overlap=m), {}) for m in (1, 2))
    assert one != other


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"decode_overlap": 3}, "decode_overlap must be a whole number from 0 to half of patch_size, got 3"),
        ({"decode_overlap": -1}, "decode_overlap must be"),
        ({"patch_size": -3}, "patch_size must be"),
    ],
)
def test_impossible_sizes_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **values)


def test_models_with_overlap_are_trained_saved_and_rendered_in_bfloat16(tmp_path):
    torch.manual_seed(0)
    model = LaCT(CONFIG)
    views = make_views(3, size=(16, 24))
    model(views, views.cameras).square().mean().backward()
    assert model.decode.weight.grad.abs().min() > 0
    nvs.save_model(model, tmp_path / "model.safetensors")
    again, low = (nvs.load_model(tmp_path / "model.safetensors", precision=x) for x in ("fp32", "bf16"))
    with torch.no_grad():
        exact = model.eval().render(model.encode(views), views.cameras)
        assert torch.equal(again.render(again.encode(views), views.cameras), exact)
        rounded = low.render(low.encode(views), views.cameras)
    assert rounded.dtype == torch.float32 and 0 < (rounded - exact).abs().max() < 0.02


def test_the_published_layout_has_no_place_for_overlap(tmp_path):
    with pytest.raises(UserError, match="no place for decode_overlap"):
        save_published(LaCT(CONFIG), tmp_path / "theirs.pt")
    assert not list(tmp_path.iterdir())
