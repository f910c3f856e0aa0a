"""`nvs convert`: write a capture or a checkpoint in another form."""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def convert(
    paths: list[str],
    to: Literal["transforms", "colmap", "opencv-json", "shards"] | None = None,
    image_size: tuple[int, int] | None = None,
    shard_mb: int | None = None,
    quality: int | None = None,
    dtype: Literal["float32", "bfloat16", "float16"] | None = None,
    overwrite: bool = False,
) -> None:
    """Write captures in another format, or a checkpoint in another form. The last path is where the result goes.

    Captures need --to. Photos are copied; where the format knows nothing of a distorted lens, they are straightened.
    Shards are tar files for training sets that outgrow a disk or a machine: they hold many captures with photos of one
    size, and are read as a stream (data.source shards in nvs train --help).
    The form of a checkpoint, ours (.safetensors) or that of the published LaCT code (.pt), follows from the target.

      nvs convert my_capture out/ --to colmap
      nvs convert objects/ more/*.zip shards/ --to shards --image-size 128 128
      nvs convert obj_res256.pt obj.safetensors --dtype bfloat16

    Args:
        paths: Capture (folder, file or .zip) and folder to write; or a checkpoint to read (.pt, .ckpt, .safetensors or
            a shipped name) and a file, whose ending says in which form. For shards, several captures, patterns and
            lists of captures, and then the folder.
        to: Format of the capture: transforms.json of nerfstudio, a COLMAP model, opencv_cameras.json of LaCT, or
            WebDataset shards.
        image_size: Height and width in pixels of the photos in shards.
        shard_mb: Size in MB at which a shard is full (default: 256).
        quality: Photos in shards as WebP of this quality, 1 to 100 (default: PNG, without loss).
        dtype: Number format of the weights in a .safetensors file (default: float32).
        overwrite: Replace a target that exists; of a folder, only what this command writes.
    """
    from data import UsageError, UserError

    if len(paths) < 2:
        raise UsageError("Give what to convert and, behind it, where the result goes.")
    *sources, target = paths
    if to is not None and dtype is not None:
        raise UserError("--dtype is for checkpoints; leave it out, or leave --to out to convert a checkpoint.")
    if to != "shards" and any(option is not None for option in (image_size, shard_mb, quality)):
        raise UserError("--image-size, --shard-mb and --quality are for --to shards; leave them out.")
    if to is not None and Path(target).suffix.lower() in (".zip", ".tar", ".gz"):
        raise UserError(f"{target} names an archive, but a folder is written: leave out {Path(target).suffix}.")
    if to == "shards":
        from apps.convert_shards import convert_shards

        convert_shards(sources, Path(target), image_size, 256 if shard_mb is None else shard_mb, quality, overwrite)
        return
    if len(sources) > 1:
        raise UserError(f"{len(sources)} things to convert were given; give one, or write captures with --to shards.")
    if to is not None:
        from apps.convert_scene import convert_scene

        convert_scene(sources[0], Path(target), to, overwrite)
        return
    if Path(sources[0]).is_dir():
        raise UsageError(
            f"{sources[0]} is a folder: say in which format to write the capture, for example --to transforms."
        )
    _convert_checkpoint(sources[0], target, dtype, overwrite)


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
