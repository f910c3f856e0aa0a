"""Opens damaged captures and meshes: each input ends in a sound scene or a UserError, soon and without much memory.

`python tests/fuzz/formats.py --inputs 500` does it for every format, each in a process of its own with limits.
"""

import argparse
import json
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import kornia.geometry  # noqa: E402, F401  (slow to import, which no input should be blamed for)
import mesh_files  # noqa: E402
import numpy as np  # noqa: E402
import scene_files  # noqa: E402
import torch  # noqa: E402
from fuzz.mutations import mutate  # noqa: E402

from data import UserError, list_scenes, load_mesh, open_scene  # noqa: E402
from data.config import DataConfig  # noqa: E402
from data.shards.index import find_shards  # noqa: E402
from data.shards.stream import ShardStream  # noqa: E402

MOST_SECONDS = 5
MOST_BYTES = 2**30


def write_obj(folder: Path) -> list[Path]:
    """A mesh with a material and a picture."""
    return [mesh_files.write_obj(folder), folder / "a.mtl"]


def write_ply(folder: Path, encoding: str) -> list[Path]:
    """A coloured mesh with a picture."""
    mesh_files.quadrants().save(folder / "tex.png")
    (folder / "a.ply").write_bytes(mesh_files.ply_text(encoding, [[0, 1, 2, 3], [0, 1, 2]], texture=True))
    return [folder / "a.ply"]


def write_gltf(folder: Path, binary: bool) -> list[Path]:
    """A textured mesh."""
    material = {"pbrMetallicRoughness": {"baseColorTexture": {"index": 0}}}
    picture = mesh_files.png(mesh_files.quadrants(4))
    content = mesh_files.gltf(material, picture, TEXCOORD_0=mesh_files.SQUARE_UV)
    if binary:
        return [mesh_files.write_glb(folder / "a.glb", content)]
    (folder / "a.gltf").write_text(json.dumps(content))
    return [folder / "a.gltf"]


class TooSlow(BaseException):
    """An input took too long; nothing that is tested catches this."""


MESHES = {
    "obj": write_obj,
    "ply_text": lambda folder: write_ply(folder, "ascii"),
    "ply_binary": lambda folder: write_ply(folder, "binary_little_endian"),
    "gltf": lambda folder: write_gltf(folder, binary=False),
    "glb": lambda folder: write_gltf(folder, binary=True),
}
FORMATS = (*scene_files.WRITERS, *MESHES)


def run_format(name: str, inputs: int, seed: int = 0) -> dict[str, int]:
    """Damage one file of a valid capture after the other; returns how many inputs were opened and refused."""
    counts = {"opened": 0, "refused": 0}
    with tempfile.TemporaryDirectory() as folder:
        files = write(name, Path(folder))
        whole = {file: file.read_bytes() for file in files}
        place = files[0] if name in ("scene_lists", "zip", *MESHES) else Path(folder)
        for i in range(inputs):
            rng = random.Random(f"{name} {seed} {i}")
            file = rng.choice(files)
            file.write_bytes(mutate(whole[file], rng))
            try:
                with time_limit():
                    opened = check(name, file if name == "scene_lists" else place, folder)
            except BaseException:
                print(f"input {i} of {name} failed: {file.name} = {file.read_bytes()[:3000]!r}")
                raise
            counts["opened" if opened else "refused"] += 1
            file.write_bytes(whole[file])
    return counts


def write(name: str, folder: Path) -> list[Path]:
    """A valid mesh, or capture with three photos; returns the files that tell of the cameras."""
    if name in MESHES:
        return MESHES[name](folder)
    numbers = (100, 200, 300)
    views = [scene_files.random_view(f"{n}.png", np.random.default_rng(n)) for n in numbers]
    return scene_files.WRITERS[name](folder, views)


def check(name: str, place: Path, folder: str) -> bool:
    """Open a capture or a mesh and look at what comes out; False if it is refused in one line."""
    try:
        if name in MESHES:
            mesh = load_mesh(place)
            assert np.isfinite(mesh.vertices).all() and mesh.triangles.max() < len(mesh.vertices)
            return True
        if name == "shards":
            check_stream(place)
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


def check_stream(place: Path) -> None:
    """Read training batches out of shards."""
    config = DataConfig(source="shards", image_size=(8, 8), batch_size=1, input_views=(1, 1), target_views=(1, 1))
    for batch in islice(ShardStream(find_shards([str(place)]), config, 0, 0, 0, 1), 2):
        assert batch.inputs.images.isfinite().all() and batch.inputs.c2w.isfinite().all()


@contextmanager
def time_limit() -> Iterator[None]:
    """An error after five seconds."""

    def stop(*_: object) -> None:
        raise TooSlow(f"longer than {MOST_SECONDS} s")

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
    parser.add_argument("--format", choices=FORMATS)
    args = parser.parse_args()
    if args.format:
        torch.set_num_threads(1)
        run_format(args.format, 3, args.seed + 1)  # loads what is loaded late
        limit_memory()
        counts = run_format(args.format, args.inputs, args.seed)
        print(f"{args.format}: {args.inputs} inputs, {counts['opened']} opened, {counts['refused']} refused")
        return 0
    failed = []
    for name in FORMATS:
        start = time.monotonic()
        words = [sys.executable, __file__, "--format", name, "--inputs", str(args.inputs), "--seed", str(args.seed)]
        if subprocess.run(words, cwd=ROOT).returncode:
            failed.append(name)
        print(f"{name}: {time.monotonic() - start:.0f} s", flush=True)
    print(f"failed: {', '.join(failed)}" if failed else "all formats passed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
