"""Each question of an analysis against a value that is known from elsewhere."""

import json
import math

import pytest
import torch

import nvs
from data import UserError, open_scene
from nvs.analysis.alternatives import ask_alternatives
from nvs.analysis.attention import ray_lines, read_map, shares_of
from nvs.analysis.distributions import mmd, project, query_key_overlap
from nvs.analysis.inner_steps import inner_step_curve, mean_inner_loss
from nvs.analysis.page import build_page
from nvs.analysis.probe import Case, NotApplicableError, changed, find_cases, memories, quality, trace
from nvs.analysis.report import Questions, ask
from nvs.analysis.throughput import CHUNK_TOKENS, chunk_throughput
from nvs.analysis.updates import effective_rank, memory_updates
from nvs.analysis.view_counts import view_curve
from nvs.evaluation import Settings, SkipError, evaluate
from nvs.lpips import Unavailable
from nvs.memory import LaCTConfig, LinearConfig, SoftmaxConfig, TTTMLPConfig, ViTTTConfig, variant


def model_with(memory) -> nvs.LaCT:
    torch.manual_seed(0)
    config = nvs.ModelConfig(dim=32, layers=2, patch_size=8, attention_head_dim=16, mlp_ratio=2, memory=memory)
    return nvs.LaCT(config).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def lact():
    return model_with(LaCTConfig(head_dim=16, expansion=2, newton_schulz_dtype="float32"))


@pytest.fixture
def cases(lact, capture):
    return find_cases(lact, [capture], Settings(3, 3, (16, 24)))


def test_quality_is_what_nvs_eval_says(lact, cases, capture):
    told = evaluate(lact, [capture], Settings(3, 3, (16, 24)), Unavailable("not asked for"))
    assert quality(lact, cases) == pytest.approx(told.mean_over_images("psnr"), abs=1e-4)


def test_trace_sees_the_states_that_encoding_makes(lact, cases):
    inputs, targets = cases[0].views(lact)
    with torch.no_grad():
        state = lact.encode(inputs)
    seen = trace(lact, inputs, targets.cameras)
    for layer, block in zip(state.with_batch().layers, seen, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(layer, block.after, strict=True))
        assert block.written.shape == (1, 3 * 6, 32) and block.read.shape == (1, 3 * 6, 32)
    assert "update_state" not in vars(memories(lact)[0])  # nothing is left behind


def test_one_inner_step_is_the_model_itself_and_more_lower_the_loss(lact, cases):
    curve = inner_step_curve(lact, cases, (1, 4, 16))
    assert curve.psnr[0] == quality(lact, cases)
    before, after = mean_inner_loss(lact, cases)
    assert (curve.loss_before, curve.inner_loss[0]) == (before, after)
    assert before > curve.inner_loss[0] > curve.inner_loss[1] > curve.inner_loss[2]
    assert curve.trained_steps == 1


def test_inner_loss_of_the_first_block_is_the_dot_product_of_its_definition(lact, cases):
    inputs, targets = cases[0].views(lact)
    seen = trace(lact, inputs, targets.cameras)[0]
    memory = memories(lact)[0]
    _, k, v = memory.queries_keys_values(seen.written)
    w0, w1, w2 = seen.after
    answers = (torch.nn.functional.silu(k @ w0) * (k @ w2)) @ w1
    assert memory.inner_loss(seen.after, seen.written).item() == pytest.approx(
        -(answers * v).sum(-1).mean().item(), rel=1e-4
    )


def test_a_retrained_model_answers_its_own_question_only(lact, cases):
    ascent = model_with(LaCTConfig(head_dim=16, expansion=2, direction="ascent"))
    plain = model_with(LaCTConfig(head_dim=16, expansion=2))
    by_name = {a.name: a for a in ask_alternatives(lact, {"up": ascent, "other": plain}, cases)}
    assert by_name["gradient ascent"].retrained == {"up": quality(ascent, cases)}
    assert by_name["keys in place of queries"].retrained == {}
    assert by_name["gradient ascent"].psnr == quality(changed(lact, direction="ascent"), cases) != quality(lact, cases)


def test_a_model_that_was_trained_the_other_way_is_not_asked_again(cases):
    model = model_with(LaCTConfig(head_dim=16, query="key"))
    by_name = {a.name: a for a in ask_alternatives(model, {}, cases)}
    told = by_name["keys in place of queries"]
    assert told.psnr is None and told.reason == "This model was trained that way."
    assert by_name["gradient ascent"].psnr is not None


def test_ascent_without_orthogonalisation_and_norm_is_the_opposite_step(cases):
    model = model_with(variant("v6", head_dim=16))
    inputs, targets = cases[0].views(model)
    up, down = (trace(m, inputs, targets.cameras)[0] for m in (changed(model, direction="ascent"), model))
    assert torch.allclose(up.after.w1 - up.before.w1, -(down.after.w1 - down.before.w1), atol=1e-5)


