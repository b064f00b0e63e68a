"""Maps a .zse file read-only and checks its header before anything is sliced.

Reads go through one shared mapping: opening costs no copy, whatever the size. The price is that
the file must not be cut short by others while it is open, as with every mapping.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from zse.errors import NotFoundError, UsageError
from zse.format.container import PREFIX_BYTES, checked_header
from zse.format.errors import GGUF_HINT, Misuse, Rule
from zse.format.model_file import ModelFile
from zse.format.spec import CONTAINER, ZSEHeader
from zse.format.verify import verify_contents

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

_KEPT_HEADERS = 16
"""Parsing one takes milliseconds, and it is the same object for the same bytes."""


def read_header(fd: int, file_size_bytes: int) -> tuple[ZSEHeader, int]:
    """Read and check the prefix and the header of an open file.

    Returns:
        The header, and the offset of the first byte after its JSON.
    """
    prefix = os.pread(fd, PREFIX_BYTES, 0)
    length, digest = parse_prefix(prefix, file_size_bytes)
    raw = os.pread(fd, length, PREFIX_BYTES)
    return parse_header(raw, digest), PREFIX_BYTES + length


def parse_prefix(prefix: bytes, file_size_bytes: int) -> tuple[int, bytes]:
    """Return the header's length in bytes and its SHA-256 from the first 64 bytes of a file."""
    if prefix[:4] == b"GGUF":
        message = "the file is GGUF, llama.cpp's format, and no .zse file"
        raise Rule.BAD_MAGIC(message, hint=GGUF_HINT)
    if prefix[8:9] == b"{" and prefix[:4] != CONTAINER.magic:  # after the length of its header
        raise Rule.BAD_MAGIC(
            "the file is safetensors, one file of a checkpoint, and no .zse file",
            hint="Name the folder that holds it and config.json; zse convert reads that.",
        )
    return CONTAINER.parse_prefix(prefix, file_size_bytes)


def parse_header(raw: bytes, digest: bytes) -> ZSEHeader:
    return _parsed(checked_header(raw, digest))


@lru_cache(_KEPT_HEADERS)
def _parsed(raw: bytes) -> ZSEHeader:
    """Parse a header; a file that is opened again, as for a swap, has been parsed before."""
    return ZSEHeader.from_bytes(raw)


