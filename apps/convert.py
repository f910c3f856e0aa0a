"""`nvs convert`: write a checkpoint in another form."""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def convert(
    source: str,
    target: str,
    dtype: Literal["float32", "bfloat16", "float16"] | None = None,
    overwrite: bool = False,
) -> None:
    """Write a checkpoint in another form: ours (.safetensors) or that of the published LaCT code (.pt).

      Example: nvs convert obj_res256.pt obj.safetensors --dtype bfloat16

    Args:
        source: Checkpoint to read: .pt, .ckpt or .safetensors, or a shipped name.
        target: File to write; its ending, .safetensors or .pt, says in which form.
        dtype: Number format of the weights in a .safetensors file (default: float32).
        overwrite: Replace a target that exists.
    """
    from rich.console import Console

    import nvs
    from data import UserError
    from nvs.checkpoint import save_published

    out = Path(target)
    if out.suffix not in (".safetensors", ".pt"):
        raise UserError(
            f"{out} has the ending {out.suffix or '(none)'}; give .safetensors (ours) or .pt (published form)"
        )
    if dtype is not None and out.suffix == ".pt":
        raise UserError(
            "the published form keeps its weights in float32; leave --dtype out or write a .safetensors file"
        )
    if out.exists() and not overwrite:
        raise UserError(f"{out} exists already; give another name, or --overwrite to replace it")
    model = nvs.load_model(source)
    if out.suffix == ".pt":
        save_published(model, out)
    else:
        nvs.save_model(model, out, dtype)
    count = sum(p.numel() for p in model.parameters())
    Console().print(
        f"{out}: {count / 1e6:.1f} M parameters, {out.stat().st_size / 1e6:.1f} MB", highlight=False, soft_wrap=True
    )
