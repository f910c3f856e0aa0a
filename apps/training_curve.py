"""Training runs as one picture, held-out PSNR over minutes: `python -m apps.training_curve OUT.png NAME=RUN[,RUN...]`.

Runs that go on from each other (`init_from`) are given in order, with commas between them; their folders have none.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from data import UserError
from nvs.training_curve import draw_curves


def main(arguments: list[str] | None = None) -> int:
    """Draw the picture; 1 if a run has nothing to draw."""
    parser = argparse.ArgumentParser(prog="python -m apps.training_curve", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("output", type=Path, help="picture to write, .png")
    parser.add_argument("models", nargs="+", metavar="NAME=RUN[,RUN...]", help="name in the legend, folders of runs")
    o = parser.parse_args(arguments)
    if o.output.suffix.lower() != ".png":
        parser.error(f"the picture comes first and must be a .png, got {o.output}")
    models: dict[str, list[Path]] = {}
    for name, _, runs in (model.partition("=") for model in o.models):
        if not name or not all(runs.split(",")) or name in models:
            parser.error("each model is NAME=RUN with a name of its own, as in ours=runs/demo_attention,runs/demo")
        models[name] = [Path(run) for run in runs.split(",")]
    try:
        draw_curves(models, o.output)
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"written: {o.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