def test_mmd_is_zero_for_equal_distributions_and_grows_with_the_distance():
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(400, 8, generator=generator), torch.randn(400, 8, generator=generator)
    assert mmd(x, y) < 0.05
    distances = [mmd(x, y + shift) for shift in (0.3, 1.0, 10.0)]
    assert distances == sorted(distances) and distances[0] > 0.05
    # Two clouds far apart: within each the kernel is nearly 1, between them exp(-1/2) at the median distance.
    far = mmd(1e-3 * x, 1e-3 * y + 1000)
    assert far == pytest.approx(math.sqrt(2 - 2 * math.exp(-0.5)), abs=0.01)


def test_projection_keeps_distances_of_points_that_lie_in_a_plane():
    generator = torch.Generator().manual_seed(2)
    flat = torch.randn(30, 2, generator=generator).double()
    axes = torch.linalg.qr(torch.randn(6, 2, generator=generator).double()).Q
    x, y = project(flat[:10] @ axes.T + 5, flat[10:] @ axes.T + 5)
    assert torch.allclose(torch.cdist(x, y), torch.cdist(flat[:10], flat[10:]), atol=1e-9)


def test_queries_that_are_keys_do_not_differ_from_them(cases):
    model = model_with(LaCTConfig(head_dim=16, query="key"))
    for overlap in query_key_overlap(model, cases):
        assert overlap.mmd < 1e-6 and overlap.cosine_same == pytest.approx(1, abs=1e-4)
        assert overlap.queries == overlap.keys


@pytest.mark.parametrize(
    ("values", "rank"),
    [
        ([1.0, 1.0, 1.0, 1.0], 4.0),
        ([5.0, 0.0, 0.0], 1.0),
        ([0.0, 0.0], 0.0),
        ([0.5, 0.25, 0.25], math.exp(1.5 * math.log(2))),
    ],
)
def test_effective_rank(values, rank):
    assert effective_rank(torch.tensor(values)).item() == pytest.approx(rank, rel=1e-6)


def test_updates_without_orthogonalisation_are_the_sum_of_outer_products(cases):
    model = model_with(variant("v6", head_dim=16))
    inputs, targets = cases[0].views(model)
    for index, (update, seen) in enumerate(
        zip(memory_updates(model, cases), trace(model, inputs, targets.cameras), strict=True)
    ):
        _, k, v = memories(model)[index].queries_keys_values(seen.written)
        values = torch.linalg.svdvals((k.transpose(2, 3) @ v)[0].double())
        assert update.matrix == "w1" and update.full_rank == 16
        assert update.singular_values == pytest.approx(values.mean(0).tolist(), rel=1e-3, abs=1e-4)
        initial = model.blocks[index].memory.w1.flatten(1).norm(dim=1)
        assert update.relative_norm == pytest.approx((values.norm(dim=1) / initial).mean().item(), rel=1e-3)


@pytest.mark.parametrize(
    ("memory", "matrices"),
    [
        (TTTMLPConfig(head_dim=16), ["w1", "w2"]),  # and biases
        (ViTTTConfig(head_dim=16), ["w1", "w2"]),  # and 3x3 convolutions
        (variant("v4", head_dim=16, momentum=0.9), ["w1"]),
    ],
)
def test_only_matrices_have_a_rank(memory, matrices, cases):
    updates = memory_updates(model_with(memory), cases)
    assert [u.matrix for u in updates] == matrices * 2
    assert all(1 < u.effective_rank <= u.full_rank == 16 for u in updates)


@pytest.mark.parametrize("memory", [SoftmaxConfig(head_dim=16), LinearConfig(head_dim=16)])
def test_attention_has_maps_and_queries_too(memory, cases):
    model = model_with(memory)
    followed = read_map(model, cases[0], 1, (0, 2))
    assert followed.from_views == (1.0, 1.0)  # nothing was learned in advance
    assert all(shares.sum().item() == pytest.approx(1, abs=1e-4) for shares in followed.shares)
    assert len(query_key_overlap(model, cases)) == 2


@pytest.mark.parametrize("name", ["lact", "v1", "v4", "v6"])
def test_map_is_the_answer_of_the_layer(name, cases):
    model = model_with(variant(name, head_dim=16, newton_schulz_dtype="float32"))
    inputs, targets = cases[0].views(model)
    seen = trace(model, inputs, targets.cameras)[1]
    memory = memories(model)[1]
    found = memory.read_map(seen.before, seen.written, seen.read)
    answer = memory.read_out(found.base + found.scores @ found.values)
    assert torch.allclose(answer, memory.apply_state(seen.after, seen.read), rtol=1e-3, atol=1e-4)
    followed = read_map(model, cases[0], 1, (0, 2))
    assert all(shares.sum().item() == pytest.approx(1, abs=1e-3) for shares in followed.shares)
    expected = shares_of(found.scores[0, :, 6 + 2], found.values[0])  # view 1 of 2x3 patches, patch (0, 2)
    assert torch.allclose(followed.shares[1].flatten(), expected, atol=1e-4)


