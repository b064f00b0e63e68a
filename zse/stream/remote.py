"""A .zse file in object storage, opened without a disk: the header and sections by small reads.

It answers what ``ZSEReader`` answers about a file, except for tensors: those go to a device with
``load_region``.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Self

from zse.format.errors import ChecksumMismatch, ReaderClosedError, UnknownNameError
from zse.format.reader import parse_header, parse_prefix
from zse.format.spec import PREFIX_BYTES
from zse.format.validate import validate

if TYPE_CHECKING:
    from types import TracebackType

    from zse.format.spec import Group, TensorEntry
    from zse.stream.source import ByteSource


class RemoteReader:
    """One file behind a source, which it closes in the end. Use it as a context manager.

    Args:
        source: Where the bytes are; the header is read from it at once.

    Raises:
        FormatError: A subclass that names the broken rule.
        StoreError: The source failed.
    """

    def __init__(self, source: ByteSource) -> None:
        self.source = source
        """For ``load_region``."""
        self.path = source.name
        self.size_bytes = source.size_bytes
        try:
            prefix = self._read(0, min(PREFIX_BYTES, self.size_bytes))
            length, digest = parse_prefix(prefix, self.size_bytes)
            self.header = parse_header(self._read(PREFIX_BYTES, length), digest)
            self._members = validate(
                self.header,
                header_end_bytes=PREFIX_BYTES + length,
                file_size_bytes=self.size_bytes,
            )
        except BaseException:
            source.close()
            raise
        self._entries = {tensor.name: tensor for tensor in self.header.tensors}
        self._groups = {group.name: group for group in self.header.groups}
        self._sections = {section.name: section for section in self.header.sections}
        self._held: dict[str, bytes] = {}
        self._closed = False

    def names(self) -> tuple[str, ...]:
        """Return the tensor names in file order."""
        return tuple(self._entries)

    def entry(self, name: str) -> TensorEntry:
        """Return a tensor's entry.

        Raises:
            UnknownNameError: The file holds no such tensor.
        """
        try:
            return self._entries[name]
        except KeyError:
            raise UnknownNameError(f"{self.path} holds no tensor {name!r}") from None

    def group(self, name: str) -> Group:
        """Return a group.

        Raises:
            UnknownNameError: The file holds no such group.
        """
        try:
            return self._groups[name]
        except KeyError:
            raise UnknownNameError(f"{self.path} holds no group {name!r}") from None

    def tensors_of(self, group_name: str) -> tuple[TensorEntry, ...]:
        """Return the entries of the tensors in a group, in file order."""
        return self._members[self.group(group_name).name]

    def has_section(self, name: str) -> bool:
        """Whether the file carries a section of this name."""
        return name in self._sections

    def section(self, name: str) -> memoryview:
        """Return a section's bytes; they are fetched and checked once.

        Raises:
            UnknownNameError: The file carries no such section.
            ChecksumMismatch: The bytes differ from their digest.
            StoreError: The source failed.
        """
        if name not in self._sections:
            raise UnknownNameError(
                f"{self.path} carries no section {name!r}; it has {sorted(self._sections)}"
            )
        if self._closed:
            raise ReaderClosedError(f"{self.path} was closed")
        if name not in self._held:
            self._held[name] = self._fetch(name)
        return memoryview(self._held[name])

    def close(self) -> None:
        """Close the source. Sections that were taken stay valid."""
        if not self._closed:
            self._closed = True
            self.source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _fetch(self, name: str) -> bytes:
        section = self._sections[name]
        data = self._read(section.offset_bytes, section.length_bytes)
        found = hashlib.sha256(data).hexdigest()
        if found != section.sha256:
            raise ChecksumMismatch(
                f"section {name} of {self.path} has SHA-256 {found}, expected {section.sha256}"
            )
        return data

    def _read(self, offset_bytes: int, length_bytes: int) -> bytes:
        buffer = bytearray(length_bytes)
        self.source.read_into(offset_bytes, memoryview(buffer))
        return bytes(buffer)
