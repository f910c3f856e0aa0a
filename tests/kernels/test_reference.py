"""The reference operators against autograd in float64, linear algebra, and recorded outputs of the published code."""

import pytest
import safetensors.torch
import torch

import kernels
from kernels import reference


def swiglu_inputs(n: int = 11, dtype: torch.dtype = torch.float64, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"w0": (2, 5, 7), "w1": (2, 7, 5), "w2": (2, 5, 7), "k": (2, n, 5), "v": (2, n, 5)}
    values = {k: torch.randn(s, generator=generator, dtype=dtype) for k, s in shapes.items()}
    return values | {f"lr{i}": torch.rand(2, n, 1, generator=generator, dtype=dtype) for i in range(3)}


def test_closed_form_gradients_equal_autograd():
    x = swiglu_inputs()
    weights = [x[name].requires_grad_() for name in ("w0", "w1", "w2")]
    ours = kernels.fast_weight_gradients(**x)
    dots = (kernels.apply_swiglu(*weights, x["k"]) * x["v"]).sum(-1, keepdim=True)
    for i in range(3):
        (expected,) = torch.autograd.grad((x[f"lr{i}"] * dots).sum(), weights[i], retain_graph=True)
        torch.testing.assert_close(ours[i], expected, rtol=1e-12, atol=1e-12)


def test_second_order_gradients_pass_gradcheck():
    x = [v.requires_grad_() for v in swiglu_inputs(n=3).values()]
    assert torch.autograd.gradcheck(kernels.fast_weight_gradients, x)


def test_gradients_of_slices_add_up():
    x = swiglu_inputs()
    weights = {k: x[k] for k in ("w0", "w1", "w2")}
    tokens = {k: x[k] for k in x if k not in weights}
    whole = kernels.fast_weight_gradients(**x)
    parts = [kernels.fast_weight_gradients(**weights, **{k: v[:, s] for k, v in tokens.items()}) for s in
             (slice(0, 4), slice(4, 11))]  # fmt: skip
    for i in range(3):
        torch.testing.assert_close(parts[0][i] + parts[1][i], whole[i], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(3, 8, 20), (3, 20, 8), (1, 1, 4), (2, 9, 9)])
def test_orthogonalize_keeps_singular_vectors_and_brings_values_near_one(shape):
    g = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ours = kernels.orthogonalize(g, steps=5, dtype=torch.float64)
    u, s, vh = torch.linalg.svd(g, full_matrices=False)
    s = s / s.norm(dim=-1, keepdim=True)
    for a, b, c in reference.MUON5:
        s = a * s + b * s**3 + c * s**5
    torch.testing.assert_close(ours, u @ torch.diag_embed(s) @ vh, rtol=1e-6, atol=1e-6)
    assert s.min() > 0.3 and s.max() < 1.3


def test_orthogonalize_of_zero_is_zero():
    assert torch.equal(kernels.orthogonalize(torch.zeros(1, 3, 4)), torch.zeros(1, 3, 4))