def test_shares_follow_the_sum():
    values = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]])
    shares = shares_of(torch.tensor([[2.0, 0.0, 1.0]]), values)
    assert shares.tolist() == pytest.approx([2 / 3, 0, 1 / 3])
    against = shares_of(torch.tensor([[2.0, 0.0, -1.0]]), values)
    assert against.tolist() == pytest.approx([2, 0, -1])


def test_ray_lines_pass_through_the_projection_of_what_the_patch_shows(cases, lact):
    """A point on the patch's ray, projected by hand, lies on the line in every other view."""
    inputs, targets = cases[0].views(lact)
    camera = targets.cameras.select(1)
    lines = ray_lines(camera, (1, 1), 8, inputs.cameras)
    origins, directions = camera.rays()
    point = origins[0, 12, 12] + 0.9 * camera.positions[0].norm() * directions[0, 12, 12]
    for line, c2w, (fx, fy, cx, cy) in zip(lines, inputs.c2w, inputs.intrinsics.tolist(), strict=True):
        x, y, z = torch.linalg.solve(c2w, torch.cat([point, torch.ones(1)]))[:3].tolist()
        pixel = torch.tensor([fx * x / z + cx, fy * y / z + cy])
        ends = torch.tensor(line, dtype=torch.float32)
        start, along = ends[0], ends[-1] - ends[0]
        offset = pixel - start
        assert abs(offset[0] * along[1] - offset[1] * along[0]) / along.norm() < 0.05


def test_view_counts_keep_the_targets_and_stop_where_the_photos_end(lact, cases):
    curve = view_curve(lact, cases, (1, 3, 5, 8))
    assert curve.counts == (1, 3, 5)  # 8 photos, 3 of them targets
    case = cases[0]
    pool = [i for i in range(8) if i not in case.targets]
    everything = Case(case.scene, pool, case.targets, case.image_size)
    assert curve.psnr[-1] == quality(lact, [everything])


def test_throughput_has_both_forms_where_there_are_two():
    curves = chunk_throughput(model_with(LaCTConfig(head_dim=16)), (1, 2), rounds=1)
    names = {(c.layer, c.form) for c in curves}
    assert {("v4", "recurrent"), ("v4", "parallel"), ("this model (lact)", "recurrent")} < names
    assert ("this model (lact)", "parallel") not in names
    assert all(rate > 0 for c in curves for rate in c.tokens_per_second) and CHUNK_TOKENS == 64


def test_a_layer_without_meaning_for_a_question_has_the_reason_told(capture):
    model = model_with(SoftmaxConfig(head_dim=16))
    cases = find_cases(model, [capture], Settings(3, 3, (16, 24)))
    with pytest.raises(NotApplicableError, match="softmax"):
        inner_step_curve(model, cases, (1, 2))
    answers = ask(model, cases, Questions(steps=(1,), view_counts=(1, 2), chunks=(1,), rounds=1), {})
    assert {"steps", "updates"} <= set(answers.unanswered)
    page = build_page("x", {}, answers)
    assert all(reason.split(".")[0] in page for reason in answers.unanswered.values())
    json.dumps(answers.to_dict(), allow_nan=False)


def test_what_diverges_when_it_is_changed_does_not_lose_the_rest(lact, cases, monkeypatch):
    monkeypatch.setattr("nvs.analysis.report.inner_step_curve", lambda *_: (_ for _ in ()).throw(SkipError("x", "NaN")))
    monkeypatch.setattr("nvs.analysis.report.memory_updates", lambda *_: [float("inf"), 1.0])
    answers = ask(lact, cases, Questions(steps=(1,), view_counts=(1,), chunks=(1,), rounds=1), {})
    assert answers.unanswered["steps"] == "NaN" and answers.steps is None and answers.maps
    assert answers.to_dict()["updates"] == [None, 1.0]
    json.dumps(answers.to_dict(), allow_nan=False)


def test_photos_that_training_held_out_are_the_targets(capture):
    tuned = model_with(LaCTConfig(head_dim=16))
    tuned.trained = nvs.TrainedRange((1, 4), (16, 24), (40.0, 60.0), holdout_every=4)
    (case,) = find_cases(tuned, [capture], Settings(3, None))
    assert case.targets == [2, 6] and not set(case.inputs) & {2, 6}


def test_captures_and_patches_that_are_not_there_are_told(lact, cases, tmp_path):
    with pytest.raises(UserError):
        find_cases(lact, [tmp_path / "nothing"], Settings(2, 2))
    with pytest.raises(UserError, match="no patch 9 0"):
        read_map(lact, cases[0], 0, (9, 0))
    with pytest.raises(UserError, match="numbered 0 to 2"):
        read_map(lact, cases[0], 3, None)


def test_scene_frames_of_a_case_are_fitted_on_its_inputs_alone(lact, cases, capture):
    case = cases[0]
    scene = open_scene(capture).normalize(case.inputs)
    assert torch.equal(case.views(lact)[1].c2w, scene.load(case.targets, (16, 24)).c2w)
