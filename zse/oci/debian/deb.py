"""Debian packages, taken apart in memory: an ar archive that holds a compressed tar of files."""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import zstandard

from zse.oci.errors import ImageRule
from zse.oci.layout.tar import Entry, check_member_path, directory, file_of_bytes, symlink

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_AR_MAGIC = b"!<arch>\n"
_AR_HEADER_BYTES = 60
_MAX_DATA_BYTES = 1 << 30
_MERGED = frozenset({"bin", "sbin", "lib", "lib64", "lib32"})


def deb_entries(package: Path) -> Iterator[Entry]:
    """Yield the files of a .deb with the paths they have on a merged-usr system.

    Hard links become copies. Devices and setuid bits are dropped.

    Raises:
        ImageError: The file is not a Debian package, or a path leaves the root.
    """
    with _files(package) as archive:
        yield from filter(None, (_entry(archive, member, package.name) for member in archive))


def read_deb_file(package: Path, path: str) -> bytes:
    """Return one file of a .deb; nothing when the package does not hold it.

    Raises:
        ImageError: The file is not a Debian package.
    """
    with _files(package) as archive, suppress(KeyError):
        stream = archive.extractfile(f"./{path}")
        return stream.read() if stream is not None else b""
    return b""


@contextmanager
def _files(package: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(fileobj=io.BytesIO(_data_tar(package)), mode="r:") as archive:
            yield archive
    except (tarfile.TarError, lzma.LZMAError, zstandard.ZstdError, OSError, EOFError) as error:
        raise ImageRule.DEBIAN(
            f"{package.name} is not a readable Debian package: {error}"
        ) from error


def merged_usr_path(path: str) -> str:
    """Move a path of /bin, /sbin or /lib* below /usr, where it lies on every system since 2021."""
    head, slash, _ = path.partition("/")
    return f"usr/{path}" if slash and head in _MERGED else path


def _entry(archive: tarfile.TarFile, member: tarfile.TarInfo, package: str) -> Entry | None:
    name = member.name.removeprefix("./").strip("/")
    if name in {"", "."}:
        return None
    path = merged_usr_path(check_member_path(name, archive=package))
    if member.isdir():
        return None if path in _MERGED else directory(path, mode=member.mode & 0o1777)
    if member.issym():
        return symlink(path, member.linkname)
    if member.isreg() or member.islnk():
        stream = archive.extractfile(member)
        data = stream.read() if stream is not None else b""
        return file_of_bytes(path, data, mode=0o755 if member.mode & 0o111 else 0o644)
    return None


def _data_tar(package: Path) -> bytes:
    raw = package.read_bytes()
    if not raw.startswith(_AR_MAGIC):
        raise ImageRule.DEBIAN(f"{package.name} does not start with {_AR_MAGIC!r}")
    offset_bytes = len(_AR_MAGIC)
    while offset_bytes + _AR_HEADER_BYTES <= len(raw):
        header = raw[offset_bytes : offset_bytes + _AR_HEADER_BYTES]
        name = header[:16].decode("ascii", "replace").strip().rstrip("/")
        try:
            size_bytes = int(header[48:58])
        except ValueError:
            raise ImageRule.DEBIAN(f"{package.name} has a broken ar header") from None
        start = offset_bytes + _AR_HEADER_BYTES
        if size_bytes < 0 or start + size_bytes > len(raw):
            raise ImageRule.DEBIAN(f"{package.name} is cut short in {name}")
        if name.startswith("data.tar"):
            return _decompress(name, raw[start : start + size_bytes], package.name)
        offset_bytes = start + size_bytes + size_bytes % 2
    raise ImageRule.DEBIAN(f"{package.name} holds no data.tar")


def _decompress(name: str, data: bytes, package: str) -> bytes:
    suffix = name.removeprefix("data.tar")
    if suffix == ".xz":
        inflater = lzma.LZMADecompressor()
        files = inflater.decompress(data, _MAX_DATA_BYTES)
        if not inflater.eof:
            raise ImageRule.DEBIAN(
                f"{package} is cut short, or holds more than {_MAX_DATA_BYTES} bytes"
            )
        return files
    if suffix == ".zst":
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    if suffix == ".gz":
        return gzip.decompress(data)
    if suffix == "":
        return data
    raise ImageRule.DEBIAN(f"{package} stores its files as {name}, expected .xz, .zst or .gz")