def test_add_and_restore_norm_keeps_column_norms():
    w, g = torch.randn(2, 3, 6, 9, generator=torch.Generator().manual_seed(2))
    ours = kernels.add_and_restore_norm(w, g)
    torch.testing.assert_close(ours.norm(dim=1), w.norm(dim=1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        torch.nn.functional.normalize(ours, dim=1), torch.nn.functional.normalize(w + g, dim=1), rtol=1e-4, atol=1e-6
    )


def test_linear_state_is_a_sum_of_outer_products():
    x = swiglu_inputs()
    state = kernels.linear_state(x["k"], x["v"], x["lr0"])
    expected = torch.einsum("bn,bni,bnj->bij", x["lr0"][..., 0], x["k"], x["v"])
    torch.testing.assert_close(state, expected)
    torch.testing.assert_close(kernels.linear_apply(state, x["k"]), torch.einsum("bni,bij->bnj", x["k"], expected))


@pytest.mark.golden
@pytest.mark.parametrize("rule", ["dot_product", "ga_dot_product", "only_w1", "only_w1_no_wn"])
def test_update_rules_as_recorded(shared, rule):
    recorded = safetensors.torch.load_file(shared / "golden/ttt_ops_fp32.safetensors")
    names = ("w0", "w1", "w2", "q", "k", "v", "lr0", "lr1", "lr2")
    x = {name: recorded[f"in.{name}"].requires_grad_() for name in names}
    tokens = {name: x[name][:, :23] for name in ("k", "v", "lr0", "lr1", "lr2")}
    weights = [x[name] for name in ("w0", "w1", "w2")]
    gradients = kernels.fast_weight_gradients(*weights, **tokens)
    steps = [kernels.orthogonalize(g, 5, torch.float32) for g in gradients]
    sign = -1 if rule.startswith("ga_") else 1
    updated = [
        w if rule.startswith("only_w1") and i != 1
        else w + step if rule.endswith("no_wn")
        else kernels.add_and_restore_norm(w, sign * step)
        for i, (w, step) in enumerate(zip(weights, steps, strict=True))
    ]  # fmt: skip
    out = kernels.apply_swiglu(*updated, x["q"])
    (out * torch.cos(torch.arange(out.numel(), dtype=torch.float32)).view_as(out)).sum().backward()
    checks = {f"{rule}.w{i}": w for i, w in enumerate(updated)} | {f"{rule}.o": out}
    for name, ours in checks.items():
        assert (ours - recorded[name]).norm() / recorded[name].norm() < 1e-5, name
    for name in names:
        if f"{rule}.grad.{name}" in recorded:
            expected = recorded[f"{rule}.grad.{name}"]
            assert (x[name].grad - expected).norm() / expected.norm() < 1e-4, name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": (2, 11, 4)}, r"k has shape \(2, 11, 4\), expected \(2, any, 5\)"),
        ({"w1": (2, 5, 7)}, r"w1 has shape \(2, 5, 7\), expected \(2, 7, 5\)"),
        ({"lr2": (2, 11)}, r"lr2 has shape \(2, 11\), expected \(2, 11, 1\)"),
    ],
)
def test_wrong_shapes_are_named(change, message):
    x = swiglu_inputs() | {name: torch.zeros(shape) for name, shape in change.items()}
    with pytest.raises(ValueError, match=message):
        kernels.fast_weight_gradients(**x)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": torch.zeros(2, 11, 5)}, r"k has dtype torch.float32, expected torch.float64 as w0 \(or use autocast\)"),
        ({"v": torch.zeros(2, 11, 5, dtype=torch.int64)}, "v has dtype torch.int64, expected a floating-point dtype"),
        ({"w2": torch.zeros(2, 5, 7, device="meta")}, "w2 is on meta, expected cpu as w0"),
    ],
)
def test_wrong_dtypes_and_devices_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        kernels.fast_weight_gradients(**(swiglu_inputs() | change))


def test_the_last_gradient_alone_is_that_of_all_three():
    x = swiglu_inputs()
    alone = kernels.last_weight_gradient(*(x[name] for name in ("w0", "w2", "k", "v", "lr1")))
    torch.testing.assert_close(alone, kernels.fast_weight_gradients(**x)[1], rtol=1e-12, atol=1e-12)


def test_gradients_keep_the_precision_of_the_weights_under_autocast():
    x = swiglu_inputs(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert {g.dtype for g in kernels.fast_weight_gradients(**x)} == {torch.float32}
        assert kernels.linear_state(x["k"], x["v"]).dtype == torch.float32


def test_backend_switch(monkeypatch):
    x = torch.zeros(1, 2, 2)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with (
        kernels.use_backend("triton"),
        pytest.raises(RuntimeError, match="cannot run here: the tensors are not on a GPU"),
    ):
        kernels.linear_state(x, x)
    assert kernels.current_backend() == "auto"
    monkeypatch.setenv("NVS_KERNELS", "cuda")
    with pytest.raises(
        kernels.BackendError, match="the variable NVS_KERNELS is 'cuda': choose one of auto, reference, triton"
    ):
        kernels.current_backend()


def test_the_interpreter_counts_in_float32_only(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with (
        kernels.use_backend("triton"),
        pytest.raises(RuntimeError, match=r"right in float32 only, got torch\.bfloat16"),
    ):
        kernels.orthogonalize(torch.zeros(1, 2, 2), dtype=torch.bfloat16)


def test_operators_compile_without_a_graph_break():
    x = swiglu_inputs(dtype=torch.float32)

    def step(w0, w1, w2, k, v, lr0, lr1, lr2):
        gradients = kernels.fast_weight_gradients(w0, w1, w2, k, v, lr0, lr1, lr2)
        weights = [
            kernels.add_and_restore_norm(w, kernels.orthogonalize(g, 2, torch.float32))
            for w, g in zip((w0, w1, w2), gradients, strict=True)
        ]
        return kernels.apply_swiglu(*weights, k) + kernels.linear_apply(kernels.linear_state(k, v), k)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(**x), step(**x), rtol=1e-5, atol=1e-5)


def test_silu_unit_and_rms_norm_are_what_pytorch_calls_them():
    x = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(5))
    silu = torch.nn.functional.silu(x)
    torch.testing.assert_close(kernels.silu_unit(x), torch.nn.functional.normalize(silu, dim=-1), rtol=1e-4, atol=1e-5)
    norm = torch.nn.RMSNorm(7, eps=1e-5)
    torch.nn.init.normal_(norm.weight)
    assert torch.equal(kernels.rms_norm(x, norm.weight), norm(x))
    assert kernels.rms_norm(x.bfloat16(), norm.weight).dtype == torch.float32


