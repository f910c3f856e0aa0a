"""Evaluate a model on captures: encode some photos, render held-out ones, and compare, beside two baselines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from data import Cameras, PhotoCache, Scene, UserError, Views, every, find_scenes, open_scene
from nvs.baselines import mean_input, nearest_input
from nvs.lpips import MIN_SIZE, Lpips, Unavailable, load_lpips
from nvs.metrics import SSIM_WINDOW, chroma_error, psnr, psnr_inside, ssim
from nvs.model import LaCT
from nvs.renderer import Renderer
from nvs.results import METRICS, MODEL, Evaluation, SceneResult, SkippedScene
from nvs.scene_state import SceneState
from nvs.tokens import check_patches

TOO_FEW = "too few photos"


@dataclass(frozen=True)
class Settings:
    """How a model is evaluated."""

    inputs: int = 4
    """Photos that the model is given."""
    targets: int | None = 8
    """Held-out photos that are compared, evenly chosen; None: all others."""
    image_size: tuple[int, int] | None = None
    """Height and width in pixels; None: the size that the model was trained at, else 256x256."""
    views_per_batch: int = 8
    """Views rendered at a time."""
    holdout_every: int | None = None
    """Of captures whose files keep no photos from training, only every k-th is compared and never an input; 0: any may
    be either; None: as the model was trained, so that no training photo is compared."""

    def __post_init__(self) -> None:
        """Refuse counts that leave nothing to do."""
        if self.holdout_every == 1 or (self.holdout_every or 0) < 0:
            raise UserError("Every k-th photo can be held out for k of 2 or more; 0 holds out none.")
        if self.inputs < 1 or (self.targets is not None and self.targets < 1):
            raise UserError(
                f"An evaluation with {self.inputs} input views and {self.targets} held-out photos is not possible; "
                "give at least 1 of each."
            )


@dataclass(frozen=True)
class SceneRun:
    """One scene encoded and rendered: what went in and what came out, on the CPU."""

    inputs: Views
    targets: Views
    renderings: Float[Tensor, "t 3 h w"]
    state: SceneState
    encode_seconds: float
    render_seconds: float


def evaluate(
    model: LaCT,
    paths: Sequence[Path | str],
    settings: Settings,
    lpips: Lpips | Unavailable | None = None,
    on_scene: Callable[[SceneResult, SceneRun], None] | None = None,
    progress: Callable[[list[Path | SkippedScene]], Iterable[Path | SkippedScene]] = iter,
) -> Evaluation:
    """Evaluate every scene that can be; a folder, list or pattern stands for the scenes in it.

    `on_scene` is called with each result and its pictures (to draw them); `progress` wraps the loop over scenes.
    """
    image_size = choose_image_size(model, settings.image_size)
    metric = load_lpips() if lpips is None else lpips
    results: list[SceneResult] = []
    skipped: list[SkippedScene] = []
    cache = PhotoCache()  # one for all, which bounds its memory however many scenes there are
    for place in progress(find_places(paths)):
        if isinstance(place, SkippedScene):
            skipped.append(place)
            continue
        try:
            scene = open_scene(place, background=_background(model), cache=cache)
        except UserError as error:
            skipped.append(_unreadable(place, error))
            continue
        try:
            scene = scene.hold_out(holdout_every(model, settings))
            inputs, targets = choose_views(scene, settings)
            run = run_scene(model, scene, inputs, targets, image_size, settings.views_per_batch)
            result = score(scene, inputs, targets, run, metric, range_warnings(model, run.inputs))
        except UserError as error:
            reason = error.reason if isinstance(error, SkipError) else "not usable"
            skipped.append(SkippedScene(str(scene.path), reason, str(error)))
            continue
        results.append(result)
        if on_scene is not None:
            on_scene(result, run)
    evaluation = Evaluation(tuple(results), tuple(skipped), image_size)
    if not results:
        first = skipped[0].detail if skipped else "Give at least one capture."
        raise UserError(f"{evaluation.summary}; the first: {first}" if len(skipped) > 1 else first)
    return evaluation


def find_places(paths: Sequence[Path | str]) -> list[Path | SkippedScene]:
    """Every scene that the paths stand for; a path may be all that `find_scenes` takes."""
    found: list[Path | SkippedScene] = []
    for path in paths:
        try:
            found += find_scenes(path)
        except UserError as error:
            found.append(_unreadable(path, error))
    return found


def choose_views(scene: Scene, settings: Settings) -> tuple[list[int], list[int]]:
    """Input and held-out frames: inputs spread over the camera positions, the same at every call."""
    inputs, others = scene.choose(settings.inputs) if settings.inputs <= len(scene.input_pool) else ([], [])
    if not others:
        raise SkipError(
            TOO_FEW,
            f"{scene.name} has {len(scene.input_pool)} photos to choose inputs from, but {settings.inputs} input views "
            "and at least one held-out photo are needed; lower --inputs.",
        )
    return inputs, every(others, settings.targets or len(others))


@torch.no_grad()
def run_scene(
    model: LaCT,
    scene: Scene,
    inputs: list[int],
    targets: list[int],
    image_size: tuple[int, int],
    views_per_batch: int = 8,
) -> SceneRun:
    """Encode the input frames and render the target frames; the scene's frame is fitted on the inputs alone."""
    trained = model.trained
    scene = scene.normalize(inputs, trained.normalization) if trained else scene.normalize(inputs)
    given, wanted = scene.load(inputs, image_size=image_size), scene.load(targets, image_size=image_size)
    device = next(model.parameters()).device
    start = time.perf_counter()
    state = model.encode(given.to(device))
    _wait(device)
    encoded = time.perf_counter()
    frames = Renderer(model, state, views_per_batch=views_per_batch).frames(wanted.cameras.to(device))
    renderings = torch.stack([frame.float().cpu() for frame in frames])
    seconds = (encoded - start, time.perf_counter() - encoded)
    if not renderings.isfinite().all():
        raise SkipError("rendering not finite", f"The model renders NaN or infinite pixels for {scene.name}.")
    return SceneRun(given, wanted, renderings, state.to("cpu"), *seconds)


