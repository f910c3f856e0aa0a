"""Small random captures in every format, written by code that shares nothing with the project's."""

import gzip
import io
import json
import shutil
import struct
import tarfile
import zipfile
from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st
from PIL import Image

SIZE = (12, 16)
INTRINSICS = (14.5, 13.25, 8.5, 5.75)


@dataclass
class View:
    name: str
    quaternion: np.ndarray  # w x y z, world to camera
    w2c: np.ndarray

    @property
    def c2w(self):
        return np.linalg.inv(self.w2c)


@st.composite
def views(draw, names=None):
    """Two to five views with unique names; the camera of each is given by a turn about an axis and a translation."""
    names = photo_names() if names is None else names
    some = draw(st.lists(names, min_size=2, max_size=5, unique_by=lambda n: n.lower().split(".")[0]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return [random_view(name, rng) for name in some]


def photo_names():
    word = st.text("abcXYZ019 _-()äß漢%#'", min_size=1, max_size=8).map(lambda s: s.strip() or "photo")
    return st.builds(lambda words, suffix: "/".join(words) + suffix, st.lists(word, min_size=1, max_size=2), SUFFIXES)


SUFFIXES = st.sampled_from([".png", ".PNG", ".jpg.png"])


def random_view(name, rng):
    axis = rng.normal(size=3)
    axis /= np.linalg.norm(axis)
    angle = rng.uniform(-3, 3)
    cross = np.cross(np.eye(3), axis)
    w2c = np.eye(4)
    w2c[:3, :3] = np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross  # Rodrigues
    w2c[:3, 3] = rng.normal(size=3) * 10 ** rng.uniform(-2, 3)
    return View(name, np.array([np.cos(angle / 2), *np.sin(angle / 2) * axis]), w2c)


def color(i):
    return 20 + 40 * i, 100, 200 - 30 * i


def write_photos(folder, names, size=SIZE):
    """PNG photos (whatever their suffix), each of its own colour."""
    for i, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size[::-1], color(i)).save(folder / name, format="PNG")


def check_same(scene, expected, intrinsics=INTRINSICS, places=1e-9):
    """That a scene has exactly these views, each with its own photo."""
    assert sorted(f.name for f in scene.frames) == sorted(v.name for v in expected), scene.warnings
    by_name = {v.name: i for i, v in enumerate(expected)}
    for at, frame in enumerate(scene.frames):
        i = by_name[frame.name]
        scale = max(1.0, np.abs(expected[i].c2w).max())
        np.testing.assert_allclose(frame.c2w, expected[i].c2w, atol=places * scale, rtol=0)
        np.testing.assert_allclose(frame.intrinsics, intrinsics, rtol=max(places, 1e-12))
        pixel = (scene.load([at], frame.image_size).images[0, :, 4, 5] * 255).round().tolist()
        assert np.abs(np.array(pixel) - color(i)).max() <= 2  # JPEG inside .torch


def write_transforms(folder, some, name="transforms.json"):
    write_photos(folder / "images", [v.name for v in some])
    flip = np.diag([1.0, -1, -1, 1])
    frames = [{"file_path": f"images/{v.name}", "transform_matrix": (v.c2w @ flip).tolist()} for v in some]
    fx, fy, cx, cy = INTRINSICS
    top = {"w": SIZE[1], "h": SIZE[0], "fl_x": fx, "fl_y": fy, "cx": cx, "cy": cy, "k1": 0.0, "camera_model": "OPENCV"}
    (folder / name).write_text(json.dumps({**top, "frames": frames}))
    return [folder / name]


def write_blender(folder, some):
    return write_transforms(folder, some, "transforms_train.json")


def write_lact(folder, some):
    write_photos(folder / "images", [v.name for v in some])
    camera = dict(zip(("fx", "fy", "cx", "cy"), INTRINSICS, strict=True)) | {"w": SIZE[1], "h": SIZE[0]}
    frames = [{**camera, "file_path": f"images/{v.name}", "w2c": v.w2c.tolist()} for v in some]
    (folder / "opencv_cameras.json").write_text(json.dumps(frames))
    return [folder / "opencv_cameras.json"]


def write_lvsm(folder, some):
    write_photos(folder / "images", [v.name for v in some])
    (folder / "metadata").mkdir()
    frames = [{"image_path": f"images/{v.name}", "fxfycxcy": INTRINSICS, "w2c": v.w2c.tolist()} for v in some]
    (folder / "metadata/a.json").write_text(json.dumps({"scene_name": "a", "frames": frames}))
    return [folder / "metadata/a.json"]


def write_colmap_text(folder, some, model="PINHOLE", parameters=INTRINSICS, points=("", "1.5 2.5 -1 3.5 4.5 7")):
    write_photos(folder / "images", [v.name for v in some])
    sparse = folder / "sparse/0"
    sparse.mkdir(parents=True)
    numbers = " ".join(repr(float(p)) for p in parameters)
    (sparse / "cameras.txt").write_text(f"# Camera list\n17 {model} {SIZE[1]} {SIZE[0]} {numbers}\n")
    lines = ["# Image list"]
    for i, view in enumerate(some):
        pose = " ".join(repr(float(x)) for x in (*view.quaternion, *view.w2c[:3, 3]))
        lines += [f"{7 * (len(some) - i)} {pose} 17 {view.name}", points[i % len(points)]]
    (sparse / "images.txt").write_text("\n".join(lines), encoding="utf-8")
    (sparse / "points3D.txt").write_text("")
    return [sparse / "cameras.txt", sparse / "images.txt"]


def write_colmap_binary(folder, some, model=1, parameters=INTRINSICS, place="sparse/0"):
    write_photos(folder / "images", [v.name for v in some])
    sparse = folder / place
    sparse.mkdir(parents=True)
    camera = struct.pack("<QIiQQ", 1, 17, model, SIZE[1], SIZE[0]) + np.array(parameters, "<f8").tobytes()
    (sparse / "cameras.bin").write_bytes(camera)
    content = struct.pack("<Q", len(some))
    for i, view in enumerate(some):
        pose = np.array([*view.quaternion, *view.w2c[:3, 3]], "<f8").tobytes()
        content += struct.pack("<I", 7 * (len(some) - i)) + pose + struct.pack("<I", 17) + view.name.encode() + b"\0"
        content += struct.pack("<Q", i) + bytes(24 * i)
    (sparse / "images.bin").write_bytes(content)
    (sparse / "points3D.bin").write_bytes(bytes(8))
    return [sparse / "cameras.bin", sparse / "images.bin"]


def write_llff(folder, some):
    """The focal length is one for both axes and the principal point is the centre: INTRINSICS do not fit."""
    write_photos(folder / "images", [v.name for v in some])
    rows = []
    for view in sorted(some, key=lambda v: v.name):
        right, down, forward, position = view.c2w[:3].T
        hwf = (SIZE[0], SIZE[1], INTRINSICS[0])
        rows.append([*np.stack([down, right, -forward, position, hwf], 1).ravel(), 0.5, 9.0])
    np.save(folder / "poses_bounds.npy", np.array(rows))
    return [folder / "poses_bounds.npy"]


def row_of(view):
    fx, fy, cx, cy = INTRINSICS
    (h, w) = SIZE
    return [fx / w, fy / h, cx / w, cy / h, 0.0, 0.0, *view.w2c[:3].ravel().tolist()]


def write_re10k(folder, some):
    write_photos(folder / "clip", [v.name for v in some])
    rows = [" ".join([v.name.split(".")[0], *map(repr, row_of(v))]) for v in some]
    (folder / "clip.txt").write_text("\n".join(["https://example.invalid/v", *rows]) + "\n")
    return [folder / "clip.txt"]


def write_torch(folder, some, key="clip"):
    """One chunk with one clip; the numbers of pixelSplat are single precision."""
    photos = []
    for i in range(len(some)):
        buffer = io.BytesIO()
        Image.new("RGB", SIZE[::-1], color(i)).save(buffer, format="JPEG", quality=100, subsampling=0)
        photos.append(torch.tensor(list(buffer.getvalue()), dtype=torch.uint8))
    stamps = torch.tensor([int(v.name.split(".")[0]) for v in some])
    cameras = torch.tensor([row_of(v) for v in some], dtype=torch.float32)
    clip = {"url": "u", "key": key, "timestamps": stamps, "cameras": cameras, "images": photos}
    torch.save([clip], folder / "000000.torch")
    return [folder / "000000.torch"]


def write_co3d(folder, some, kind="ndc_isotropic", sequences=("110_1",)):
    """A category; PyTorch3D has row vectors, x left, y up, and numbers in normalised device coordinates."""
    half = np.array(SIZE[::-1]) / 2
    scale = half.min() if kind == "ndc_isotropic" else half
    focal, center = INTRINSICS[:2] / scale, (half - INTRINSICS[2:]) / scale
    flip, entries = np.diag([-1.0, -1, 1]), []
    for sequence in sequences:
        write_photos(folder / sequence / "images", [v.name for v in some])
        for i, view in enumerate(some):
            rotation, translation = (flip @ view.w2c[:3, :3]).T, flip @ view.w2c[:3, 3]
            camera = {"R": rotation.tolist(), "T": translation.tolist(), "intrinsics_format": kind}
            camera |= {"focal_length": focal.tolist(), "principal_point": center.tolist()}
            photo = {"path": f"apple/{sequence}/images/{view.name}", "size": SIZE}
            entries.append({"sequence_name": sequence, "frame_number": i, "image": photo, "viewpoint": camera})
    file = folder / "frame_annotations.jgz"
    file.write_bytes(gzip.compress(json.dumps(entries).encode()))
    return [file]


def write_dl3dv(folder, some):
    (folder / "nerfstudio").mkdir()
    return write_transforms(folder / "nerfstudio", some)


def write_zip(folder, some):
    """A zip of a folder with a transforms.json."""
    inside = folder / "unpacked"
    inside.mkdir()
    write_transforms(inside, some)
    with zipfile.ZipFile(folder / "capture.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(inside.rglob("*")):
            if file.is_file():
                archive.write(file, f"capture/{file.relative_to(inside)}")
    shutil.rmtree(inside)
    return [folder / "capture.zip"]


def write_shards(folder, some, name="packed"):
    """A shard with one capture, and its index."""
    (h, w), members, frames = SIZE, {}, []
    for i, view in enumerate(some):
        buffer = io.BytesIO()
        Image.new("RGB", (w, h), color(i)).save(buffer, format="PNG")
        members[f"00000000.{i:04d}.png"] = buffer.getvalue()
        numbers = dict(zip(("fx", "fy", "cx", "cy"), INTRINSICS, strict=True))
        frames.append({"name": view.name, "photo": f"{i:04d}.png", "c2w": view.c2w.tolist(), **numbers})
    cameras = {"name": name, "h": h, "w": w, "frames": frames}
    members["00000000.json"] = json.dumps(cameras).encode()
    (folder / "000000.tar").write_bytes(pack_tar(members))
    entry = {"file": "000000.tar", "scenes": [[len(some), []]]}
    index = {"format": "nvs shards 1", "image_size": SIZE, "fov_degrees": [57.0, 58.0], "shards": [entry]}
    (folder / "shards.json").write_text(json.dumps(index))
    return [folder / "000000.tar", folder / "shards.json"]


def pack_tar(members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def write_list(folder, some):
    (folder / "one").mkdir()
    (folder / "two").mkdir()
    write_lact(folder / "one", some)
    write_lact(folder / "two", some)
    (folder / "full_list.txt").write_text("one\ntwo\n")
    (folder / "full_list.json").write_text('["one/opencv_cameras.json", "two/opencv_cameras.json"]')
    return [folder / "full_list.txt", folder / "full_list.json"]


def stamps():
    """File names that are time stamps."""
    return st.integers(1, 10**12).map(lambda n: f"{n}.png")


WRITERS = {
    "transforms": write_transforms,
    "blender": write_blender,
    "lact": write_lact,
    "lvsm": write_lvsm,
    "colmap_text": write_colmap_text,
    "colmap_binary": write_colmap_binary,
    "llff": write_llff,
    "realestate10k": write_re10k,
    "torch_chunks": write_torch,
    "co3d": write_co3d,
    "dl3dv": write_dl3dv,
    "zip": write_zip,
    "shards": write_shards,
    "scene_lists": write_list,
}
