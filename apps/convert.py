"""`nvs convert`: write a capture or a checkpoint in another form."""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def convert(
    source: str,
    target: str,
    to: Literal["transforms", "colmap", "opencv-json"] | None = None,
    dtype: Literal["float32", "bfloat16", "float16"] | None = None,
    overwrite: bool = False,
) -> None:
    """Write a capture in another format, or a checkpoint in another form.

    A capture needs --to. Photos are copied; where the format knows nothing of a distorted lens, they are straightened.
    The form of a checkpoint, ours (.safetensors) or that of the published LaCT code (.pt), follows from the target.

      nvs convert my_capture out/ --to colmap
      nvs convert obj_res256.pt obj.safetensors --dtype bfloat16

    Args:
        source: Capture (folder, file or .zip), or checkpoint to read: .pt, .ckpt or .safetensors, or a shipped name.
        target: Folder for the capture, or file for the checkpoint; its ending, .safetensors or .pt, says in which form.
        to: Format of the capture: transforms.json of nerfstudio, a COLMAP model, or opencv_cameras.json of LaCT.
        dtype: Number format of the weights in a .safetensors file (default: float32).
        overwrite: Replace a target that exists; of a folder, only what this command writes.
    """
    from data import UserError

    if to is not None:
        from apps.convert_scene import convert_scene

        if dtype is not None:
            raise UserError("--dtype is for checkpoints; leave it out, or leave --to out to convert a checkpoint.")
        convert_scene(source, Path(target), to, overwrite)
        return
    if Path(source).is_dir():
        raise UserError(f"{source} is a folder: say in which format to write the capture, for example --to transforms.")
    _convert_checkpoint(source, target, dtype, overwrite)


def _convert_checkpoint(
    source: str, target: str, dtype: Literal["float32", "bfloat16", "float16"] | None, overwrite: bool
) -> None:
    from rich.console import Console

    import nvs
    from data import UserError
    from nvs.checkpoint import save_published
    from nvs.video import check_writable

    out = Path(target)
    if out.suffix not in (".safetensors", ".pt"):
        raise UserError(
            f"{out} has the ending {out.suffix or '(none)'}; give .safetensors (ours) or .pt (published form), "
            "or add --to to convert a capture"
        )
    if dtype is not None and out.suffix == ".pt":
        raise UserError(
            "the published form keeps its weights in float32; leave --dtype out or write a .safetensors file"
        )
    if out.exists() and not overwrite:
        raise UserError(f"{out} exists already; give another name, or --overwrite to replace it")
    check_writable(out)
    model = nvs.load_model(source)
    if out.suffix == ".pt":
        save_published(model, out)
    else:
        nvs.save_model(model, out, dtype)
    count = sum(p.numel() for p in model.parameters())
    Console().print(
        f"{out}: {count / 1e6:.1f} M parameters, {out.stat().st_size / 1e6:.1f} MB", highlight=False, soft_wrap=True
    )
