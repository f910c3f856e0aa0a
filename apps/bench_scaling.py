"""`nvs bench scaling`: how encoding, rendering and the state grow with the number of input views."""

from __future__ import annotations

from pathlib import Path

from apps.bench_memory import MIN_RUNS


def bench_scaling(
    output: Path = Path("out/scaling.png"),
    views: tuple[int, ...] = (2, 4, 8, 16, 32, 64),
    image_size: tuple[int, int] = (64, 64),
    dim: int = 128,
    layers: int = 4,
    runs: int = 5,
    threads: int | None = None,
    device: str = "cpu",
    overwrite: bool = False,
) -> None:
    """Plot encode time, render time and size of the state for full attention, LaCT and linear attention.

    The models have random weights and differ in their memory alone; they take turns. Writes a PNG and, beside it, a
    JSON file with the figures, and prints by which power of the number of views each quantity grows at the end.

      Example: nvs bench scaling -o out/scaling.png --views 2 8 32 --threads 1

    Args:
        output: The PNG file; the figures go beside it with the suffix .json.
        views: Numbers of input views.
        image_size: Height and width of input and rendered views, in pixels.
        dim: Token width of the models.
        layers: Blocks of the models.
        runs: Timed rounds (3 or more) at each number of views; medians are told.
        threads: CPU threads to use (default: what PyTorch chooses).
        device: Where to compute, for example cpu or cuda.
        overwrite: Replace files that are there.
    """
    import torch
    from rich.progress import track

    from data import UserError
    from nvs import scaling
    from nvs.tokens import check_patches
    from nvs.video import check_writable

    cores = () if threads is None else (threads,)
    for option, numbers in {"--views": views, "--runs": (runs,), "--threads": cores or (1,)}.items():
        if not numbers or min(numbers) < 1:
            raise UserError(f"{option} {' '.join(map(str, numbers))} is not possible: give 1 or more.")
    if runs < MIN_RUNS:
        raise UserError(f"--runs {runs} is too few: medians over {MIN_RUNS} rounds or more can be compared.")
    if len(set(views)) < 2:
        raise UserError("Give at least two different numbers of --views: one alone shows no growth.")
    if output.suffix.lower() != ".png":
        raise UserError(f"{output} is no name for a picture: let --output end with .png.")
    figures = output.with_suffix(".json")
    for path in (output, figures):
        if path.exists() and not overwrite:
            raise UserError(f"{path} is there already: choose another --output, or add --overwrite.")
        check_writable(path)
    if threads is not None:
        torch.set_num_threads(threads)
    if device != "cpu" and not torch.cuda.is_available():
        raise UserError(f"--device {device} is not there: PyTorch sees no GPU. Leave --device out to use the CPU.")
    try:
        models = scaling.random_models(dim, layers, device)
    except ValueError as error:
        raise UserError(f"These models cannot be built: {error}. Change --dim or --layers.") from error
    check_patches(image_size, models["LaCT"].config.patch_size)
    counts = sorted(set(views))
    *_, points = track(scaling.measure(models, counts, image_size, runs), "rounds", runs + 1, transient=True)
    (h, w), patch = image_size, models["LaCT"].config.patch_size
    threads = torch.get_num_threads()
    where = f"CPU, {threads} thread{'s' * (threads > 1)}" if device == "cpu" else torch.cuda.get_device_name()
    title = f"{h}x{w} pixels, {patch}x{patch} patches, width {dim}, {layers} blocks; {where}, medians of {runs}"
    _write(points, title, output, figures)
    _tell(points, title)
    print(f"wrote {output} and {figures}")


def _write(points: list, title: str, output: Path, figures: Path) -> None:
    import json
    from dataclasses import asdict

    from data import write_atomic
    from nvs import scaling

    output.parent.mkdir(parents=True, exist_ok=True)
    scaling.draw(points, title, output)
    with write_atomic(figures) as temporary:
        content = {"title": title, "growth": _growth(points), "points": [asdict(point) for point in points]}
        temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")


def _growth(points: list) -> dict[str, dict[str, float]]:
    from nvs import scaling

    names = dict.fromkeys(point.memory for point in points)
    return {name: {q: scaling.growth(points, name, q) for q in scaling.QUANTITIES} for name in names}


def _tell(points: list, title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    from nvs import scaling

    table = Table("memory", "views", *scaling.QUANTITIES.values())
    for point in sorted(points, key=lambda p: (p.memory, p.views)):
        table.add_row(point.memory, str(point.views), *(f"{getattr(point, q):.2f}" for q in scaling.QUANTITIES))
    for name, powers in _growth(points).items():
        table.add_row(name, "grows as", *(f"views^{power:.2f}" for power in powers.values()), style="bold")
    console = Console()
    console.print(title)
    console.print(table)
