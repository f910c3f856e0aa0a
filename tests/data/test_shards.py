"""Shards: what is packed comes back, each capture once for all nodes and workers together, and nothing is trusted."""

import io
import json
import shutil
import tarfile
import threading
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path

import fsspec
import numpy as np
import pytest
import scene_files
import torch
from PIL import Image
from torch.utils.data import DataLoader

import data
from data.config import DataConfig
from data.datamodule import SceneData
from data.shards.index import find_shards
from data.shards.packed import open_packed
from data.shards.reading import read_samples
from data.shards.stream import Lane, ShardStream
from data.shards.writing import ShardConfig, write_shards

CONFIG = DataConfig(
    source="shards", image_size=(8, 8), batch_size=1, input_views=(1, 2), target_views=(1, 1), shard_shuffle=3
)


def write_flat(folder: Path, color: tuple[int, int, int], photos: int = 4) -> Path:
    """A capture whose photos all have one colour, by which it is known again."""
    views = [scene_files.random_view(f"{i}.png", np.random.default_rng(i)) for i in range(photos)]
    folder.mkdir(parents=True)
    scene_files.write_lact(folder, views)
    for view in views:
        Image.new("RGB", scene_files.SIZE[::-1], color).save(folder / "images" / view.name)
    return folder


def color_of(number: int) -> tuple[int, int, int]:
    return 10 * number, 255 - 10 * number, 40


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Twelve captures in six shards, and the same in one shard."""
    root = tmp_path_factory.mktemp("shards")
    scenes = [data.open_scene(write_flat(root / f"{i:02d}", color_of(i))) for i in range(12)]
    for name, size in (("many", 0.0041), ("one", 256)):
        config = ShardConfig((8, 8))
        object.__setattr__(config, "shard_mb", size)  # smaller than anybody wants
        write_shards(scenes, root / name, config)
    assert len(list((root / "many").glob("*.tar"))) == 6 and len(list((root / "one").glob("*.tar"))) == 1
    return root


def capture_of(batch) -> int:
    """The number of the capture that a batch of one shows."""
    red = batch.inputs.images[0, :, 0]
    assert torch.equal(red, red[0, 0, 0].expand_as(red))
    return round(float(red[0, 0, 0]) * 255) // 10


@pytest.mark.parametrize("alpha", [False, True])
def test_what_is_packed_comes_back(write_capture, tmp_path, alpha):
    capture = write_capture(size=(48, 64), alpha=alpha)
    content = json.loads((capture / "transforms.json").read_text())
    content.update(k1=0.05, camera_model="OPENCV", test_filenames=["images/003.png"])
    (capture / "transforms.json").write_text(json.dumps(content))
    scene = data.open_scene(capture, background="#336699")
    write_shards([scene], tmp_path / "out", ShardConfig((24, 24)))
    assert [p.name for p in sorted((tmp_path / "out").iterdir())] == ["000000.tar", "shards.json"]
    back = data.open_scene(tmp_path / "out", background="#336699")
    assert back.format == "WebDataset shards" and back.split == scene.split
    assert [f.name for f in back.frames] == [f.name for f in scene.frames]
    np.testing.assert_allclose(back.world_c2w, scene.world_c2w, atol=1e-14)  # made orthonormal once more
    expected, loaded = (s.load(range(8), (24, 24)) for s in (scene, back))
    torch.testing.assert_close(loaded.c2w, expected.c2w)
    torch.testing.assert_close(loaded.intrinsics, expected.intrinsics)
    # Colours behind alpha are rounded once more.
    assert (loaded.images - expected.images).abs().max() * 255 < (1.01 if alpha else 1e-3)
    if expected.alpha is None:
        assert loaded.alpha is None
        return
    assert loaded.alpha is not None
    # Where resizing has overshot, no colour gives that pixel with its alpha, which then is raised, never lowered.
    assert (loaded.alpha - expected.alpha).min() > -0.5 / 255 and (loaded.alpha - expected.alpha).mean() < 0.01
    both = (data.open_scene(path, background="black") for path in (tmp_path / "out", capture))
    ours, theirs = (scene.load(range(8), (24, 24)) for scene in both)
    assert (ours.images - theirs.images).abs().mean() * 255 < 1


def test_the_same_captures_give_the_same_bytes(packed, tmp_path):
    scenes = [data.open_scene(packed / f"{i:02d}") for i in range(12)]
    write_shards(scenes, tmp_path / "again", ShardConfig((8, 8)))
    for file in (tmp_path / "again").iterdir():
        assert file.read_bytes() == (packed / "one" / file.name).read_bytes()


def test_webp_is_smaller(write_capture, tmp_path):
    scene = data.open_scene(write_capture())
    for name, quality in (("png", None), ("webp", 60)):
        write_shards([scene], tmp_path / name, ShardConfig((48, 64), quality=quality))
    sizes = [
        sum(len(v) for v in next(read_samples(str(tmp_path / n / "000000.tar"))).values()) for n in ("png", "webp")
    ]
    assert sizes[1] < sizes[0]
    a, b = (data.open_scene(tmp_path / n).load(range(8), (48, 64)).images for n in ("png", "webp"))
    assert 0 < (a - b).abs().mean() < 0.03


@pytest.mark.parametrize("name", ["many", "one"])
def test_two_nodes_with_two_workers_each_show_every_capture_once_in_an_epoch(packed, name):
    shards = find_shards([str(packed / name)])
    lengths = [len(Lane(shards.shards, CONFIG, 0, lane, 4).epoch(0)) for lane in range(4)]
    assert sum(lengths) == 12 and min(lengths) > 0
    shown = []
    for rank in (0, 1):
        stream = ShardStream(shards, CONFIG, 0, 0, rank, 2)
        batches = list(islice(DataLoader(stream, batch_size=None, num_workers=2), 2 * max(lengths[2 * rank :][:2])))
        for worker in (0, 1):
            shown += [capture_of(b) for b in batches[worker::2][: lengths[2 * rank + worker]]]
    assert sorted(shown) == list(range(12))


@pytest.mark.parametrize("name", ["many", "one"])
def test_every_epoch_of_a_single_process_shows_every_capture_once_in_a_new_order(packed, name):
    stream = ShardStream(find_shards([str(packed / name)]), CONFIG, 5, 0, 0, 1)
    shown = [capture_of(b) for b in islice(stream, 36)]
    epochs = [shown[i : i + 12] for i in (0, 12, 24)]
    assert all(sorted(epoch) == list(range(12)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3 and epochs[0] != list(range(12))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("step", [1, 7, 16])
def test_a_stream_goes_on_at_any_step(packed, workers, step):
    config = replace(CONFIG, batch_size=2, rotate_world=True, color_jitter=0.2, input_views=(1, 2))
    shards = find_shards([str(packed / "many")])

    def batches(start, count):
        stream = ShardStream(shards, config, 3, start, 0, 1)
        return list(islice(DataLoader(stream, batch_size=None, num_workers=workers), count))

    whole, rest = batches(0, step + 3), batches(step, 3)
    for a, b in zip(whole[step:], rest, strict=True):
        assert torch.equal(a.inputs.images, b.inputs.images) and torch.equal(a.targets.c2w, b.targets.c2w)


def test_held_out_photos_are_never_shown(tmp_path, write_capture):
    capture = write_capture(frames=6)
    content = json.loads((capture / "transforms.json").read_text())
    content["val_filenames"] = ["images/001.png", "images/004.png"]
    (capture / "transforms.json").write_text(json.dumps(content))
    scene = data.open_scene(capture)
    write_shards([scene], tmp_path / "out", ShardConfig((16, 16)))
    config = replace(CONFIG, image_size=(16, 16), input_views=(2, 3), normalization="none")
    stream = ShardStream(find_shards([str(tmp_path / "out")]), config, 0, 0, 0, 1)
    trained = {0, 2, 3, 5}
    expected = torch.from_numpy(scene.world_c2w).float()
    seen = set()
    for batch in islice(stream, 30):
        for c2w in [*batch.inputs.c2w[0], *batch.targets.c2w[0]]:
            seen |= {i for i in range(6) if torch.allclose(c2w, expected[i], atol=1e-5)}
    assert seen == trained


def test_training_and_validation_out_of_shards(packed):
    config = replace(CONFIG, shards=[str(packed / "many")], batch_size=3, holdout_every=4, validation_views=(2, 2))
    module = SceneData(config, 0)
    module.setup()
    items = list(module.val_dataloader())
    assert [i.name for i in items] == [f"{i:02d}" for i in range(4) for _ in range(2)]
    assert [i.held_out for i in items[:2]] == [True, False]
    batch = next(iter(module.train_dataloader()))
    assert batch.inputs.images.shape[0] == 3 and batch.targets.image_size == (8, 8)
    assert module.warnings == []
    larger = SceneData(replace(config, image_size=(8, 16)), 0)
    larger.setup()
    assert larger.warnings == ["photos of 8x8 pixels in shards are enlarged to cover 8x16"]
    too_many = SceneData(replace(config, input_views=(4, 4)), 0)
    with pytest.raises(data.UserError, match="0 captures with enough photos"):
        too_many.setup()
    with pytest.raises(data.UserError, match=r"13 processes.*data\.workers"):
        SceneData(replace(config, workers=13), 0).setup()


def test_addresses_patterns_and_braces(packed):
    memory = fsspec.filesystem("memory")
    for file in (packed / "many").iterdir():
        memory.pipe(f"/bucket/set/{file.name}", file.read_bytes())
    everything = find_shards(["memory://bucket/set"])
    assert len(everything.shards) == 6 and everything.packings[0].image_size == (8, 8)
    stream = ShardStream(everything, CONFIG, 0, 0, 0, 1)
    assert sorted(capture_of(b) for b in islice(stream, 12)) == list(range(12))
    for pattern, count in (("{000000..000002}.tar", 3), ("00000[45].tar", 2), ("000003.tar", 1)):
        for place in ("memory://bucket/set", str(packed / "many")):
            assert len(find_shards([f"{place}/{pattern}"]).shards) == count


@pytest.fixture
def server(packed):
    """The address of a web server that has the shards."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    web = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=packed))
    threading.Thread(target=web.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{web.server_port}"
    web.shutdown()
    web.server_close()


def test_workers_read_from_a_web_server(server):
    pytest.importorskip("aiohttp")
    stream = ShardStream(find_shards([f"{server}/many"]), CONFIG, 0, 0, 0, 1)
    shown = [capture_of(b) for b in islice(DataLoader(stream, batch_size=None, num_workers=2), 12)]
    # The one worker has three shards, the other has three, of two captures each.
    assert sorted(shown) == list(range(12))
    with pytest.raises(data.UserError, match=r"There is no shards\.json in http"):
        find_shards([f"{server}/none"])


def test_patterns_take_folders_and_shards_only(packed, tmp_path):
    for name in ("v1.0", "v2"):
        (tmp_path / name).symlink_to(packed / "many")
    (tmp_path / "LICENSE").write_text("free")
    assert len(find_shards([f"{tmp_path}/*"]).shards) == 12


def test_fields_of_view_follow_the_cut(write_capture, tmp_path):
    scenes = [data.open_scene(write_capture(size=(32, 64)))]
    write_shards(scenes, tmp_path / "wide", ShardConfig((16, 32)))
    shards = find_shards([str(tmp_path / "wide")])
    back = data.open_scene(tmp_path / "wide")
    for size in ((16, 32), (8, 8), (8, 32)):
        fx = back.cameras(range(len(back)), size).intrinsics[:, 0].numpy()
        expected = np.degrees(2 * np.arctan(size[1] / 2 / fx))
        assert shards.fov_degrees(size) == pytest.approx((expected.min(), expected.max()), abs=1e-3)


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("nowhere", "There is no shards.json in"),
        ("memory://nowhere/set", "There is no shards.json in"),
        ("nothing://bucket/set", "nothing"),
        ("none*.tar", "No shard matches"),
        ("a{1..2", "braces that do not match"),
        ("many/000099.tar", "is not in the shards.json"),
    ],
)
def test_shards_that_are_not_there_are_told(packed, place, reason):
    with pytest.raises(data.UserError, match=reason):
        find_shards([place if "://" in place else str(packed / place)])