def score(
    scene: Scene,
    inputs: list[int],
    targets: list[int],
    run: SceneRun,
    lpips: Lpips | Unavailable,
    warnings: Sequence[str] = (),
) -> SceneResult:
    """Compare renderings and both baselines with the held-out photos."""
    pictures = {
        MODEL: run.renderings,
        "nearest_input": nearest_input(run.inputs, run.targets),
        "mean_input": mean_input(run.inputs, run.targets),
    }
    unavailable = _unavailable(run.targets, lpips)
    return SceneResult(
        name=scene.name,
        path=str(scene.path),
        inputs=tuple(scene.frames[i].name for i in inputs),
        targets=tuple(scene.frames[i].name for i in targets),
        scores={method: score_images(images, run.targets, lpips) for method, images in pictures.items()},
        unavailable=unavailable,
        warnings=(*scene.warnings, *warnings),
        encode_seconds=run.encode_seconds,
        render_seconds=run.render_seconds,
    )


@torch.no_grad()
def score_images(images: Float[Tensor, "t 3 h w"], photos: Views, lpips: Lpips | Unavailable) -> dict[str, list[float]]:
    """Every metric that can be computed, one number per image; colours count inside the photos' own mask, if any."""
    missing = _unavailable(photos, lpips)
    scores = {"psnr": psnr(images, photos.images), "chroma_error": chroma_error(images, photos.images, photos.alpha)}
    if "ssim" not in missing:
        scores["ssim"] = ssim(images, photos.images)
    if "lpips" not in missing and isinstance(lpips, Lpips):
        device = next(lpips.parameters()).device
        pairs = zip(images.split(4), photos.images.split(4), strict=True)
        scores["lpips"] = torch.cat([lpips(x.to(device), y.to(device)).cpu() for x, y in pairs])
    if photos.alpha is not None:
        scores["psnr_foreground"] = psnr_inside(images, photos.images, photos.alpha)
    return {metric: scores[metric].tolist() for metric in METRICS if metric in scores}


def choose_image_size(model: LaCT, wanted: tuple[int, int] | None) -> tuple[int, int]:
    """The wanted size (h, w), or the one that the model was trained at; refused if it cannot be cut into patches."""
    size = wanted or (model.trained.image_size if model.trained else (256, 256))
    check_patches(size, model.config.patch_size)
    return size


def range_warnings(model: LaCT, inputs: Cameras) -> tuple[str, ...]:
    """One line for each way in which the input views lie outside what the model was trained on."""
    return model.trained.warnings_for(inputs) if model.trained else ()


class SkipError(UserError):
    """Why a scene is left out: a short reason to count by, and a sentence."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


def _unreadable(path: Path | str, error: UserError) -> SkippedScene:
    return SkippedScene(str(path), "not readable", str(error))


def holdout_every(model: LaCT, settings: Settings) -> int:
    """Every how many photos one is held out where files hold out none: as asked for, or as the model was trained."""
    if settings.holdout_every is not None:
        return settings.holdout_every
    return model.trained.holdout_every if model.trained else 0


def _background(model: LaCT) -> str:
    return model.trained.background if model.trained else "white"


def _unavailable(photos: Views, lpips: Lpips | Unavailable) -> dict[str, str]:
    h, w = photos.image_size
    reasons = {}
    if min(h, w) < SSIM_WINDOW:
        reasons["ssim"] = f"images of {h}x{w} pixels are smaller than its window of {SSIM_WINDOW}x{SSIM_WINDOW}"
    if isinstance(lpips, Unavailable):
        reasons["lpips"] = lpips.reason
    elif min(h, w) < MIN_SIZE:
        reasons["lpips"] = f"images of {h}x{w} pixels are too small for it"
    return reasons


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
