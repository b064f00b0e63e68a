"""Tar streams that depend on their content only.

Sorted entries, explicit parent folders, no owner, one time stamp for all, modes 0644 and 0755: the
same files give the same bytes on any host, with any umask. The price is that owners, extended
attributes and setuid bits do not survive, which an image that runs as one user does not need.
"""

from __future__ import annotations

import io
import tarfile
from enum import StrEnum
from typing import IO, TYPE_CHECKING, BinaryIO, Protocol, cast

from zse.errors import ImageError
from zse.oci.errors import ImageRule
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

BLOCK = 512
_COPY_BYTES = 1 << 20


class Kind(StrEnum):
    """What an entry is. Hard links are written as copies, so they need no kind."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"


class Sink(Protocol):
    """Where bytes go, all that it is given."""

    def write(self, data: bytes, /) -> int: ...


@record
class Entry:
    """One path in a layer, without a leading slash."""

    path: str
    kind: Kind = Kind.FILE
    mode: int = 0o644
    size_bytes: int = 0
    open: Callable[[], BinaryIO] | None = None
    """Gives the content of a file from its start."""
    target: str = ""
    """Where a symbolic link points."""

    def read(self) -> bytes:
        if self.open is None:
            return b""
        with self.open() as stream:
            return stream.read()


def file_of_bytes(path: str, data: bytes, *, mode: int = 0o644) -> Entry:
    return Entry(path=path, mode=mode, size_bytes=len(data), open=lambda: io.BytesIO(data))


def file_of_path(path: str, local: Path, *, mode: int = 0o644) -> Entry:
    """Make a file whose content is read from ``local`` when it is written."""
    size_bytes = local.stat().st_size
    return Entry(path=path, mode=mode, size_bytes=size_bytes, open=lambda: local.open("rb"))


def directory(path: str, *, mode: int = 0o755) -> Entry:
    return Entry(path=path, kind=Kind.DIRECTORY, mode=mode)


def symlink(path: str, target: str) -> Entry:
    return Entry(path=path, kind=Kind.SYMLINK, mode=0o777, target=target)


def check_member_path(path: str, *, archive: str) -> str:
    """Return ``path`` normalised, or refuse one that leaves its folder.

    Raises:
        ImageError: The path is absolute, empty, or holds ``..``, NUL or a backslash.
    """
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if path.startswith("/") or ".." in parts or not parts or "\0" in path or "\\" in path:
        raise ImageRule.UNSAFE_ARCHIVE(
            f"{archive} holds the path {path!r}, which is not inside it",
            hint="Do not use this archive; it was not made by an honest tool.",
        )
    return "/".join(parts)


def write_tar(
    entries: Iterable[Entry], sink: Sink, *, mtime: int = 0, align_bytes: int = 0
) -> None:
    """Write ``entries`` as one tar stream.

    Args:
        entries: In any order; parents that are not listed are added.
        sink: Takes the bytes.
        mtime: Time stamp of every entry, seconds since 1970.
        align_bytes: When given, the content of each file starts at a multiple of this offset,
            so that a reader may map it straight out of the stored layer.

    Raises:
        ImageError: Two entries have the same path, or a file became shorter while it was written.
    """
    # An integer time stamp matters: a float would add a PAX record and change the bytes.
    with tarfile.open(
        fileobj=cast("IO[bytes]", sink), mode="w|", format=tarfile.PAX_FORMAT, bufsize=_COPY_BYTES
    ) as archive:
        for entry in _in_order(entries):
            header = header_of(entry, mtime)
            if align_bytes and entry.kind is Kind.FILE:
                pad_to(header, int(archive.offset), align_bytes)
            if entry.kind is not Kind.FILE or entry.open is None:
                archive.addfile(header)
                continue
            with entry.open() as stream:
                try:
                    archive.addfile(header, stream)
                except OSError as error:
                    if error.errno is not None:  # tarfile's own error carries no number
                        raise
                    raise ImageError(
                        f"{header.name} became shorter while it was written",
                        hint="Build again when nothing writes to it.",
                    ) from error


def _in_order(entries: Iterable[Entry]) -> Iterator[Entry]:
    by_path: dict[str, Entry] = {}
    for entry in entries:
        seen = by_path.get(entry.path)
        if seen is not None and not (seen.kind is entry.kind is Kind.DIRECTORY):
            raise ImageRule.UNSAFE_ARCHIVE(f"two files of the layer have the path {entry.path!r}")
        by_path[entry.path] = entry
    for path in list(by_path):
        parent = path.rpartition("/")[0]
        while parent and parent not in by_path:
            by_path[parent] = directory(parent)
            parent = parent.rpartition("/")[0]
    return (by_path[path] for path in sorted(by_path))


def header_of(entry: Entry, mtime: int) -> tarfile.TarInfo:
    """Return what stands before an entry's content."""
    header = tarfile.TarInfo(entry.path)
    header.mode, header.mtime = entry.mode, mtime
    if entry.kind is Kind.DIRECTORY:
        header.type = tarfile.DIRTYPE
    elif entry.kind is Kind.SYMLINK:
        header.type, header.linkname = tarfile.SYMTYPE, entry.target
    else:
        header.size = entry.size_bytes
    return header


def pad_to(header: tarfile.TarInfo, offset_bytes: int, align_bytes: int) -> None:
    """Add a PAX comment whose length moves the content to an aligned offset."""
    padding = -(offset_bytes + BLOCK) % align_bytes
    if padding == 0:
        return
    if padding < 2 * BLOCK:  # the comment needs a header block of its own and one for its text
        padding += align_bytes
    record_bytes = padding - BLOCK
    # A PAX record is "LENGTH comment=TEXT\n", LENGTH counting itself.
    text_bytes = record_bytes - len(str(record_bytes)) - len(" comment=\n")
    header.pax_headers = {"comment": " " * text_bytes}
