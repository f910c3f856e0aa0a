import os
import stat
import unicodedata

import pytest

from data import UserError, write_atomic
from data.files import PhotoFinder, natural_key, read_json


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")


def test_write_atomic_leaves_the_old_file_when_the_block_fails(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(RuntimeError), write_atomic(target) as temporary:
        assert temporary.parent == tmp_path and temporary.suffix == ".txt"
        temporary.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_write_atomic_replaces_and_makes_folders_and_keeps_the_usual_mode(tmp_path):
    target = tmp_path / "deep" / "er" / "a.txt"
    with write_atomic(target) as temporary:
        temporary.write_text("new")
    assert target.read_text() == "new"
    ordinary = tmp_path / "ordinary"
    ordinary.write_text("")
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(ordinary.stat().st_mode)
    assert os.listdir(target.parent) == ["a.txt"]


def test_write_atomic_tells_an_impossible_place(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"), write_atomic(tmp_path / "file" / "a.txt"):
        raise AssertionError


def test_json_with_mark_and_bare_tokens(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b"\xef\xbb\xbf" + b'{"a": NaN, "b": [-Infinity, 1]}')
    content = read_json(path)
    assert content["a"] != content["a"] and content["b"] == [-float("inf"), 1]


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"a": 1,}', b"\xff\xfe{\0}\0", b"[" * 100_000, b"1" * 5000, b"not json"]
)
def test_broken_json_is_one_sentence_with_the_file(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.json is not valid JSON") as caught:
        read_json(tmp_path / "a.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("written", "on_disk", "downscale"),
    [
        ("images/a.png", "images/a.png", 1),
        ("./images/a.png", "images/a.png", 1),
        ("images/a", "images/a.png", 1),
        ("images/a.0001", "images/a.0001.jpg", 1),
        ("images/a.png", "images/a.png.png", 1),
        ("images/a.png", "images/a.jpg", 1),
        ("images/a.PNG", "images/a.png", 1),
        ("images\\a.png", "images/a.png", 1),
        ("..\\capture\\images\\a.png", "images/a.png", 1),
        ("C:\\work\\capture\\images\\a.png", "images/a.png", 1),
        ("/home/other/capture/images/sub/a.png", "images/sub/a.png", 1),
        ("somewhere/else/a.png", "images/a.png", 1),
        ("a.png", "images/a.png", 1),
        ("images/a.png", "images_4/a.png", 4),
        ("images/left/a.png", "images_2/left/a.jpg", 2),
        ("./images/a", "images_8/a.JPG", 8),
        ("images/caf\u00e9.png", "images/" + unicodedata.normalize("NFD", "caf\u00e9.png"), 1),
        ("odd name (1).png", "odd name (1).png", 1),
    ],
)
def test_photos_are_found_in_every_dialect(tmp_path, written, on_disk, downscale):
    root = tmp_path / "capture"
    touch(root, on_disk, "images/decoy.png", "images_4/decoy.png")
    found = PhotoFinder(root).find(written)
    assert found is not None
    assert found.path.resolve() == (root / on_disk).resolve()
    assert found.downscale == downscale


@pytest.mark.parametrize(
    ("written", "on_disk"),
    [
        ("train/r_0", "train/r_0_normal_0001.png"),
        ("train/r_0", "train/r_00.png"),
        ("images/a.png", "images/a_extra.png"),
        ("images/a.png", "images/a.txt"),
        ("images", "images/a.png"),
        ("", "images/a.png"),
        ("images/a\0.png", "images/a.png"),
        ("x" * 5000 + ".png", "images/a.png"),
        ("..", "images/a.png"),
    ],
)
def test_other_files_are_never_taken(tmp_path, written, on_disk):
    touch(tmp_path, on_disk)
    assert PhotoFinder(tmp_path).find(written) is None


def test_the_path_as_written_comes_first(tmp_path):
    touch(tmp_path, "images/a.png", "images/a", "images_2/a.png", "a.png", "images/A.png")
    finder = PhotoFinder(tmp_path)
    assert finder.find("images/a.png") == (tmp_path / "images/a.png", 1)
    assert finder.find("images/A.png") == (tmp_path / "images/A.png", 1)
    assert finder.find("a.png") == (tmp_path / "a.png", 1)
    assert finder.find(str(tmp_path / "images/a.png")) == (tmp_path / "images/a.png", 1)


def test_natural_order():
    names = ["r_10", "r_2", "r_1", "r_02b", "a100", "a20", "r"]
    assert sorted(names, key=natural_key) == ["a20", "a100", "r", "r_1", "r_2", "r_02b", "r_10"]
