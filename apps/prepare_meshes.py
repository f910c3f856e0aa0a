"""`nvs prepare` on meshes: rendered as captures with known cameras."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from apps.progress import progress_bar

if TYPE_CHECKING:
    from data import MeshSceneConfig

MAX_TOLD = 20
"""So many broken meshes are named, the rest counted."""


def prepare_meshes(
    inputs: list[str],
    output: Path | None = None,
    views: int = 24,
    size: tuple[int, int] = (128, 128),
    layout: Literal["random-sphere", "orbit", "fibonacci"] = "random-sphere",
    fov_range: tuple[float, float] = (44.0, 57.0),
    radius_range: tuple[float, float] = (2.5, 2.9),
    elevation_range: tuple[float, float] = (-20.0, 80.0),
    scale_range: tuple[float, float] = (0.9, 1.15),
    aim_jitter: float = 0.03,
    rays_per_side: int = 2,
    up: Literal["auto", "y", "z"] = "auto",
    seed: int = 0,
    processes: int = 0,
    overwrite: bool = False,
) -> None:
    """Render meshes as captures: pictures with alpha and their true cameras, ready for every other command.

    Each mesh is scaled to about radius 1 and lit at random. The same seed gives the same bytes. Scenes that are
    already there are not made again, so an interrupted run goes on when it is repeated.

      nvs prepare chair.glb -o chair/ --views 48 --size 256 256
      nvs prepare objects/ -o objects64/ --size 64 64

    Args:
        inputs: mesh files (.glb, .gltf, .obj, .ply), folders with such files, or .txt lists of paths, one a line
        output: folder for the scene of a single file, else for one scene folder per mesh
        views: pictures per mesh
        size: height and width of the pictures in pixels
        layout: where cameras stand: random on the sphere, on one circle, or evenly along a spiral
        fov_range: horizontal field of view in degrees, one draw per mesh
        radius_range: distance of cameras from the middle of the mesh in world units, one draw per view
        elevation_range: height of cameras in degrees above the horizon; an orbit takes the middle
        scale_range: bounding radius that the mesh is scaled to in world units, one draw per mesh
        aim_jitter: standard deviation of the point that cameras look at, in world units
        rays_per_side: rays along each side of a pixel; 2 means 4 rays a pixel
        up: axis of the mesh files that points up; auto is y, but z for .ply
        seed: number from which, with the mesh's name, all random draws follow
        processes: how many meshes to render at a time; 0 is one per processor core
        overwrite: replace scenes that this command made in another way before
    """
    from data import MeshSceneConfig, UsageError, UserError, find_meshes, require_open3d

    if output is None:
        raise UsageError("Say where the scenes go with -o FOLDER.")
    config = MeshSceneConfig(
        views=views,
        size=size,
        layout=layout,
        fov_range=fov_range,
        radius_range=radius_range,
        elevation_range=elevation_range,
        scale_range=scale_range,
        aim_jitter=aim_jitter,
        rays_per_side=rays_per_side,
        up=up,
        seed=seed,
    )
    if processes < 0:
        raise UserError(f"--processes is {processes}; give 0 for one per core, or a positive number.")
    meshes = find_meshes(inputs)
    require_open3d()
    output = Path(os.path.abspath(output))
    if len(inputs) == 1 and Path(inputs[0]).is_file() and len(meshes) == 1:
        render_one(*meshes.popitem(), output, config, overwrite)
    else:
        render_many(meshes, output, config, overwrite, processes or core_count())


def render_one(name: str, mesh: Path, folder: Path, config: MeshSceneConfig, overwrite: bool) -> None:
    """Render one mesh into the scene `folder`, in this process."""
    from data import write_mesh_scene

    with progress_bar(f"rendering {name}", config.views) as advance:
        made = write_mesh_scene(mesh, folder, name, config, overwrite, on_view=advance)
    print(f"{folder}: {config.views} views" if made else f"{folder}: was already there")


def render_many(
    meshes: dict[str, Path], output: Path, config: MeshSceneConfig, overwrite: bool, processes: int
) -> None:
    """Render each mesh into `output`/name, several at a time; broken meshes are told at the end."""
    from data import remove_partial_scene

    results: list[str | None] = []
    try:
        with (
            progress_bar(f"rendering {len(meshes)} meshes", len(meshes)) as advance,
            workers(min(processes, len(meshes))) as pool,
        ):
            jobs = [pool.submit(render_in_worker, m, output / n, n, config, overwrite) for n, m in meshes.items()]
            for job in as_completed(jobs):
                results.append(result_of(job))
                advance()
    finally:
        for name in meshes:
            remove_partial_scene(output / name)
    report(results, output, config.views)


def report(results: list[str | None], output: Path, views: int) -> None:
    """Tell what came of all meshes; raises UserError if some failed."""
    from data import UserError

    made, kept = results.count(None), results.count("")
    problems = sorted(r for r in results if r)
    print(f"{output}: {made} scenes of {views} views made, {kept} were already there")
    if problems:
        more = [f"and {len(problems) - MAX_TOLD} more"] if len(problems) > MAX_TOLD else []
        first = f"{len(problems)} of {len(results)} meshes could not be rendered:"
        raise UserError("\n".join([first, *problems[:MAX_TOLD], *more]))


def render_in_worker(mesh: Path, folder: Path, name: str, config: MeshSceneConfig, overwrite: bool) -> str | None:
    """Render one mesh; returns None if that was done, "" if it was there already, or what is wrong with the mesh."""
    from data import UserError, write_mesh_scene

    try:
        return None if write_mesh_scene(mesh, folder, name, config, overwrite) else ""
    except UserError as error:
        return str(error)


def result_of(job: Future[str | None]) -> str | None:
    """What a worker returned; a worker that was killed is an error of its own."""
    from data import UserError

    try:
        return job.result()
    except BrokenProcessPool as error:
        raise UserError(
            "A rendering process was killed, perhaps for want of memory; give fewer --processes and repeat the command."
        ) from error


@contextmanager
def workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes; when the block fails, they are stopped at once."""
    # A server that has imported the packages once forks workers quickly, and holds no threads that a fork would break.
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    context.set_forkserver_preload(["data"])
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=start_worker)
    try:
        yield pool
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def start_worker() -> None:
    """Leave Ctrl-C to the main process, and end when that is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main = multiprocessing.parent_process()
    if main is not None:
        threading.Thread(target=lambda: (main.join(), os._exit(1)), daemon=True).start()


def core_count() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
