"""`nvs prepare`: photos, a video, meshes or nothing become captures with cameras. What is given decides what is done.

Each kind of input has its own function with its own options, so the function is chosen before options are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from apps.prepare_meshes import prepare_meshes
from apps.prepare_photos import prepare_photos
from apps.prepare_procedural import prepare_procedural

OUTPUT = ("-o", "--output")
PROCEDURAL = "procedural"


def prepare(inputs: list[str], output: Path | None = None) -> None:
    """Make a capture with cameras: of photos or a video by structure from motion, of meshes by rendering them.

    The word procedural stands for random scenes, as many as are wanted.

    What is given decides which other options there are. See them with --help behind an input:

      nvs prepare photos/ --help
      nvs prepare chair.glb --help
      nvs prepare procedural --help

    and use them like this:

      nvs prepare photos/ -o scene/
      nvs prepare walk.mp4 -o scene/ --frames 80
      nvs prepare chair.glb -o chair/ --views 48
      nvs prepare procedural -n 1000 -o set/

    Args:
        inputs: photos, folders or .zip files of them, one video; meshes, folders with meshes, .txt lists of meshes; or
            the word procedural
        output: folder for the scene
    """
    from data import UsageError

    if not inputs:
        raise UsageError("Say what the capture shall be made of: photos, a video, meshes, or procedural.")
    function_for(inputs)(inputs, output)


def function_for(words: Sequence[str]) -> Callable[..., None]:
    """The function for the inputs among the words of a command line; without any, `prepare`, for its help."""
    given = [word for before, word in zip(["", *words], words, strict=False) if before not in OUTPUT]
    given = [word for word in given if not word.startswith("-")]
    if PROCEDURAL in given:
        return prepare_procedural
    kinds = [kind for word in given if (kind := _kind(Path(word).expanduser()))]
    if kinds:
        return kinds[0]
    return prepare_photos if given else prepare


def _kind(path: Path) -> Callable[..., None] | None:
    """The function for one input; None for a word that is none, such as the value of an option."""
    from data import MESH_SUFFIXES, PHOTO_SUFFIXES, VIDEO_SUFFIXES

    if path.is_dir():
        # Textures lie beside their meshes; a point cloud somewhere below photos makes them no meshes.
        direct = {entry.suffix.lower() for entry in path.iterdir()}
        below = direct if direct & set(PHOTO_SUFFIXES) else {entry.suffix.lower() for entry in path.rglob("*")}
        return prepare_meshes if below & set(MESH_SUFFIXES) else prepare_photos
    if path.suffix.lower() in (*MESH_SUFFIXES, ".txt"):
        return prepare_meshes
    is_known = path.suffix.lower() in (*PHOTO_SUFFIXES, *VIDEO_SUFFIXES, ".zip")
    return prepare_photos if is_known else None
