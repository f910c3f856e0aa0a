"""Opens damaged captures: each input ends in a sound scene or a UserError, soon and without much memory.

`python tests/fuzz/formats.py --inputs 500` does it for every format, each in a process of its own with limits.
"""

import argparse
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import kornia.geometry  # noqa: E402, F401  (slow to import, which no input should be blamed for)
import numpy as np  # noqa: E402
import scene_files  # noqa: E402
import torch  # noqa: E402
from fuzz.mutations import mutate  # noqa: E402

from data import UserError, list_scenes, open_scene  # noqa: E402

MOST_SECONDS = 5
MOST_BYTES = 2**30


def run_format(name: str, inputs: int, seed: int = 0) -> dict[str, int]:
    """Damage one file of a valid capture after the other; returns how many inputs were opened and refused."""
    counts = {"opened": 0, "refused": 0}
    with tempfile.TemporaryDirectory() as folder:
        files = write(name, Path(folder))
        whole = {file: file.read_bytes() for file in files}
        place = files[0] if name == "scene_lists" else Path(folder)
        for i in range(inputs):
            rng = random.Random(f"{name} {seed} {i}")
            file = rng.choice(files)
            file.write_bytes(mutate(whole[file], rng))
            try:
                with time_limit():
                    opened = check(file if name == "scene_lists" else place, folder)
            except BaseException:
                print(f"input {i} of {name} failed: {file.name} = {file.read_bytes()[:3000]!r}")
                raise
            counts["opened" if opened else "refused"] += 1
            file.write_bytes(whole[file])
    return counts


def write(name: str, folder: Path) -> list[Path]:
    """A valid capture with three photos; returns the files that tell of the cameras."""
    numbers = (100, 200, 300)
    views = [scene_files.random_view(f"{n}.png", np.random.default_rng(n)) for n in numbers]
    return scene_files.WRITERS[name](folder, views)


def check(place: Path, folder: str) -> bool:
    """Open a capture and look at what comes out; False if it is refused in one line."""
    try:
        list_scenes(place)
        scene = open_scene(place)
        views = scene.load([0], (8, 8))
    except UserError as error:
        assert "\n" not in str(error).replace(folder, ""), str(error)
        return False
    rotation = scene.world_c2w[:, :3, :3]
    np.testing.assert_allclose(rotation @ rotation.transpose(0, 2, 1), [np.eye(3)] * len(scene), atol=1e-6)
    assert np.isfinite(scene.world_to_scene).all()
    assert all("\n" not in line for line in (*scene.warnings, *scene.notes))
    assert views.c2w.isfinite().all() and views.intrinsics.isfinite().all()
    return True


@contextmanager
def time_limit() -> Iterator[None]:
    """An error after five seconds."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"longer than {MOST_SECONDS} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(MOST_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def limit_memory() -> None:
    """From here on, this process can have one GiB more than it has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def main() -> int:
    """All formats, or one in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--format", choices=list(scene_files.WRITERS))
    args = parser.parse_args()
    if args.format:
        torch.set_num_threads(1)
        run_format(args.format, 3, args.seed + 1)  # loads what is loaded late
        limit_memory()
        counts = run_format(args.format, args.inputs, args.seed)
        print(f"{args.format}: {args.inputs} inputs, {counts['opened']} opened, {counts['refused']} refused")
        return 0
    failed = []
    for name in scene_files.WRITERS:
        start = time.monotonic()
        words = [sys.executable, __file__, "--format", name, "--inputs", str(args.inputs), "--seed", str(args.seed)]
        if subprocess.run(words, cwd=ROOT).returncode:
            failed.append(name)
        print(f"{name}: {time.monotonic() - start:.0f} s", flush=True)
    print(f"failed: {', '.join(failed)}" if failed else "all formats passed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
