"""Wheels become files of a layer; nothing is installed and nothing in them is run.

Installing into a folder leaks the host (shebangs, a lock file, an installer's name). A wheel is a
zip with a list of its own hashes, so taking it apart by hand is both simpler and checked.
"""

from __future__ import annotations

import base64
import csv
import fnmatch
import hashlib
import io
import zipfile
import zlib
from typing import TYPE_CHECKING, BinaryIO, cast

from zse.oci.errors import ImageRule
from zse.oci.layout.tar import Entry, check_member_path, file_of_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

SITE_PACKAGES = "opt/zse/site-packages"
_IN_MEMORY_BYTES = 4 << 20
_LIBRARY_KINDS = frozenset({"purelib", "platlib"})


def wheel_entries(wheel: Path, *, prune: Sequence[str] = ()) -> Iterator[Entry]:
    """Yield the files of a wheel as they lie in the image; a ``*`` of ``prune`` crosses slashes.

    Raises:
        ImageError: It is no wheel; or the path of a member leaves the folder or is not listed in
            RECORD, or its bytes differ from the hash there.
    """
    try:
        archive = zipfile.ZipFile(wheel)
    except (OSError, zipfile.BadZipFile) as error:
        raise ImageRule.WHEEL(f"{wheel.name} is not a wheel: {error}") from error
    with archive:
        hashes = _record(archive, wheel.name)
        members = sorted(archive.infolist(), key=lambda member: member.filename)
        for member in members:
            if member.is_dir():
                continue
            path = check_member_path(member.filename, archive=wheel.name)
            digest = _listed_digest(path, hashes, wheel.name)
            target = _installed_path(path)
            if target is None or any(fnmatch.fnmatchcase(target, rule) for rule in prune):
                continue
            # A library's executable bit has no meaning; programs that libraries start need theirs.
            mode = 0o755 if (member.external_attr >> 16) & 0o111 else 0o644
            yield _entry(wheel, archive, member, digest, f"{SITE_PACKAGES}/{target}", mode)


def _entry(
    wheel: Path,
    archive: zipfile.ZipFile,
    member: zipfile.ZipInfo,
    digest: bytes | None,
    path: str,
    mode: int,
) -> Entry:
    if member.file_size <= _IN_MEMORY_BYTES:
        data = archive.read(member)
        if digest is not None and hashlib.sha256(data).digest() != digest:
            raise ImageRule.WHEEL(
                f"{wheel.name}: {member.filename} differs from its hash in RECORD"
            )
        return file_of_bytes(path, data, mode=mode)
    return Entry(
        path=path,
        mode=mode,
        size_bytes=member.file_size,
        open=lambda: cast("BinaryIO", _CheckedMember(wheel, member.filename, digest)),
    )


def _installed_path(path: str) -> str | None:
    """Map a member to its path below site-packages; None for what a server does not need."""
    head, _, rest = path.partition("/")
    if not head.endswith(".data"):
        return path
    kind, _, inner = rest.partition("/")
    return inner if kind in _LIBRARY_KINDS else None


def _listed_digest(path: str, hashes: Mapping[str, bytes | None], wheel: str) -> bytes | None:
    if path not in hashes:
        if path.endswith(("/RECORD.jws", "/RECORD.p7s")):
            return None
        raise ImageRule.UNSAFE_ARCHIVE(f"{wheel} holds {path!r}, which its RECORD does not list")
    return hashes[path]


def _record(archive: zipfile.ZipFile, wheel: str) -> dict[str, bytes | None]:
    """Read RECORD: path -> SHA-256; None for RECORD itself."""
    names = [
        name
        for name in archive.namelist()
        if name.count("/") == 1 and name.endswith(".dist-info/RECORD")
    ]
    if len(names) != 1:
        raise ImageRule.WHEEL(f"{wheel} has {len(names)} RECORD files, expected 1")
    own = names[0].removesuffix("RECORD")
    try:
        rows = list(csv.reader(io.StringIO(archive.read(names[0]).decode())))
        return {row[0]: _digest_in(row, own) for row in rows if len(row) > 1}
    except (ValueError, csv.Error, zipfile.BadZipFile, zlib.error) as error:
        raise ImageRule.WHEEL(f"{wheel}: its RECORD cannot be read: {error}") from error


def _digest_in(row: Sequence[str], own: str) -> bytes | None:
    """Return the SHA-256 of a row of RECORD; None for RECORD's own files, which have none.

    Raises:
        ValueError: The row has no SHA-256.
    """
    algorithm, _, text = row[1].partition("=")
    if not text and row[0].startswith(own):
        return None
    if algorithm != "sha256":
        raise ValueError(f"it has no SHA-256 for {row[0]!r}")
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class _CheckedMember(io.RawIOBase):
    """A large member that is hashed while it is read, and compared at its end."""

    def __init__(self, wheel: Path, name: str, digest: bytes | None) -> None:
        self._archive = zipfile.ZipFile(wheel)
        self._member = self._archive.open(name)
        self._hash, self._digest = hashlib.sha256(), digest
        self._left_bytes = self._archive.getinfo(name).file_size
        self._label = f"{wheel.name}: {name}"

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        data = self._member.read(size)
        self._hash.update(data)
        self._left_bytes -= len(data)
        if self._left_bytes == 0 and self._digest not in {None, self._hash.digest()}:
            raise ImageRule.WHEEL(f"{self._label} differs from its hash in RECORD")
        return data

    def close(self) -> None:
        self._member.close()
        self._archive.close()
        super().close()
