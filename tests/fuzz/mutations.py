"""Damage for capture files: text, JSON, .npy and other binary files cut, swapped, filled with noise or huge numbers."""

import copy
import gzip
import io
import json
import random
import struct
import tarfile
import zipfile

import torch

WORDS = [
    b"", b"-1", b"0", b"NaN", b"nan", b"-Infinity", b"1e999", b"1e-320", b"9" * 30, b"#", b"\0", b"\xff\xfe", b"\n",
    b" ", b'"', b"}", b"]", b"[[[[", b"../" * 8, b"/etc/passwd", b"OPENCV_FISHEYE", b"\xf0\x9f\x98\x80", b"x" * 5000,
]  # fmt: skip
VALUES = [None, True, 0, -1, 1e308, 1e-320, 10**40, float("nan"), float("inf"), "", "x", "\0", "\ud800", "..", [], {}]
VALUES += [[[]], [None], [[1, 2], [3, 4]], "OPENCV_FISHEYE", "images/0.png", {"w": 1}, [["a"] * 4] * 4]
KEYS = ["w", "h", "fl_x", "cx", "k1", "p1", "camera_model", "camera_angle_x", "frames", "file_path", "transform_matrix"]
KEYS += ["bufferView", "count", "byteLength", "accessors", "children", "indices", "photo", "scenes", "file"]
KEYS += ["w2c", "fx", "fxfycxcy", "image_path", "is_fisheye", "train_filenames"]
NUMBERS = [0, 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1]


def mutate(content: bytes, rng: random.Random) -> bytes:
    """The content of a file with a few things broken: mostly so that it can still be parsed, else anywhere."""
    actions = [cut, replace_bytes, insert_word, repeat_part, replace_by_noise, set_number, set_double]
    if rng.random() < 0.7:
        if content[:1] in (b"{", b"["):
            actions = [mutate_json]
        elif content[:2] == b"PK":
            return mutate_zip(content, rng) if b"data.pkl" not in content else mutate_chunk(content, rng)
        elif content[257:262] == b"ustar":
            return mutate_tar(content, rng)
        elif content[:4] == b"glTF":
            return mutate_glb(content, rng)
        elif content[:2] == b"\x1f\x8b":
            return gzip.compress(mutate(gzip.decompress(content), rng))
        elif content[:6] == b"\x93NUMPY":
            return content[:128] + rng.choice([set_double, replace_bytes, cut])(content[128:], rng)
        elif b"\0" in content:
            return rng.choice([set_double, replace_bytes])(content, rng)
        else:
            actions = [replace_word, replace_word, shuffle_lines, drop_line]
    for _ in range(rng.randint(1, 4)):
        content = rng.choice(actions)(content, rng)
    return content


def cut(content, rng):
    return content[: rng.randint(0, len(content))]


def replace_bytes(content, rng):
    changed = bytearray(content)
    for _ in range(min(len(changed), rng.randint(1, 8))):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def insert_word(content, rng):
    at = rng.randint(0, len(content))
    return content[:at] + rng.choice(WORDS) + content[at + rng.randint(0, 3) :]


def repeat_part(content, rng):
    start, end = sorted(rng.randint(0, len(content)) for _ in range(2))
    return content[:end] + content[start:end] * rng.randint(1, 3) + content[end:]


def replace_by_noise(content, rng):
    if rng.random() < 0.2:
        return rng.randbytes(rng.randint(0, 400))
    at = rng.randint(0, len(content))
    return content[:at] + rng.randbytes(min(len(content) - at, rng.randint(1, 64))) + content[at + 64 :]


def set_number(content, rng):
    """A count or an index of a binary file becomes huge."""
    return _overwrite(content, struct.pack(rng.choice(["<Q", ">Q"]), rng.choice(NUMBERS)), rng)


def set_double(content, rng):
    return _overwrite(content, struct.pack("<d", rng.choice([float("nan"), float("inf"), 0.0, 1e300, -1e-300])), rng)


def _overwrite(content, new, rng):
    at = rng.choice([0, rng.randint(0, max(0, len(content) - 8)), rng.randint(0, max(0, len(content) - 8))])
    return content[:at] + new + content[at + len(new) :]


def replace_word(content, rng):
    words = content.split(b" ")
    words[rng.randrange(len(words))] = rng.choice(WORDS)
    return b" ".join(words)


def shuffle_lines(content, rng):
    lines = content.split(b"\n")
    rng.shuffle(lines)
    return b"\n".join(lines)


def drop_line(content, rng):
    lines = content.split(b"\n")
    del lines[rng.randrange(len(lines))]
    return b"\n".join(lines)


def mutate_json(content, rng):
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return cut(content, rng)
    return json.dumps(_mutate_value(value, rng)).encode()