def test_a_tar_without_its_index_is_told_what_to_do(packed, tmp_path):
    shutil.copy(packed / "many/000000.tar", tmp_path)
    with pytest.raises(data.UserError, match=r"^There is no shards\.json in .*nvs convert .* --to shards") as caught:
        find_shards([str(tmp_path / "000000.tar")])
    assert "Errno" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": "nvs shards 1"}', '{"format":"nvs shards 1","image_size":[8,8],"fov_degrees":[9,50],'
     '"shards":[{"file":"../a.tar","scenes":[[4,[]]]}]}', "[" * 5000],
)  # fmt: skip
def test_an_index_that_makes_no_sense_is_refused(tmp_path, text):
    (tmp_path / "shards.json").write_text(text)
    with pytest.raises(data.UserError, match="does not describe shards"):
        find_shards([str(tmp_path)])


def tar_of(*members: tuple[str, bytes], **changes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=changes.pop("mode", "w")) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for key, value in changes.items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def with_size(content: bytes, size: int) -> bytes:
    """A tar whose first header states another size."""
    info = tarfile.TarInfo("a.json")
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT) + content


HOSTILE = {
    "absolute path": tar_of(("/etc/cron.d/a.json", b"{}")),
    "path upwards": tar_of(("../a.json", b"{}")),
    "folder": tar_of(("a/b.json", b"{}")),
    "pickle": tar_of(("a.pyd", b"cos\nsystem\n(S'true'\ntR.")),
    "link out": tar_of(("a.json", b""), type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "hard link": tar_of(("a.json", b""), type=tarfile.LNKTYPE, linkname="/etc/passwd"),
    "device": tar_of(("a.json", b""), type=tarfile.CHRTYPE),
    "long name": tar_of(("a" * 300 + ".json", b"{}")),
    "extended header": tar_of(("a.json", b"{}"), pax_headers={"comment": "x" * 999}, mode="w"),
    "huge member": with_size(b"{}", 2**40),
    "negative size": with_size(b"{}", -1),
    "compressed": tar_of(("a.json", b"{}"), mode="w:gz"),
    "twice": tar_of(("a.json", b"{}"), ("a.json", b"{}")),
    "torn": tar_of(("a.json", b"{}"), ("b.json", b"{}"), ("a.0000.png", b"")),
    "cut off": tar_of(("a.json", b" " * 2000))[:1500],
    "noise": np.random.default_rng(0).bytes(4096),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_shards_are_refused_before_anything_is_done(tmp_path, kind, monkeypatch):
    (tmp_path / "bad.tar").write_bytes(HOSTILE[kind])
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for look in (lambda: list(read_samples(str(tmp_path / "bad.tar"))), lambda: data.open_scene(tmp_path / "bad.tar")):
        with pytest.raises(data.UserError, match=r"bad\.tar") as caught:
            look()
        assert "\n" not in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["bad.tar"]


def test_names_in_a_shard_cannot_talk_to_the_terminal(packed, tmp_path):
    sample = next(read_samples(str(packed / "one/000000.tar")))
    content = json.loads(sample["json"])
    content["name"] = "a\nb\x1b[2J\ud800"
    content["frames"][0]["name"] = "\x1b]0;x\x07"
    members = {**{k: v for k, v in sample.items() if not k.startswith("__")}, "json": json.dumps(content).encode()}
    (tmp_path / "a.tar").write_bytes(tar_of(*[(f"a.{key}", value) for key, value in members.items()]))
    read = next(read_samples(str(tmp_path / "a.tar")))
    for scene in (data.open_scene(tmp_path / "a.tar"), open_packed(read, "a.tar/a", (1.0, 1.0, 1.0))):
        told = [scene.name, *scene.notes, *(frame.name for frame in scene.frames)]
        assert all(text.isprintable() for text in told) and "?]0;x?" in told


def test_a_capture_is_unpacked_once(packed):
    place = packed / "one/000000.tar/00000003"
    first, again = data.open_scene(place), data.open_scene(place)
    assert [frame.path for frame in first.frames] == [frame.path for frame in again.frames]


def test_counts_are_limited(tmp_path, monkeypatch):
    (tmp_path / "a.tar").write_bytes(tar_of(*[(f"a.{i:04d}.png", b"123") for i in range(10)]))
    monkeypatch.setattr("data.shards.reading.MAX_SAMPLE_MEMBERS", 9)
    with pytest.raises(data.UserError, match="too much in one capture"):
        list(read_samples(str(tmp_path / "a.tar")))
    monkeypatch.setattr("data.shards.reading.MAX_SAMPLE_MEMBERS", 99)
    monkeypatch.setattr("data.shards.reading.MAX_SAMPLE_BYTES", 20)
    with pytest.raises(data.UserError, match="too much in one capture"):
        list(read_samples(str(tmp_path / "a.tar")))


def test_a_photo_of_another_size_than_stated_is_refused(packed, tmp_path):
    sample = next(read_samples(str(packed / "one/000000.tar")))
    buffer = io.BytesIO()
    Image.new("RGB", (4000, 4000)).save(buffer, format="PNG")
    content = sample | {f"{i:04d}.png": buffer.getvalue() for i in range(4)}
    members = [(f"a.{key}", value) for key, value in content.items() if not key.startswith("__")]
    (tmp_path / "000000.tar").write_bytes(tar_of(*members))
    index = json.loads((packed / "one/shards.json").read_text())
    index["shards"][0]["scenes"] = index["shards"][0]["scenes"][:1]
    (tmp_path / "shards.json").write_text(json.dumps(index))
    stream = ShardStream(find_shards([str(tmp_path)]), CONFIG, 0, 0, 0, 1)
    for workers in (0, 1):
        with pytest.raises(data.UserError, match="not its stated size"):
            next(iter(DataLoader(stream, batch_size=None, num_workers=workers)))


def test_nothing_is_written_over(packed, tmp_path):
    scene = data.open_scene(packed / "00")
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(data.UserError, match=r"mine\.txt"):
        write_shards([scene], tmp_path, ShardConfig((8, 8)), overwrite=True)
    write_shards([scene], tmp_path / "out", ShardConfig((8, 8)))
    with pytest.raises(data.UserError, match="--overwrite"):
        write_shards([scene], tmp_path / "out", ShardConfig((8, 8)))
    write_shards([scene], tmp_path / "out", ShardConfig((8, 8)), overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine.txt", "out"]


def test_a_capture_with_a_broken_photo_is_left_out_and_told(packed, write_capture, tmp_path):
    broken = data.open_scene(write_capture("broken"))
    (broken.path / "images/002.png").write_bytes(b"no picture")
    told = []
    shards = write_shards(
        [broken, data.open_scene(packed / "00")], tmp_path / "out", ShardConfig((8, 8)), on_problem=told.append
    )
    assert [len(s.scenes) for s in shards] == [1] and "002.png" in told[0]


def test_what_reading_would_refuse_is_not_packed(packed, tmp_path, monkeypatch):
    small = data.open_scene(packed / "00")
    large = data.open_scene(write_flat(tmp_path / "large", (1, 2, 3), photos=12))
    told = []
    monkeypatch.setattr("data.shards.writing.MAX_FRAMES", 11)
    write_shards([large, small], tmp_path / "a", ShardConfig((8, 8)), on_problem=told.append)
    monkeypatch.setattr("data.shards.writing.MAX_FRAMES", 20)
    monkeypatch.setattr("data.shards.writing.MAX_SAMPLE_BYTES", 3000)
    write_shards([large, small], tmp_path / "b", ShardConfig((8, 8)), on_problem=told.append)
    assert "12 photos" in told[0] and "--image-size" in told[1] and len(told) == 2
    for name in "ab":
        assert [[s.frames for s in shard.scenes] for shard in find_shards([str(tmp_path / name)]).shards] == [[4]]


def test_a_tar_of_something_else_does_not_hide_captures(packed, write_capture, tmp_path):
    capture = write_capture("set/one")
    with tarfile.open(tmp_path / "set/backup.tar", "w") as archive:
        archive.add(capture, "one")
    assert data.find_scenes(tmp_path / "set") == [capture]
    write_shards([data.open_scene(capture)], tmp_path / "out", ShardConfig((8, 8)))
    (tmp_path / "set/backup.tar").rename(tmp_path / "out/backup.tar")
    with pytest.raises(data.UserError, match=r"backup\.tar, which is not replaced"):
        write_shards([data.open_scene(capture)], tmp_path / "out", ShardConfig((8, 8)), overwrite=True)


def test_enough_photos_means_the_same_before_and_after_reading(write_capture, tmp_path):
    capture = write_capture(frames=12)
    content = json.loads((capture / "transforms.json").read_text())
    content["train_filenames"] = [f"images/{i:03d}.png" for i in range(0, 12, 2)]
    (capture / "transforms.json").write_text(json.dumps(content))
    write_shards([data.open_scene(capture)], tmp_path / "out", ShardConfig((8, 8)))
    config = replace(CONFIG, input_views=(4, 4), target_views=(2, 2), holdout_every=3)
    for batch in islice(ShardStream(find_shards([str(tmp_path / "out")]), config, 0, 0, 0, 1), 3):
        assert batch.inputs.num_views == 4 and batch.targets.num_views == 2


def test_without_mixing_captures_come_in_the_order_in_which_they_were_packed(packed):
    shards = find_shards([str(packed / "one")])
    unmixed, mixed = (ShardStream(shards, replace(CONFIG, shard_shuffle=n), 0, 0, 0, 1) for n in (1, 4))
    assert [capture_of(b) for b in islice(unmixed, 12)] == list(range(12))
    shown = [capture_of(b) for b in islice(mixed, 12)]
    assert shown != list(range(12))
    assert [sorted(shown[i : i + 4]) for i in (0, 4, 8)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_inputs_out_of_shards_are_chosen_as_out_of_captures(tmp_path, write_capture):
    write_shards([data.open_scene(write_capture("ring", 24, (12, 16)))], tmp_path / "out", ShardConfig((8, 8)))
    shards = find_shards([str(tmp_path / "out")])
    settings = {"image_size": (8, 8), "input_views": (3, 3), "target_views": (2, 2), "normalization": "none"}
    clips = ShardStream(shards, replace(CONFIG, frame_distance=(5, 8), **settings), 0, 0, 0, 1)
    spread = ShardStream(shards, replace(CONFIG, input_selection="spread", **settings), 0, 0, 0, 1)
    for clip, wide in islice(zip(clips, spread, strict=False), 10):
        angles = [torch.atan2(b.inputs.positions[0, :, 1], b.inputs.positions[0, :, 0]) for b in (clip, wide)]
        near, far = (torch.rad2deg((a[:, None] - a + 3 * torch.pi) % (2 * torch.pi) - torch.pi).abs() for a in angles)
        assert 74 < near.max() < 121  # 5 to 8 of 24 steps of 15 degrees
        assert (far + 360 * torch.eye(3)).min() > 74
    with pytest.raises(data.UserError, match="0 captures with enough photos"):
        next(iter(ShardStream(shards, replace(CONFIG, frame_distance=(24, 30), **settings), 0, 0, 0, 1)))