def test_tokens_of_rays_are_made_of_the_pixels_rays():
    generator = torch.Generator().manual_seed(6)
    rotation, _ = torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64))
    c2w = torch.eye(4, dtype=torch.float64)
    c2w[:3, :3], c2w[:3, 3] = rotation, torch.tensor([0.3, -1.0, 2.0])
    images = torch.rand(1, 3, 4, 6, generator=generator, dtype=torch.float64)
    numbers = torch.eye(48, dtype=torch.float64)
    cameras = (c2w[None], torch.tensor([[5.0, 4.0, 2.5, 2.2]], dtype=torch.float64))
    tokens = kernels.embed_rays(numbers, *cameras, images, (4, 6), 2)
    # The pixel in row 3, column 4 is the last-but-first of the second row of the patch in row 1, column 2.
    direction = rotation @ torch.tensor([(4.5 - 2.5) / 5, (3.5 - 2.2) / 4, 1.0], dtype=torch.float64)
    direction /= direction.norm()
    pixel = tokens[0, 1 * 3 + 2].view(2, 2, 12)[1, 0]
    expected = [c2w[:3, 3], direction, torch.linalg.cross(c2w[:3, 3], direction), images[0, :, 3, 4] * 2 - 1]
    torch.testing.assert_close(pixel, torch.cat(expected), rtol=1e-12, atol=1e-12)
    blind = kernels.embed_rays(numbers, *cameras, None, (4, 6), 2).view(6, 4, 12)
    assert torch.equal(blind[..., 9:], torch.zeros(6, 4, 3)) and torch.equal(
        blind[..., :9], tokens.view(6, 4, 12)[..., :9]
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kernels.silu_unit(torch.zeros(2, 3)), r"x has shape \(2, 3\), expected \(any, any, any\)"),
        (lambda: kernels.silu_unit(torch.zeros(1, 2, 3).int()), "x has dtype torch.int32, expected a floating-point"),
        (lambda: kernels.rms_norm(torch.zeros(1, 2, 3), torch.ones(4)), r"weight has shape \(4,\), expected \(3\)"),
        (
            lambda: kernels.rms_norm(torch.zeros(1, 2, 3), torch.ones(3, device="meta")),
            "weight is on meta, expected cpu as x",
        ),
        (
            lambda: kernels.embed_rays(torch.zeros(5, 48), torch.zeros(1, 4, 4), torch.ones(1, 4), None, (5, 4), 2),
            "image_size is 5 x 4, expected multiples of the patch, 2",
        ),
        (
            lambda: kernels.embed_rays(torch.zeros(5, 12), torch.zeros(1, 4, 4), torch.ones(1, 4), None, (4, 4), 2),
            r"weight has shape \(5, 12\), expected \(any, 48\)",
        ),
        (
            lambda: kernels.embed_rays(
                torch.zeros(5, 48), torch.zeros(1, 4, 4), torch.ones(1, 4), torch.zeros(1, 3, 4, 6), (4, 4), 2
            ),
            r"images has shape \(1, 3, 4, 6\), expected \(1, 3, 4, 4\)",
        ),
        (
            lambda: kernels.linear_state(torch.zeros(1, 3, 2), torch.zeros(1, 4, 2)),
            r"v has shape \(1, 4, 2\), expected",
        ),
        (
            lambda: kernels.linear_apply(torch.zeros(1, 3, 2), torch.zeros(1, 4, 2)),
            r"q has shape \(1, 4, 2\), expected",
        ),
        (
            lambda: kernels.add_and_restore_norm(torch.zeros(1, 3, 2), torch.zeros(1, 2, 3)),
            r"g has shape \(1, 2, 3\), expected \(1, 3, 2\)",
        ),
        (lambda: kernels.orthogonalize(torch.zeros(3, 2)), r"g has shape \(3, 2\), expected"),
        (
            lambda: kernels.orthogonalize(torch.zeros(1, 3, 2).int()),
            "g has dtype torch.int32, expected a floating-point",
        ),
        (
            lambda: kernels.add_and_restore_norm(torch.zeros(1, 3, 2), torch.zeros(1, 3, 2, device="meta")),
            "g is on meta, expected cpu as w",
        ),
    ],
)
def test_wrong_arguments_of_the_other_operators_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
