"""The self-test of the Triton operators, in Triton's interpreter (run in a process of its own)."""

import torch

from kernels import selftest, triton_norm


def test_right_operators_pass_wherever_they_are_asked():
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert selftest.failure(torch.float32, "cpu") is None


def test_wrong_numbers_and_crashes_are_told(monkeypatch):
    right = triton_norm.add_and_restore_norm
    monkeypatch.setattr(triton_norm, "add_and_restore_norm", lambda w, g: right(w, g) * 1.1)
    assert "wrong numbers" in selftest.failure.__wrapped__(torch.float32, "cpu")

    def crash(w, g):
        raise RuntimeError("out of resource: shared memory\nmore text")

    monkeypatch.setattr(triton_norm, "add_and_restore_norm", crash)
    assert selftest.failure.__wrapped__(torch.float32, "cpu") == "its self-test failed (out of resource: shared memory)"
