"""Reads the samples of a shard one after the other, from a path or an address, and trusts nothing in it."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from data.errors import UserError
from data.shards.samples import MEMBER, printable

MAX_MEMBER_BYTES = 64 * 2**20
MAX_SAMPLE_BYTES = 2**30
MAX_SAMPLE_MEMBERS = 20_001
MAX_SAMPLES = 1_000_000
AGAIN = "Make it again with nvs convert."


class PlainMember(tarfile.TarInfo):
    """A member of a shard, refused by its header if it is anything but a small plain file with a simple name."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> PlainMember:
        """Read a header; links, long names and the like are refused before anything they ask for is done."""
        member = super().frombuf(buf, encoding, errors)
        name = printable(member.name)
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or not MEMBER.fullmatch(member.name):
            raise UserError(f"it holds {name}, which is no photo and no cameras of a capture. {AGAIN}")
        if not 0 <= member.size <= MAX_MEMBER_BYTES:
            raise UserError(f"{name} in it is too large. {AGAIN}")
        return member


def read_samples(url: str) -> Iterator[dict[str, Any]]:
    """The samples of a shard in order: `__key__`, and the content of each member under its ending."""
    from webdataset.tariterators import group_by_keys

    with open_url(url) as stream, told(url):
        yield from group_by_keys(_members(stream, url), lcase=False)


@contextmanager
def open_url(url: str) -> Iterator[IO[bytes]]:
    """Open a path, or an address of any kind that fsspec knows, for reading."""
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(url)
        stream = system.open(path, "rb")
    except ImportError as error:
        raise UserError(f"{url} needs a package that is not installed: {_sentence(error)}.") from error
    except Exception as error:  # each kind of storage has its own
        raise UserError(f"{url} cannot be read: {_sentence(error)}. Check the path or the address.") from error
    with stream:
        yield stream


@contextmanager
def told(url: str) -> Iterator[None]:
    """Whatever goes wrong inside is told in a sentence that names the file."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{url} cannot be used: {error}") from error
    except Exception as error:  # tarfile, webdataset and each kind of storage have their own
        raise UserError(f"{url} is cut off, damaged or cannot be reached ({_sentence(error)}). {AGAIN}") from error


def _members(stream: IO[bytes], url: str) -> Iterator[dict[str, Any]]:
    """Name and content of each member, as webdataset groups them."""
    key, samples, members, size = "", 0, 0, 0
    finished: set[str] = set()
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=PlainMember) as opened:
        archive: Any = opened
        for member in archive:
            if member.name.partition(".")[0] != key:
                finished.add(key)
                key, samples, members, size = member.name.partition(".")[0], samples + 1, 0, 0
            members, size = members + 1, size + member.size
            if key in finished:
                raise UserError(f"the parts of {key} are not in one place. {AGAIN}")
            if samples > MAX_SAMPLES or members > MAX_SAMPLE_MEMBERS or size > MAX_SAMPLE_BYTES:
                raise UserError(f"it holds too much in one capture, or too many captures. {AGAIN}")
            file = archive.extractfile(member)
            content = file.read() if file else b""
            if len(content) != member.size:
                raise UserError(f"it ends within {member.name}. {AGAIN}")
            archive.members = []  # tarfile would keep all headers
            yield {"fname": member.name, "data": content, "__url__": url}


def _sentence(error: BaseException) -> str:
    told_by_system = error.strerror.lower() if isinstance(error, OSError) and error.strerror else ""
    text = re.sub(r"\s+", " ", told_by_system or str(error)).strip().rstrip(".")
    return text[:200] or type(error).__name__
