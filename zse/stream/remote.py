"""A .zse file in object storage, opened without a disk: the header and sections by small reads.

It answers what ``ZSEReader`` answers about a file, except for tensors: those go to a
device by a load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import FormatError
from zse.format.container import PREFIX_BYTES, check_digest
from zse.format.errors import Misuse
from zse.format.model_file import ModelFile
from zse.format.reader import parse_header, parse_prefix
from zse.format.verify import verify_contents

if TYPE_CHECKING:
    from zse.format.spec import Section
    from zse.stream.source import ByteSource


class RemoteReader(ModelFile):
    """One file behind a source, which it closes in the end. Use it as a context manager.

    Raises:
        FormatError: Its ``rule`` says what is broken.
        StoreError: The source failed.
    """

    def __init__(self, source: ByteSource) -> None:
        self.source = source
        """For a load."""
        self.path = source.name
        try:
            prefix = self._read(0, min(PREFIX_BYTES, source.size_bytes))
            length, digest = parse_prefix(prefix, source.size_bytes)
            header = parse_header(self._read(PREFIX_BYTES, length), digest)
            super().__init__(
                source.name,
                header,
                header_end_bytes=PREFIX_BYTES + length,
                size_bytes=source.size_bytes,
            )
        except BaseException:
            source.close()
            raise
        self._header_end_bytes = PREFIX_BYTES + length
        self._held: dict[str, bytes] = {}
        self._closed = False

    def section(self, name: str) -> memoryview:
        """Return a section's bytes; they are fetched and checked once.

        Raises:
            UsageError: The file carries no such section.
            FormatError: The bytes differ from their digest.
            StoreError: The source failed.
        """
        entry = self.section_entry(name)
        if self._closed:
            raise Misuse.READER_CLOSED(f"{self.path} was closed")
        if name not in self._held:
            self._held[name] = self._fetch(entry)
        return memoryview(self._held[name])

    def read_part(self, name: str, role: str, offset_bytes: int, length_bytes: int) -> bytes:
        part = self.entry(name).part(role)
        return self._read(part.offset_bytes + offset_bytes, length_bytes)

    def verify(self) -> None:
        """Check every byte, as ``ZSEReader.verify`` does: all of the file is read.

        Raises:
            FormatError: Its ``rule`` says what is broken.
            StoreError: The source failed.
        """
        verify_contents(
            self.header, _SourceBytes(self.source), header_end_bytes=self._header_end_bytes
        )

    def close(self) -> None:
        """Close the source. Sections that were taken stay valid."""
        if not self._closed:
            self._closed = True
            self.source.close()

    def _fetch(self, section: Section) -> bytes:
        where = f"section {section.name} of {self.path}"
        distrust = getattr(self.source, "distrust", None)
        while True:
            data = self._read(section.offset_bytes, section.length_bytes)
            try:
                check_digest(where, memoryview(data), 0, len(data), section.sha256)
            except FormatError:
                if not (distrust and distrust(section.offset_bytes, section.length_bytes)):
                    raise
            else:
                return data

    def _read(self, offset_bytes: int, length_bytes: int) -> bytes:
        buffer = bytearray(length_bytes)
        self.source.read_into(offset_bytes, memoryview(buffer))
        return bytes(buffer)


class _SourceBytes:
    """A source that is sliced as bytes are; a slice is read when it is taken."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source

    def __len__(self) -> int:
        return self._source.size_bytes

    def __getitem__(self, part: slice) -> memoryview:
        start, stop, _ = part.indices(len(self))
        view = memoryview(bytearray(max(0, stop - start)))
        if view:
            self._source.read_into(start, view)
        return view