class OpenFile:
    """A regular file that was opened by its name once: whoever reads it from here reads that file.

    Args:
        path: What it was called then.
        fd: Its descriptor, taken over.
        opened_state: Its state then, when that was not now.
    """

    def __init__(self, path: Path, fd: int, *, opened_state: tuple[int, int] | None = None) -> None:
        self.path = path
        self.fd = fd
        self.opened_state = opened_state or self.state()

    def state(self) -> tuple[int, int]:
        """Return the size in bytes and the time of modification in nanoseconds, as of now."""
        found = os.fstat(self.fd)
        return found.st_size, found.st_mtime_ns

    def share(self) -> OpenFile:
        """Return the same file, to be closed apart from this one."""
        return OpenFile(self.path, os.dup(self.fd), opened_state=self.opened_state)

    def close(self) -> None:
        """Close it; twice does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def open_file(path: Path, *, to_write: bool = False) -> OpenFile:
    """Open a regular file to read, or to write too.

    Raises:
        NotFoundError: There is no such file, or it is a folder.
        UsageError: It cannot be opened.
    """
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for a writer for ever.
        access = os.O_RDWR if to_write else os.O_RDONLY
        fd = os.open(path, access | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise NotFoundError(f"there is no file {path}", hint="Check the path.") from None
    except OSError as error:
        way = "written" if to_write else "opened"
        raise UsageError(f"{path} cannot be {way}: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotFoundError(
            f"{path} is not a regular file",
            hint="Name a .zse file; convert a checkpoint folder with `zse convert`.",
        )
    return OpenFile(path, fd)


class ZSEReader(ModelFile):
    """Random access to one file. Use it as a context manager.

    Views and tensors taken from a reader stay valid after ``close``: they keep the mapping alive.

    Raises:
        NotFoundError: There is no such file, or it is a folder.
        UsageError: The file cannot be opened.
        FormatError: Its ``rule`` says what is broken.
    """

    path: Path

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file = open_file(self.path)
        try:
            fd, (size_bytes, _) = self._file.fd, self._file.opened_state
            header, header_end = read_header(fd, size_bytes)
            super().__init__(self.path, header, header_end_bytes=header_end, size_bytes=size_bytes)
            self._map = mmap.mmap(fd, size_bytes, access=mmap.ACCESS_READ)
        except BaseException:
            self._file.close()
            raise
        self._header_end_bytes = header_end
        self._view: memoryview | None = memoryview(self._map)

    # --- bytes ----------------------------------------------------------------------------------

    def section(self, name: str) -> memoryview:
        """Return a section's bytes, read-only, without a copy.

        Raises:
            UsageError: The file carries no such section.
        """
        found = self.section_entry(name)
        return self._open_view()[found.offset_bytes : found.end_bytes]

    def part(self, name: str, role: str) -> memoryview:
        """Return the bytes of one part of a tensor, read-only, without a copy."""
        part = self.entry(name).part(role)
        return self._open_view()[part.offset_bytes : part.end_bytes]

    def read_part(self, name: str, role: str, offset_bytes: int, length_bytes: int) -> bytes:
        return bytes(self.part(name, role)[offset_bytes : offset_bytes + length_bytes])

    def weights(self) -> memoryview:
        """Return the groups that are loaded, which follow each other, as one view."""
        groups = self.header.loaded().groups
        if not groups:
            return self._open_view()[:0]
        return self._open_view()[groups[0].offset_bytes : groups[-1].end_bytes]

    def share_file(self) -> OpenFile:
        """Return the file that is mapped here; the caller closes it.

        Its name may mean another file by now.
        """
        self._open_view()
        return self._file.share()

    def verify(self) -> None:
        """Check every byte: digests, padding, and that quantization scales are finite.

        Raises:
            FormatError: Its ``rule`` says what is broken.
        """
        verify_contents(self.header, self._open_view(), header_end_bytes=self._header_end_bytes)

    def release(self, group_name: str) -> None:
        """Tell the kernel that a group's pages are not needed now; they are read again if used."""
        group = self.group(group_name)
        self._open_view()
        self._map.madvise(mmap.MADV_DONTNEED, group.offset_bytes, group.length_bytes)

    def ask_ahead(self, group_name: str) -> None:
        """Tell the kernel that a group's pages will be needed soon; it begins to read them."""
        group = self.group(group_name)
        self._open_view()
        self._map.madvise(mmap.MADV_WILLNEED, group.offset_bytes, group.length_bytes)

    # --- tensors (these import torch) -----------------------------------------------------------

    def tensor(self, name: str) -> torch.Tensor:
        """Return one tensor in float32 with its logical shape, dequantized if need be."""
        from zse.format.as_torch import dequantize, stored_parts

        return dequantize(self.entry(name), stored_parts(self, name))

    def load_state_dict(self) -> dict[str, torch.Tensor]:
        """Return every tensor as stored, without a copy.

        Plain tensors stand under their name, parts of quantized ones under ``name.role``.
        """
        from zse.format.as_torch import stored_tensors

        return stored_tensors(self, self.names())

    def iter_layers(self) -> Iterator[tuple[int, dict[str, torch.Tensor]]]:
        """Yield ``(index, tensors)`` layer by layer, keyed as in ``load_state_dict``.

        A layer's pages are released after it was used, so that the memory held stays small.
        """
        from zse.format.as_torch import stored_tensors

        for name in self._groups:
            kind, _, index = name.partition(".")
            if kind == "layers" and index.isdecimal():
                names = [entry.name for entry in self._members[name]]
                yield int(index), stored_tensors(self, names)
                self.release(name)

    # --- life -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop reading. The mapping goes when the last view or tensor of it does."""
        if self._view is None:
            return
        self._view.release()
        self._view = None
        self._file.close()
        with contextlib.suppress(BufferError):
            self._map.close()

    def _open_view(self) -> memoryview:
        if self._view is None:
            raise Misuse.READER_CLOSED(f"{self.path} was closed")
        return self._view
