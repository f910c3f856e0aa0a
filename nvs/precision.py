"""Which precision of matrix products suits a device."""

from __future__ import annotations

import torch


def has_bfloat16(device: str | torch.device) -> bool:
    """Whether the device multiplies bfloat16 in hardware, on CPUs 1.5 to 1.7 times as fast as float32."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # Without oneDNN (PyTorch for macOS) bfloat16 is slow on any CPU; older PyTorch does not tell what a CPU has.
    if device.type != "cpu" or not torch.backends.mkldnn.is_available() or not hasattr(torch.cpu, "get_capabilities"):
        return False
    has = torch.cpu.get_capabilities()
    return any(has.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))
