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
    with pytest.raises(ValueError, match="unknown kernel backend 'cuda'"):
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
