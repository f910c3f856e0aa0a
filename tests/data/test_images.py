"""Photos: pixel formats, transparency, EXIF, damage, and that resized pixels belong to the resized camera."""

import io
import json
import pickle
import struct
import zlib
from functools import lru_cache

import numpy as np
import pytest
import torch
from PIL import Image

from data import PhotoCache, UserError, open_scene
from data.background import COLORS, composite, parse_background
from data.distortion import Distortion
from data.frames import Frame
from data.images import Fit, PhotoError, decode, load_pixels, read_header, resize

RAMP = np.linspace(0, 65535, 12 * 16).reshape(12, 16).astype(np.uint16)
WHITE = COLORS["white"]


def frame_of(path, size, orientation=1, distortion=Distortion(), intrinsics=None):  # noqa: B008
    h, w = size
    return Frame("x", path, np.eye(4), intrinsics or (50.0, 50.0, w / 2, h / 2), size, distortion, orientation)


def png16(pixels):
    """A 16-bit PNG, made chunk by chunk; Pillow does not write 16-bit colour."""
    h, w = pixels.shape[:2]
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[1 if pixels.ndim == 2 else pixels.shape[2]]

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, 16, kind, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["grey16.png", "rgb16.png", "rgba16.png", "grey16.tif", "big_endian.tif"])
def test_sixteen_bits_are_scaled_not_cut(tmp_path, kind):
    path = tmp_path / kind
    if kind == "grey16.tif":
        Image.fromarray(RAMP).save(path)
    elif kind == "big_endian.tif":
        Image.frombytes("I;16B", (16, 12), RAMP.astype(">u2").tobytes()).save(path)
    elif kind == "grey16.png":
        path.write_bytes(png16(RAMP))
    elif kind == "rgb16.png":
        path.write_bytes(png16(np.stack([RAMP, RAMP[::-1], RAMP // 2], -1)))
    else:
        path.write_bytes(png16(np.stack([RAMP, RAMP, RAMP, np.full_like(RAMP, 65535)], -1)))
    pixels = decode(path)
    np.testing.assert_allclose(pixels[0].numpy(), RAMP / 65535, atol=1 / 255)
    if kind == "rgb16.png":
        np.testing.assert_allclose(pixels[2].numpy(), RAMP // 2 / 65535, atol=1 / 255)


def test_transparency_in_every_disguise_shows_the_background(tmp_path):
    rgba = np.zeros((8, 8, 4), np.uint8)
    rgba[:, 4:] = (200, 40, 10, 255)
    picture = Image.fromarray(rgba)
    picture.save(tmp_path / "rgba.png")
    picture.save(tmp_path / "rgba.webp", lossless=True)
    picture.convert("LA").save(tmp_path / "la.png")
    picture.quantize(8).save(tmp_path / "palette.png")
    Image.fromarray(rgba[..., :3]).save(tmp_path / "key.png", transparency=(0, 0, 0))
    for path in tmp_path.iterdir():
        pixels = load_pixels(frame_of(path, (8, 8)), (8, 8), (0.0, 1.0, 0.0))
        assert pixels[:, 0, 0].tolist() == [0, 255, 0, 0], path.name
        assert pixels[3, 0, 7] == 255, path.name
        if "la" not in path.name.split(".")[0][:2]:
            assert pixels[:3, 0, 7].tolist() == [200, 40, 10], path.name


def test_bilevel_and_cmyk_and_grey(tmp_path):
    Image.fromarray(np.tile([0, 255], (4, 4)).astype(np.uint8)).convert("1").save(tmp_path / "bits.png")
    Image.new("CMYK", (8, 4), (255, 0, 0, 0)).save(tmp_path / "cmyk.jpg", quality=100)
    Image.new("L", (8, 4), 77).save(tmp_path / "grey.bmp")
    assert decode(tmp_path / "bits.png")[:, 0, :2].T.tolist() == [[0, 0, 0], [1, 1, 1]]
    np.testing.assert_allclose(decode(tmp_path / "cmyk.jpg")[:, 2, 4], [0, 1, 1], atol=0.03)
    assert (decode(tmp_path / "grey.bmp") * 255).unique().tolist() == [77]


def test_soft_edges_get_no_dark_rim(tmp_path):
    """Black under full transparency must not bleed into a white object on white, at any size."""
    rgba = np.zeros((32, 32, 4), np.uint8)
    rgba[8:24, 8:24] = 255
    rgba[7, 8:24] = rgba[24, 8:24] = (255, 255, 255, 128)
    Image.fromarray(rgba).save(tmp_path / "x.png")
    for size in [(32, 32), (11, 11), (50, 50)]:
        assert load_pixels(frame_of(tmp_path / "x.png", (32, 32)), size, WHITE)[:3].min() >= 254


def test_compositing_before_resizing_equals_premultiplied_resizing():
    pixels = torch.rand(4, 20, 24, generator=torch.Generator().manual_seed(0))
    background = (0.2, 0.5, 0.9)
    color, alpha = pixels[:3], pixels[3:]
    down = {"size": (7, 9), "mode": "bicubic", "antialias": True}
    premultiplied, cover = (torch.nn.functional.interpolate(x[None], **down)[0] for x in (color * alpha, alpha))
    expected = premultiplied + (1 - cover) * torch.tensor(background)[:, None, None]
    found = resize(composite(pixels, background)[0], (7, 9))
    torch.testing.assert_close(found, expected.clamp(0, 1))


def save_turned(path, orientation, size=(20, 30)):
    """A photo that is `size` when shown, stored so that it needs the given EXIF turn; left half red."""
    h, w = size
    shown = np.zeros((h, w, 3), np.uint8)
    shown[:, : w // 2, 0] = 255
    undo = {1: None, 3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
    picture = Image.fromarray(shown)
    picture = picture.transpose(undo[orientation]) if undo[orientation] is not None else picture
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture.save(path, exif=exif)


@pytest.mark.parametrize("orientation", [1, 6, 8])
@pytest.mark.parametrize("declared", ["shown", "stored"])
def test_declared_size_decides_on_the_exif_turn(tmp_path, orientation, declared):
    save_turned(tmp_path / "x.png", orientation)
    header = read_header(tmp_path / "x.png")
    assert header.orientation == orientation
    size = (20, 30) if declared == "shown" else header.size
    scene = scene_of_one(tmp_path, size)
    views = scene.load([0], size)
    assert scene.frames[0].image_size == size
    if declared == "shown" or orientation == 1:
        assert views.images[0, 0, :, :10].min() > 0.9 and views.images[0, 0, :, 20:].max() < 0.1
    else:
        assert views.images[0, 0].mean(1).std() > 0.3, "the stored raster has the edge across"


def test_square_photos_keep_the_stored_raster_and_say_so(tmp_path):
    save_turned(tmp_path / "x.png", 6, (20, 20))
    scene = scene_of_one(tmp_path, (20, 20))
    assert scene.frames[0].orientation == 1
    assert any("EXIF turn ignored" in note for note in scene.notes)
    assert scene.warnings == ()


def scene_of_one(folder, size):
    h, w = size
    pose = np.eye(4).tolist()
    content = {"w": w, "h": h, "fl_x": 50, "frames": [{"file_path": "x.png", "transform_matrix": pose}]}
    (folder / "transforms.json").write_text(json.dumps(content))
    return open_scene(folder)


def damaged_photos():
    good = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (40, 40, 3), np.uint8)
    cases = {}
    for kind in ("PNG", "JPEG", "WEBP", "TIFF", "BMP", "GIF"):
        good = io.BytesIO()
        Image.fromarray(noise).save(good, kind)
        whole = good.getvalue()
        cases[f"cut.{kind.lower()}"] = (whole[: len(whole) * 6 // 10], "cut off|unreadable")
        cases[f"one_byte_short.{kind.lower()}"] = (whole[:-1], None)
    cases["empty.png"] = (b"", "empty")
    cases["text.png"] = (b"hello, this is no picture", "known format")
    cases["html.jpg"] = (b"<html>404</html>", "known format")
    cases["photo.heic"] = (b"\0\0\0\x18ftypheic\0\0\0\0" + b"\0" * 64, "pillow-heif")
    cases["photo.exr"] = (b"\x76\x2f\x31\x01" + b"\0" * 64, "OpenEXR")
    return cases


@pytest.mark.parametrize("name", damaged_photos())
def test_damaged_and_foreign_files_are_told_in_a_sentence(tmp_path, name):
    content, words = damaged_photos()[name]
    (tmp_path / name).write_bytes(content)
    if words is None:
        # A missing last byte may be harmless (an end mark that nobody needs), but it is never grey without a word.
        try:
            read_header(tmp_path / name)
        except PhotoError:
            return
        assert decode(tmp_path / name)[:, -1].std() > 0.1
        return
    with pytest.raises(UserError, match=words) as caught:
        read_header(tmp_path / name)
    assert name in str(caught.value) and "\n" not in str(caught.value)


def test_damage_in_the_middle_is_told_when_decoded(tmp_path):
    path = tmp_path / "x.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 40, 3), np.uint8)).save(path)
    content = bytearray(path.read_bytes())
    content[200:400] = bytes(200)
    path.write_bytes(bytes(content))
    read_header(path)
    with pytest.raises(UserError, match=r"x\.png cannot be used"):
        load_pixels(frame_of(path, (40, 40)), (20, 20), WHITE)


def test_photos_with_trailing_bytes_are_taken(tmp_path):
    path = tmp_path / "x.jpg"
    Image.new("RGB", (16, 16), (9, 99, 9)).save(path)
    path.write_bytes(path.read_bytes() + b"maker notes")
    assert read_header(path).size == (16, 16)


def test_too_many_pixels_is_one_sentence(tmp_path, monkeypatch):
    path = tmp_path / "x.png"
    Image.new("RGB", (64, 64)).save(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(UserError, match="million pixels; make it smaller"):
        read_header(path)


def test_floating_point_pixels_are_refused_by_name(tmp_path):
    Image.fromarray(np.ones((4, 4), np.float32)).save(tmp_path / "x.tif")
    with pytest.raises(UserError, match="floating-point"):
        read_header(tmp_path / "x.tif")


def test_a_photo_that_changed_its_size_is_told(tmp_path):
    Image.new("RGB", (16, 12)).save(tmp_path / "x.png")
    with pytest.raises(UserError, match="changed since"):
        load_pixels(frame_of(tmp_path / "x.png", (16, 12)), (8, 8), WHITE)


LENSES = {
    "pinhole": Distortion(),
    "polynomial": Distortion("opencv", (0.12, -0.03, 0.003, -0.002)),
    "fisheye": Distortion("fisheye", (0.02, 0.01, 0.0, 0.0)),
}


@pytest.mark.parametrize("lens", LENSES)
@pytest.mark.parametrize("size", [(96, 128), (48, 64), (40, 40), (30, 64), (64, 24), (150, 150)])
def test_pixels_belong_to_the_camera_at_every_size(tmp_path, lens, size):
    """The photo is a known function of the ray; after loading, each pixel must show its own camera's ray."""
    distortion, (h, w), intrinsics = LENSES[lens], (192, 256), (240.0, 230.0, 133.0, 90.0)
    Image.fromarray(_drawn_through(distortion, intrinsics, (h, w))).save(tmp_path / "x.png")
    names = ("k1", "k2", "k3", "k4") if lens == "fisheye" else ("k1", "k2", "p1", "p2")
    content = {
        **dict(zip(("fl_x", "fl_y", "cx", "cy"), intrinsics, strict=True)),
        **dict(zip(names, distortion.parameters, strict=False)),
        "camera_model": "OPENCV_FISHEYE" if lens == "fisheye" else "OPENCV",
        "frames": [{"file_path": "x.png", "transform_matrix": np.diag([1.0, -1, -1, 1]).tolist()}],
    }
    (tmp_path / "transforms.json").write_text(json.dumps(content))
    scene = open_scene(tmp_path)
    views = scene.load([0], size)
    assert views.images.shape == (1, 3, *size) and views.alpha is None
    _, directions = views.rays()
    rays = torch.einsum("vij,vhwi->vhwj", views.c2w[:, :3, :3], directions)[0].double()
    expected = _pattern(rays[..., 0] / rays[..., 2], rays[..., 1] / rays[..., 2])
    error = (views.images[0, 0] - expected).abs()
    inner = error[2:-2, 2:-2]
    assert inner.mean() < 0.01
    assert inner.max() < 0.06
    # Half a pixel to the side would be seen.
    shifted = (views.images[0, 0][:, 1:] + views.images[0, 0][:, :-1]) / 2
    assert (shifted - expected[:, 1:]).abs()[2:-2, 2:-2].mean() > 3 * inner.mean()


@lru_cache
def _drawn_through(distortion, intrinsics, size):
    from data.distortion import distort

    fx, fy, cx, cy = intrinsics
    samples = 2
    y, x = torch.meshgrid(
        *((torch.arange(n * samples, dtype=torch.float64) + 0.5) / samples for n in size), indexing="ij"
    )
    target = torch.stack([(x - cx) / fx, (y - cy) / fy], -1).reshape(-1, 2)
    ray = target.clone()
    for _ in range(60):
        ray = ray + target - distort(ray, distortion)
    grey = _pattern(ray[:, 0], ray[:, 1]).reshape(size[0], samples, size[1], samples).mean((1, 3))
    return np.repeat((grey * 255).round().byte().numpy()[..., None], 3, -1)


def _pattern(x, y):
    return 0.5 + 0.2 * torch.sin(14 * x + 3 * y) + 0.2 * torch.cos(16 * y - 2 * x)


@pytest.mark.parametrize("photo", [(48, 64), (64, 48), (37, 41), (1, 9)])
@pytest.mark.parametrize("image", [(48, 64), (16, 16), (100, 30), (7, 64)])
def test_fit_covers_the_image_and_cuts_the_centre(photo, image):
    fit = Fit(photo, image)
    top, left = fit.corner
    assert fit.scaled[0] >= image[0] and fit.scaled[1] >= image[1]
    assert min(fit.scaled[0] - image[0], fit.scaled[1] - image[1]) == 0
    assert abs(2 * top - (fit.scaled[0] - image[0])) <= 1 and abs(2 * left - (fit.scaled[1] - image[1])) <= 1
    assert abs(fit.scaled[0] / fit.scaled[1] / (photo[0] / photo[1]) - 1) < 1 / min(fit.scaled)


@pytest.mark.parametrize("kind", ["x.png", "x.jpg"])
@pytest.mark.parametrize("orientation", [1, 6])
def test_large_photos_may_be_reduced_while_decoding(tmp_path, kind, orientation):
    size = (512, 768)
    grey = np.clip(np.linspace(0, 255, 768)[None] + 20 * np.sin(np.arange(512) / 9)[:, None], 0, 255).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(np.repeat(grey[..., None], 3, -1)).save(tmp_path / kind, quality=98, subsampling=0, exif=exif)
    image = (50, 60) if orientation == 1 else (60, 50)
    photo = size if orientation == 1 else size[::-1]
    assert Fit(photo, image).whole_reduction == 4
    found = load_pixels(frame_of(tmp_path / kind, photo, orientation), image, WHITE)[:3].float()
    fit = Fit(photo, image)
    (top, left), whole = fit.corner, resize(decode(tmp_path / kind, orientation), fit.scaled)
    expected = whole[:, top : top + image[0], left : left + image[1]] * 255
    assert (found - expected).abs().mean() < 0.6 and (found - expected).abs().max() < 4


def test_cache_is_bounded_and_does_not_change_pixels(capture):
    cache = PhotoCache(max_bytes=3 * 4 * 16 * 16)
    scene = open_scene(capture, cache=cache)
    fresh = open_scene(capture, cache=PhotoCache(0))
    for indices in ([0, 1, 2, 3, 4], [4, 3, 0], [0]):
        a, b = scene.load(indices, (16, 16)), fresh.load(indices, (16, 16))
        assert torch.equal(a.images, b.images)
        assert cache.num_bytes <= cache.max_bytes
    assert fresh.cache.num_bytes == 0
    a.images.zero_()
    assert torch.equal(scene.load([0], (16, 16)).images, fresh.load([0], (16, 16)).images), "views are copies"
    assert pickle.loads(pickle.dumps(scene)).load([2], (16, 16)).images.shape == (1, 3, 16, 16)


def test_backgrounds():
    assert parse_background("white") == (1, 1, 1)
    assert parse_background("255,0,51") == (1, 0, 0.2)
    assert parse_background("#ff0033") == (1, 0, 0.2)
    assert parse_background((0.5, 0.25, 0)) == (0.5, 0.25, 0)
    for bad in ("beige", "1,2", "256,0,0", "nan,0,0", "#ff00zz", "", (2, 0, 0), (0.0, 0.0)):
        with pytest.raises(UserError, match="no colour"):
            parse_background(bad)
