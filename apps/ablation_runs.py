"""The runs of an ablation: each trained in a process of its own, then judged; what is finished is not done again."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from data import Scene, UserError, find_scenes, open_scene
from data.config import DataConfig

GRACE_SECONDS = 60
"""How long a run may take to save itself after it was asked to end."""


@dataclass(frozen=True)
class Run:
    """One variant trained with one seed."""

    variant: str
    file: Path
    """YAML file that names the memory layer."""
    seed: int
    folder: Path

    @property
    def metrics(self) -> Path:
        """What the run came to; there once it is finished."""
        return self.folder / "metrics.json"

    @property
    def trained(self) -> Path:
        """An empty file, there once the training has come to its end."""
        return self.folder / "trained"

    @property
    def checkpoint(self) -> Path:
        """The newest weights."""
        return self.folder / "last.ckpt"


@dataclass(frozen=True)
class Judging:
    """How every finished model is judged."""

    captures: tuple[str, ...]
    inputs: int
    targets: int


class Runner:
    """Trains and judges runs, several at a time; Ctrl-C and SIGTERM let the running ones save themselves."""

    def __init__(self, settings: Path, judging: Judging, threads: int, lock: int) -> None:
        self.settings, self.judging, self.threads, self.lock = settings, judging, threads, lock
        self.processes: set[subprocess.Popen] = set()
        self.stopping = False
        self.judged = threading.Lock()

    def work(self, runs: Sequence[Run], jobs: int) -> Generator[tuple[Run, str | None], None, None]:
        """Yield each run when it is finished, with None or the reason why it failed."""
        pool = ThreadPoolExecutor(jobs)
        # Also where a shell has started us in the background, with Ctrl-C ignored.
        before = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        futures: dict[Future[str | None], Run] = {}
        try:
            futures = {pool.submit(self._work_on, run): run for run in runs if not run.metrics.is_file()}
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            self._stop()
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            pool.shutdown(cancel_futures=True)

    def _work_on(self, run: Run) -> str | None:
        try:
            if not run.trained.is_file():
                self._train(run)
                run.trained.touch()
            with self.judged:
                judge(run, self.judging)
        except UserError as error:
            return str(error)
        return None

    def _train(self, run: Run) -> None:
        run.folder.mkdir(parents=True, exist_ok=True)
        words = ["train", "--config", str(self.settings), "--config", str(run.file)]
        words += ["--training.seed", str(run.seed), "--output", str(run.folder)]
        if run.checkpoint.exists() or run.checkpoint.with_name("previous.ckpt").exists():
            words += ["--resume", "last"]
        log = run.folder / "log.txt"
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads)}
        with log.open("ab") as file:
            if self.stopping:
                raise KeyboardInterrupt
            # In a session of its own, so that Ctrl-C reaches it once, from us. The lock lives as long as the run does.
            process = subprocess.Popen(
                [sys.executable, "-m", "apps", *words],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=environment,
                start_new_session=True,
                pass_fds=(self.lock,),
            )
        self.processes.add(process)
        code = process.wait()
        self.processes.discard(process)
        if self.stopping:
            raise KeyboardInterrupt
        if code:
            raise UserError(_last_line(log) or f"the run ended with exit code {code}")

    def _stop(self) -> None:
        """Ask the running processes to save themselves and end; a second Ctrl-C, or too long a wait, kills them."""
        self.stopping = True
        running = list(self.processes)
        for process in running:
            process.send_signal(signal.SIGINT)
        end = time.monotonic() + GRACE_SECONDS
        try:
            for process in running:
                process.wait(max(0.0, end - time.monotonic()))
        except (KeyboardInterrupt, subprocess.TimeoutExpired):
            for process in running:
                process.kill()


def judge(run: Run, judging: Judging) -> None:
    """Compare a trained model with held-out photos and write the run's metrics."""
    from nvs import load_model
    from nvs.evaluation import Settings, evaluate
    from nvs.lpips import Unavailable
    from nvs.memory import build_memory
    from nvs.results import write_json

    model = load_model(run.checkpoint)
    states = []
    evaluation = evaluate(
        model,
        judging.captures,
        Settings(judging.inputs, judging.targets),
        Unavailable("not part of an ablation"),
        on_scene=lambda _, scene: states.append(scene.state.num_bytes),
    )
    fresh = build_memory(model.config.dim, model.config.memory).init_state(1)
    found = {
        "variant": run.variant,
        "seed": run.seed,
        "steps": model.trained.steps if model.trained else 0,
        "parameters": sum(p.numel() for p in model.parameters()),
        "state_bytes": round(sum(states) / len(states)),
        "state_grows": any(0 in x.shape for x in fresh),
        "memory": asdict(model.config.memory),
    }
    write_json(evaluation, run.metrics, found)


def find_judged(judging: Judging, data: DataConfig) -> list[Scene]:
    """Captures that models can be judged with, as many as a batch has if there are so many.

    Raises UserError for a path without captures, and where no capture has enough photos: before anything is trained.
    """
    from nvs.evaluation import Settings, choose_views

    places = [place for capture in judging.captures for place in find_scenes(capture)]
    found: list[Scene] = []
    problem = "no capture was named"
    for place in places:
        if len(found) == data.batch_size:
            break
        try:
            scene = open_scene(place, background=data.background).hold_out(data.holdout_every)
            choose_views(scene, Settings(judging.inputs, judging.targets))
            found.append(scene)
        except UserError as error:
            problem = str(error)
    if not found:
        raise UserError(f"The models could not be judged: {problem}")
    return found


@contextmanager
def only_one(folder: Path) -> Iterator[int]:
    """Keep a folder for this process and those that it starts; yields the file descriptor that holds it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"Nothing can be written to {folder} ({error.strerror}): choose another --output.") from error
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise UserError(
            f"{folder} is in use by another nvs ablate, or by a run that outlived one: wait until it ends, or end it."
        ) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1].removeprefix("nvs: ") if lines else ""
