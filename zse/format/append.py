"""Adds a section at the end of a finished .zse file, in place, or takes one away.

The bytes come first, then the header in one write; bytes that cannot be written are cut off again.
A process that is killed in between leaves bytes behind all that the header lists, for which readers
refuse the file (``trailing_bytes``): cut off there, it is what it was. The space of the header was
left with room for this when the file was made.
"""

from __future__ import annotations

import errno
import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from zse.errors import DiskFullError, NotFoundError, UsageError
from zse.format.container import PREFIX_BYTES
from zse.format.errors import Rule
from zse.format.names import check_section_name
from zse.format.partial import lock_alone, write_at
from zse.format.reader import open_file, read_header
from zse.format.spec import CONTAINER, HEADER_SLACK, PAGE, Section, ZSEHeader
from zse.format.validate import validate
from zse.units import align_up


def append_section(path: str | os.PathLike[str], name: str, data: bytes) -> Section:
    """Add a section, or put it in the place of one of the same name, whose bytes become zeros.

    Args:
        path: A complete .zse file that nobody else is writing.
        name: A plain relative path, such as ``kernels/sm_90``.
        data: The section's bytes.

    Returns:
        Where the section lies now.

    Raises:
        NotFoundError: There is no such file.
        UsageError: The file cannot be written. Another process is adding a section.
        DiskFullError: No room is left; the file is what it was.
        FormatError: The header has no room left for another section. The file or the name breaks a
            rule.
    """
    check_section_name(name)
    with closing(open_file(Path(path), to_write=True)) as file:
        lock_alone(file.fd, file.path)
        return _append(file.fd, str(path), name, data)


def remove_section(path: str | os.PathLike[str], name: str) -> Section:
    """Take a section out of a file; what it held becomes zeros, or the file becomes shorter.

    Args:
        path: A complete .zse file that nobody else is writing, or has mapped.
        name: Of the section.

    Returns:
        What it was.

    Raises:
        NotFoundError: There is no such file, or no such section in it.
        UsageError: The file cannot be written. Another process is adding a section.
        FormatError: The file breaks a rule.
    """
    with closing(open_file(Path(path), to_write=True)) as file:
        lock_alone(file.fd, file.path)
        size_bytes = os.fstat(file.fd).st_size
        header, header_end_bytes = read_header(file.fd, size_bytes)
        validate(header, header_end_bytes=header_end_bytes, file_size_bytes=size_bytes)
        old = next((known for known in header.sections if known.name == name), None)
        if old is None:
            raise NotFoundError(f"{path} has no section {name}", hint="zse inspect lists them.")
        left = replace(header, sections=tuple(one for one in header.sections if one is not old))
        raw = left.to_bytes()
        end_bytes = align_up(_end_of(left, len(raw)), PAGE)
        if end_bytes < size_bytes:
            # Zeros first: should the end not be cut off, nothing of what was there is left.
            os.ftruncate(file.fd, max(end_bytes, old.offset_bytes))
            os.ftruncate(file.fd, size_bytes)
        _write_header(file.fd, raw, header_end_bytes)
        if end_bytes < size_bytes:
            os.ftruncate(file.fd, end_bytes)
        else:
            write_at(file.fd, bytes(old.length_bytes), old.offset_bytes)
        os.fsync(file.fd)
    return old


def _end_of(header: ZSEHeader, length_bytes: int) -> int:
    """Return where what a header lists ends; of one that lists nothing, the space kept for it."""
    ends = (region.end_bytes for region in header.regions)
    return max(ends, default=PREFIX_BYTES + length_bytes + HEADER_SLACK)


def _append(fd: int, path: str, name: str, data: bytes) -> Section:
    size_bytes = os.fstat(fd).st_size
    header, header_end_bytes = read_header(fd, size_bytes)
    validate(header, header_end_bytes=header_end_bytes, file_size_bytes=size_bytes)
    regions = header.regions
    if not regions:
        raise UsageError(f"{path} holds nothing yet: add sections when it is written")
    section = Section.of(name, align_up(max(region.end_bytes for region in regions), PAGE), data)
    old = next((known for known in header.sections if known.name == name), None)
    if old is not None and old.sha256 == section.sha256:
        return old
    others = tuple(known for known in header.sections if known is not old)
    raw = replace(header, sections=(*others, section)).to_bytes()
    room_bytes = min(region.offset_bytes for region in regions) - PREFIX_BYTES
    if len(raw) > room_bytes:
        raise Rule.HEADER_TOO_LARGE(
            f"{path}: the header would take {len(raw)} bytes, {room_bytes} are kept for it",
            hint="Convert the checkpoint again, or keep the data in a file of its own.",
        )
    _write_data(fd, section, data, size_bytes)
    _write_header(fd, raw, header_end_bytes)
    if old is not None:
        write_at(fd, bytes(old.length_bytes), old.offset_bytes)
    os.fsync(fd)
    return section


def _write_header(fd: int, raw: bytes, header_end_bytes: int) -> None:
    # Zeros after the JSON wipe what a longer header left.
    padding = bytes(max(0, header_end_bytes - PREFIX_BYTES - len(raw)))
    write_at(fd, CONTAINER.seal(raw) + padding, 0)
    os.fdatasync(fd)


def _write_data(fd: int, section: Section, data: bytes, size_bytes: int) -> None:
    try:
        write_at(fd, data, section.offset_bytes)
        os.fdatasync(fd)
    except OSError as error:
        os.ftruncate(fd, size_bytes)
        if error.errno == errno.ENOSPC:
            raise DiskFullError(f"no room for {len(data)} more bytes") from error
        raise
