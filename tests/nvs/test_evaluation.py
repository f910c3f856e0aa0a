"""Evaluation: which views are compared, what the numbers are, what is left out; against plain numpy on the files."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from data import UserError, open_scene
from nvs import LaCT, ModelConfig, TrainedRange, evaluation
from nvs.baselines import mean_input, nearest_input
from nvs.evaluation import Settings, choose_image_size, choose_views, evaluate, run_scene, score_images
from nvs.lpips import Lpips, Unavailable
from nvs.memory import LaCTConfig
from nvs.results import BASELINES, MODEL, Evaluation, SceneResult, SkippedScene, write_csv, write_json

NO_LPIPS = Unavailable("no weights in this test")
H, W = 24, 32


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    memory = LaCTConfig(head_dim=32)
    made = LaCT(ModelConfig(dim=32, layers=2, patch_size=8, attention_head_dim=32, memory=memory)).eval()
    made.trained = TrainedRange((2, 8), (H, W), (30.0, 70.0), description="a model for tests")
    return made


@pytest.fixture
def grey(monkeypatch):
    """Every rendering becomes plain grey, so that its scores can be worked out by hand."""

    class GreyRenderer:
        def __init__(self, model, state, views_per_batch):
            pass

        def frames(self, cameras):
            yield from torch.full((cameras.num_views, 3, *cameras.image_size), 0.5)

    monkeypatch.setattr(evaluation, "Renderer", GreyRenderer)


def write_capture(folder, count=8, alpha=False, moved=()):
    """A ring of cameras with random photos; the cameras in `moved` stand far away from it."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(count)
    frames = []
    for i in range(count):
        pixels = random.integers(0, 256, (H, W, 4), dtype=np.uint8)
        pixels[..., 3] = 255
        if alpha:
            pixels[:, : W // 2, 3] = 0
        Image.fromarray(pixels if alpha else pixels[..., :3]).save(folder / f"{i}.png")
        angle = 2 * np.pi * i / count
        position = 3 * np.array([np.cos(angle), np.sin(angle), 0.3]) * (20 if i in moved else 1)
        back = position / np.linalg.norm(position)
        right = np.array([-np.sin(angle), np.cos(angle), 0])
        c2w = np.eye(4)
        c2w[:3] = np.stack([right, np.cross(back, right), back, position], axis=1)
        frames.append({"file_path": f"{i}.png", "transform_matrix": c2w.tolist()})
    lens = {"w": W, "h": H, "fl_x": 31, "fl_y": 31, "cx": W / 2, "cy": H / 2}
    (folder / "transforms.json").write_text(json.dumps(lens | {"frames": frames}))
    return folder


def photo(folder, name):
    """A photo on white, in 0..1, and its alpha."""
    rgba = np.asarray(Image.open(folder / name).convert("RGBA"), dtype=np.float64) / 255
    return rgba[..., :3] * rgba[..., 3:] + 1 - rgba[..., 3:], rgba[..., 3]


def decibel(error):
    return -10 * np.log10(error)


def test_scores_are_those_of_the_files(model, grey, tmp_path):
    folder = write_capture(tmp_path / "ring")
    result = evaluate(model, [folder], Settings(inputs=3, targets=4), NO_LPIPS).results[0]
    assert len(result.inputs) == 3 and len(result.targets) == 4
    assert not set(result.inputs) & set(result.targets)
    targets = [photo(folder, name)[0] for name in result.targets]
    inputs = [photo(folder, name)[0] for name in result.inputs]
    expected = [decibel(np.square(0.5 - x).mean()) for x in targets]
    assert result.scores[MODEL]["psnr"] == pytest.approx(expected, abs=1e-3)
    assert result.mean("psnr") == pytest.approx(np.mean(expected), abs=1e-3)
    expected = [decibel(np.square(np.mean(inputs, axis=0) - x).mean()) for x in targets]
    assert result.scores["mean_input"]["psnr"] == pytest.approx(expected, abs=1e-3)
    assert "psnr_foreground" not in result.scores[MODEL]


def test_foreground_is_the_photos_own_mask(model, grey, tmp_path):
    folder = write_capture(tmp_path / "ring", alpha=True)
    result = evaluate(model, [folder], Settings(inputs=3, targets=2), NO_LPIPS).results[0]
    for name, value in zip(result.targets, result.scores[MODEL]["psnr_foreground"], strict=True):
        pixels, alpha = photo(folder, name)
        error = (np.square(0.5 - pixels).mean(-1) * alpha).sum() / alpha.sum()
        assert value == pytest.approx(decibel(error), abs=1e-3)


def test_baselines_pick_the_nearest_camera_and_the_mean(tmp_path):
    scene = open_scene(write_capture(tmp_path / "ring"))
    inputs, targets = scene.load([0, 4], image_size=(H, W)), scene.load([1, 3, 7], image_size=(H, W))
    nearest = nearest_input(inputs, targets.cameras)
    assert torch.equal(nearest, inputs.images[[0, 1, 0]])
    mean = mean_input(inputs, targets.cameras)
    assert mean.shape == targets.images.shape
    torch.testing.assert_close(mean[2], (inputs.images[0] + inputs.images[1]) / 2)


def test_target_cameras_do_not_leak_into_the_state(model, tmp_path):
    states = []
    for name, moved in (("plain", ()), ("moved", (3, 5))):
        scene = open_scene(write_capture(tmp_path / name, moved=moved))
        states.append(run_scene(model, scene, [0, 2, 4, 6], [3, 5], (H, W)).state)
    assert torch.equal(states[0].world_to_scene, states[1].world_to_scene)
    for one, other in zip(states[0].layers, states[1].layers, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_renderings_are_those_of_the_model(model, tmp_path):
    scene = open_scene(write_capture(tmp_path / "ring"))
    run = run_scene(model, scene, [0, 2, 4, 6], [1, 3, 5], (H, W), views_per_batch=2)
    with torch.no_grad():
        expected = model(run.inputs, run.targets.cameras)
    torch.testing.assert_close(run.renderings, expected, atol=1e-5, rtol=0)


def test_scenes_of_the_reference_case_are_counted(model, shared):
    folder = shared / "cases/13-metrics-reference-offline/input/scenes"
    found = evaluate(model, [folder], Settings(inputs=4), NO_LPIPS)
    assert found.summary == "2 of 3 scenes, 1 skipped: too few photos"
    assert [r.name for r in found.results] == ["scene_ok_1", "scene_ok_2"]
    assert "scene_too_short has 2" in found.skipped[0].detail
    assert found.unavailable == {"lpips": NO_LPIPS.reason}
    assert found.mean_over_images("lpips") is None
    assert found.mean_over_images("psnr") is not None and found.mean_over_images("ssim") is not None


def test_more_targets_than_photos_means_all_of_them(tmp_path):
    scene = open_scene(write_capture(tmp_path / "ring", count=6))
    assert len(choose_views(scene, Settings(inputs=4, targets=8))[1]) == 2
    inputs, targets = choose_views(scene, Settings(inputs=1, targets=None))
    assert sorted(inputs + targets) == list(range(6))
    assert len(choose_views(scene, Settings(inputs=1, targets=3))[1]) == 3
    with pytest.raises(UserError, match="at least one held-out photo"):
        choose_views(scene, Settings(inputs=6))


def test_unreadable_scenes_and_broken_renderings_are_counted(model, monkeypatch, tmp_path):
    class BrokenForThreeViews(evaluation.Renderer):
        def frames(self, cameras):
            factor = float("nan") if cameras.num_views == 3 else 1.0
            yield from (factor * frame for frame in super().frames(cameras))

    monkeypatch.setattr(evaluation, "Renderer", BrokenForThreeViews)
    good, broken = write_capture(tmp_path / "good"), write_capture(tmp_path / "broken", count=7)
    found = evaluate(model, [good, broken, tmp_path / "nothing"], Settings(targets=None), NO_LPIPS)
    assert found.summary == "1 of 3 scenes, 2 skipped: rendering not finite (1), not readable (1)"
    assert "broken" in found.skipped[0].detail


def test_nothing_evaluated_is_an_error(model, tmp_path):
    with pytest.raises(UserError, match="nothing does not exist"):
        evaluate(model, [tmp_path / "nothing"], Settings(), NO_LPIPS)
    paths = [tmp_path / "nothing", write_capture(tmp_path / "two", count=2)]
    with pytest.raises(UserError, match="0 of 2 scenes, 2 skipped"):
        evaluate(model, paths, Settings(), NO_LPIPS)


def test_photos_that_training_held_out_are_the_ones_compared(model, tmp_path):
    folder = write_capture(tmp_path / "ring")
    tuned = copy.copy(model)
    tuned.trained = replace(model.trained, holdout_every=4)
    for which, every, names in ((tuned, None, ["2.png", "6.png"]), (model, 4, ["2.png", "6.png"]), (tuned, 0, None)):
        result = evaluate(which, [folder], Settings(targets=None, holdout_every=every), NO_LPIPS).results[0]
        assert not set(result.inputs) & set(result.targets)
        assert list(result.targets) == names or (names is None and len(result.targets) == 4)
    with pytest.raises(UserError, match="k of 2 or more"):
        Settings(holdout_every=1)


@pytest.mark.parametrize("wrong", [{"inputs": 0}, {"inputs": -1}, {"targets": -2}])
def test_impossible_counts_are_refused(wrong):
    with pytest.raises(UserError, match="at least 1 of each"):
        Settings(**wrong)


def test_image_size_is_that_of_the_training_unless_given(model):
    assert choose_image_size(model, None) == (H, W)
    assert choose_image_size(model, (64, 40)) == (64, 40)
    with pytest.raises(UserError, match="nearest size is 64x40"):
        choose_image_size(model, (64, 41))


def test_tiny_images_lose_ssim_and_lpips_with_a_reason(model, tmp_path):
    backbone = {k: torch.zeros_like(v) for k, v in _random_backbone().items()}
    lpips = Lpips(backbone, _heads())
    found = evaluate(model, [write_capture(tmp_path / "ring")], Settings(image_size=(8, 8)), lpips)
    assert set(found.unavailable) == {"ssim", "lpips"}
    assert "8x8" in found.unavailable["ssim"]
    assert found.mean_over_images("psnr") is not None


def test_lpips_is_zero_for_the_photo_itself(tmp_path):
    views = open_scene(write_capture(tmp_path / "ring")).load([0, 1], image_size=(H, W))
    lpips = Lpips(_random_backbone(), _heads())
    assert score_images(views.images, views, lpips)["lpips"] == [0.0, 0.0]
    assert min(score_images(1 - views.images, views, lpips)["lpips"]) > 0


def test_warns_outside_the_trained_range(model, tmp_path):
    folder = write_capture(tmp_path / "ring", count=12)
    inside = evaluate(model, [folder], Settings(), NO_LPIPS).results[0]
    assert not [w for w in inside.warnings if "trained range" in w]
    outside = evaluate(model, [folder], Settings(inputs=10, image_size=(24, 24)), NO_LPIPS).results[0]
    assert len([w for w in outside.warnings if "trained range" in w]) == 2


def _result(psnr, name="scene"):
    names = tuple(f"{i}.png" for i in range(len(psnr)))
    scores = {MODEL: {"psnr": psnr}, **{b: {"psnr": [10.0] * len(psnr)} for b in BASELINES}}
    return SceneResult(name, f"captures/{name}", ("in.png",), names, scores, {"lpips": "no weights"})


def test_means_over_images_and_over_scenes_differ():
    found = Evaluation((_result([10.0, 20.0, 30.0]), _result([40.0])), (), (H, W))
    assert found.mean_over_images("psnr") == pytest.approx(25.0)
    assert found.mean_over_scenes("psnr") == pytest.approx(30.0)
    assert found.mean_over_scenes("psnr", "mean_input") == pytest.approx(10.0)
    assert found.summary == "2 of 2 scenes"


def test_files_hold_every_number_and_no_nan(tmp_path):
    result = _result([20.0, 100.0])
    scores = {m: s | {"psnr_foreground": [float("nan"), 7.0]} for m, s in result.scores.items()}
    skipped = SkippedScene("captures/short", "too few photos", "short has 2 photos.")
    found = Evaluation((replace(result, scores=scores),), (skipped,), (H, W))
    write_json(found, tmp_path / "metrics.json", {"checkpoint": "x"})
    read = json.loads((tmp_path / "metrics.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert read["checkpoint"] == "x"
    assert read["summary"] == "1 of 2 scenes, 1 skipped: too few photos"
    assert read["not_available"] == {"lpips": "no weights"}
    assert read["identical_renderings"] == 1
    assert read["mean_over_images"]["model"]["psnr"] == 60.0
    assert read["mean_over_images"]["model"]["lpips"] is None
    assert read["mean_over_images"]["model"]["psnr_foreground"] == 7.0
    assert read["scenes"][0]["images"][0]["model"]["psnr_foreground"] is None
    assert read["skipped"][0]["detail"] == "short has 2 photos."
    write_csv(found, tmp_path / "metrics.csv")
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert lines[0] == "scene,image,method,psnr,ssim,lpips,psnr_foreground,chroma_error"
    assert lines[1] == "scene,0.png,model,20,,,,"
    assert len(lines) == 1 + 2 * 3


def _random_backbone():
    generator = torch.Generator().manual_seed(0)
    shapes = {0: (64, 3), 2: (64, 64), 5: (128, 64), 7: (128, 128), 10: (256, 128), 12: (256, 256), 14: (256, 256)}
    shapes |= {17: (512, 256)} | {i: (512, 512) for i in (19, 21, 24, 26, 28)}
    tensors = {}
    for i, (c_out, c_in) in shapes.items():
        tensors[f"features.{i}.weight"] = torch.randn(c_out, c_in, 3, 3, generator=generator) * (2 / (9 * c_in)) ** 0.5
        tensors[f"features.{i}.bias"] = torch.zeros(c_out)
    return tensors


def _heads():
    return {f"{i}.weight": torch.ones(1, c, 1, 1) for i, c in enumerate((64, 128, 256, 512, 512))}
