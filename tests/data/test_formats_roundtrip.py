"""Random captures written by independent code are read back the same, whatever the format."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
import scene_files
from hypothesis import given, settings
from hypothesis import strategies as st

from data import list_scenes, open_scene

NAMED_BY_TIME = ("realestate10k", "torch_chunks")


@pytest.mark.parametrize("name", [n for n in scene_files.WRITERS if n not in ("scene_lists", "blender")])
@given(data=st.data())
@settings(max_examples=10, deadline=None)
def test_what_is_written_is_read(name, data):
    stamps = name in NAMED_BY_TIME
    some = data.draw(scene_files.views(names=scene_files.stamps() if stamps else None))
    if name in ("llff", "co3d"):  # photos of one folder, for LLFF in the order of their names
        some = [scene_files.View(v.name.replace("/", "-"), v.quaternion, v.w2c) for v in some]
        some.sort(key=lambda v: v.name)
    with tempfile.TemporaryDirectory() as folder:
        files = scene_files.WRITERS[name](Path(folder), some)
        scene = open_scene(files[0] if name == "zip" else folder)
        if name == "torch_chunks":
            some = [scene_files.View(v.name.replace("png", "jpg"), v.quaternion, v.w2c) for v in some]
        expected = scene_files.INTRINSICS
        if name == "llff":
            expected = (expected[0], expected[0], scene_files.SIZE[1] / 2, scene_files.SIZE[0] / 2)
        if name in ("transforms", "dl3dv", "zip", "lact", "lvsm"):  # these name photos from where they differ
            some = _as_listed(some, [f.name for f in scene.frames])
        scene_files.check_same(scene, some, expected, 1e-6 if name == "torch_chunks" else 1e-9)
        assert all("axes look flipped" in w for w in scene.warnings)


def test_lists_name_their_scenes(tmp_path):
    views = [scene_files.random_view(f"{i}.png", np.random.default_rng(i)) for i in range(3)]
    files = scene_files.write_list(tmp_path, views)
    for file in files:
        scenes = list_scenes(file)
        assert [len(open_scene(s)) for s in scenes] == [3, 3]


def _as_listed(some, names):
    """The views under the names that the scene gives them, which end or begin alike."""
    found = []
    for view in some:
        (name,) = [n for n in names if f"images/{view.name}" == n or f"images/{view.name}".endswith(f"/{n}")]
        found.append(scene_files.View(name, view.quaternion, view.w2c))
    return found
