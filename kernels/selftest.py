"""Whether Triton's results can be relied on here: asked once for each dtype, before `auto` uses it.

Drivers, GPUs and Triton versions differ more than tests can cover; one small comparison with the reference costs
seconds and turns a wrong picture or a crash into a message.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from kernels import reference

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Largest relative error: far above rounding, far below any real mistake."""


@lru_cache(maxsize=8)
def failure(dtype: torch.dtype, device: str) -> str | None:
    """Why Triton must not be used for `dtype` on `device` ("cuda:0"), or None if its results agree."""
    try:
        # Asked in the middle of whatever the caller does, which must not change the answer.
        kind = torch.device(device).type
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast(kind, enabled=False):
            worst = _worst_error(dtype, device)
    except Exception as error:  # a compiler or driver may raise anything
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return f"its self-test failed ({first[:200]})"
    if not worst <= TOLERANCE[dtype]:
        return f"its self-test gave wrong numbers (relative error {worst:.2g})"
    return None


def _worst_error(dtype: torch.dtype, device: str) -> float:
    from kernels import triton_fast_weights as fast_weights
    from kernels import triton_linear, triton_norm, triton_orthogonalize, triton_rays, triton_rows, triton_swiglu

    generator = torch.Generator().manual_seed(0)
    shapes = {"w0": (2, 40, 72), "w1": (2, 72, 40), "w2": (2, 40, 72), "k": (2, 50, 40), "v": (2, 50, 40)}
    x = {name: (torch.randn(s, generator=generator) * 0.3).to(device, dtype) for name, s in shapes.items()}
    w0, w1, w2, k, v = (x[name].requires_grad_() for name in shapes)
    rates = [torch.rand(2, 50, 1, generator=generator).to(device) for _ in range(3)]
    # Every further iteration would multiply the rounding of 16 bits, in the reference as well.
    iterated = triton_orthogonalize.orthogonalize(w0, 2, dtype, "muon5", "standard")
    pairs = [
        (triton_swiglu.apply_swiglu(w0, w1, w2, k), reference.apply_swiglu(w0, w1, w2, k)),
        (iterated, reference.orthogonalize(w0, 2, dtype)),
        (triton_norm.add_and_restore_norm(w0, w2), reference.add_and_restore_norm(w0, w2)),
        (triton_linear.linear_state(k, v, rates[0], dtype), reference.linear_state(k, v, rates[0])),
    ]
    weight, gain = torch.randn(24, 192, generator=generator).to(device, dtype), torch.rand(40, generator=generator)
    gain, images = gain.to(device), torch.rand(1, 3, 8, 12, generator=generator).to(device)
    camera = torch.eye(4, device=device)[None], torch.tensor([[9.0, 8.0, 6.0, 4.0]], device=device)
    rays = triton_rays.embed_rays(weight, *camera, images, 8, 12, 4)
    pairs += [
        (triton_rows.silu_unit(k), reference.silu_unit(k)),
        (triton_rows.rms_norm(v, gain, 1e-5, torch.float32), reference.rms_norm(v, gain)),
        (rays, reference.embed_rays(weight, *camera, images, (8, 12), 4)),
    ]
    ours = fast_weights.fast_weight_gradients(w0, w1, w2, k, v, *rates, dtype)
    pairs += zip(ours, reference.fast_weight_gradients(w0, w1, w2, k, v, *rates), strict=True)
    errors = [_error(a, b) for a, b in pairs]
    losses = [torch.stack([pair[i].float().square().sum() for pair in pairs]).sum() for i in (0, 1)]
    backward = [torch.autograd.grad(loss, (w0, w1, k, v)) for loss in losses]
    return max(errors + [_error(a, b) for a, b in zip(*backward, strict=True)])


def _error(ours: torch.Tensor, reference: torch.Tensor) -> float:
    ours, reference = ours.detach().float(), reference.detach().float()
    return ((ours - reference).norm() / reference.norm()).item()