def mutate_chunk(content, rng):
    """A .torch file whose tensors have other shapes, types and values."""
    clips = torch.load(io.BytesIO(content), weights_only=True)
    for _ in range(rng.randint(1, 3)):
        clip = rng.choice(clips)
        key, value = rng.choice(list(clip.items()))
        if isinstance(value, list) and value and rng.random() < 0.8:
            at = rng.randrange(len(value))
            value[at] = _mutate_tensor(value[at], rng)
        elif rng.random() < 0.2:
            clip.pop(key)
        else:
            clip[key] = _mutate_tensor(value, rng)
        if not clip:
            break
    file = io.BytesIO()
    torch.save(clips if rng.random() < 0.95 else clips[0], file)
    return file.getvalue()


def mutate_zip(content, rng):
    """A .zip one of whose files is damaged, or has another name, or is a link."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    chosen, action = rng.choice(list(members)), rng.random()
    damaged = mutate(members.pop(chosen), rng) if action < 0.7 else members.pop(chosen)
    name = chosen if action < 0.7 else rng.choice(["../" * 5 + "out", "/etc/passwd", "a\\..\\b", "x" * 300, chosen])
    info = zipfile.ZipInfo(name)
    info.external_attr = rng.choice([0, 0o120777 << 16])
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(info, damaged)
        for other, kept in members.items():
            archive.writestr(other, kept)
    return buffer.getvalue()


def mutate_tar(content, rng):
    """A .tar one of whose files is damaged, or has another name, kind or size."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        members = [(info, archive.extractfile(info).read()) for info in archive]
    buffer, chosen = io.BytesIO(), rng.randrange(len(members))
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for i, (info, kept) in enumerate(members):
            if i == chosen and rng.random() < 0.6:
                kept = mutate(kept, rng)
            elif i == chosen:
                info.name = rng.choice(["../" * 5 + "out", "/etc/passwd", "x" * 300, "a.pyd", "a.json", info.name])
                info.type = rng.choice([info.type, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE])
                info.linkname = "/etc/passwd"
            info.size = len(kept) if info.isreg() else 0
            archive.addfile(info, io.BytesIO(kept))
    return buffer.getvalue()


def mutate_glb(content, rng):
    """A .glb whose JSON is damaged, with lengths that fit again."""
    length = struct.unpack_from("<I", content, 12)[0]
    text = mutate_json(content[20 : 20 + length], rng)
    text += b" " * (-len(text) % 4)
    rest = content[20 + length :]
    return b"glTF" + struct.pack("<III", 2, 20 + len(text) + len(rest), len(text)) + b"JSON" + text + rest


def _mutate_tensor(value, rng):
    if not isinstance(value, torch.Tensor) or rng.random() < 0.2:
        return copy.deepcopy(rng.choice([*VALUES[:15], torch.zeros(0), torch.tensor(1.0), torch.zeros(3, 18)]))
    if value.layout != torch.strided or value.numel() > 10**6:
        return value
    value = value.contiguous().clone()
    if value.numel() and rng.random() < 0.5:
        values = [float("nan"), float("inf"), 1e30, -1.0, 0.0] if value.is_floating_point() else [0, 1, 255]
        value.view(-1)[rng.randrange(value.numel())] = rng.choice(values)
        return value
    changes = [
        lambda t: t[: len(t) // 2], lambda t: t.double(), lambda t: t.long(), lambda t: t[None],
        lambda t: t.transpose(0, -1), lambda t: t.reshape(-1)[:1].expand(2**40), lambda t: t.to(torch.complex64),
        lambda t: t * 0, lambda t: torch.cat([t, t]), lambda t: t.to_sparse(), lambda t: t.flip(0),
    ]  # fmt: skip
    return rng.choice(changes)(value) if value.ndim else value


def _mutate_value(value, rng):
    """Replace, drop or double a part of a JSON value."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key, action = rng.choice(list(value)), rng.random()
        if action < 0.15:
            value.pop(key)
        elif action < 0.3:
            value[rng.choice(KEYS)] = copy.deepcopy(rng.choice(VALUES))
        else:
            value[key] = _mutate_value(value[key], rng)
        return value
    if isinstance(value, list) and value and rng.random() < 0.85:
        at, action = rng.randrange(len(value)), rng.random()
        if action < 0.1:
            del value[at]
        elif action < 0.2:
            value.append(copy.deepcopy(value[at]))
        else:
            value[at] = _mutate_value(value[at], rng)
        return value
    if isinstance(value, float) and rng.random() < 0.5:
        return value * rng.choice([-1, 0, 1e-9, 1e9, 1e200, float("nan")])
    return copy.deepcopy(rng.choice(VALUES))
