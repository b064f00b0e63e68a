"""An open .zse file: what it holds by name, whether it lies on a disk or in object storage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import TYPE_CHECKING, Self, TypeVar

from zse.format.errors import Misuse
from zse.format.validate import validate

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from zse.format.spec import Group, Section, TensorEntry, ZSEHeader

_Listed = TypeVar("_Listed")
_KEPT_HEADERS = 16
"""A swap opens a file three times; to check it takes longer than all else of that."""


class ModelFile(ABC):
    """An open file whose header was checked. Its readers add how bytes are read, and an end.

    Args:
        header: Parsed, not yet validated.
    """

    def __init__(
        self, path: Path | str, header: ZSEHeader, *, header_end_bytes: int, size_bytes: int
    ) -> None:
        self.path = path
        """The path, or the address."""
        self.header = header
        self.size_bytes = size_bytes
        self._members = _members_of(_Same(header), header_end_bytes, size_bytes)
        self._entries = {tensor.name: tensor for tensor in header.tensors}
        self._groups = {group.name: group for group in header.groups}
        self._sections = {section.name: section for section in header.sections}

    def names(self) -> tuple[str, ...]:
        """Return the tensor names in file order."""
        return tuple(self._entries)

    def entry(self, name: str) -> TensorEntry:
        """Return a tensor's entry; a UsageError says that there is none."""
        return self._find("tensor", self._entries, name)

    def group(self, name: str) -> Group:
        """Return a group; a UsageError says that there is none."""
        return self._find("group", self._groups, name)

    def tensors_of(self, group_name: str) -> tuple[TensorEntry, ...]:
        """Return the entries of the tensors in a group, in file order."""
        return self._members[self.group(group_name).name]

    def has_section(self, name: str) -> bool:
        """Whether the file carries a section of this name."""
        return name in self._sections

    def section_entry(self, name: str) -> Section:
        """Return where a section lies; a UsageError says which there are."""
        return self._find("section", self._sections, name, f"; it has {sorted(self._sections)}")

    @abstractmethod
    def section(self, name: str) -> memoryview:
        """Return a section's bytes; a UsageError says which there are."""

    @abstractmethod
    def read_part(self, name: str, role: str, offset_bytes: int, length_bytes: int) -> bytes:
        """Return some bytes of one part of a tensor; they lie within it."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _find(
        self, kind: str, known: Mapping[str, _Listed], name: str, others: str = ""
    ) -> _Listed:
        try:
            return known[name]
        except KeyError:
            raise Misuse.UNKNOWN_NAME(f"{self.path} holds no {kind} {name!r}{others}") from None


class _Same:
    """A header that is equal to itself alone: to compare all of two takes as long as a check."""

    def __init__(self, header: ZSEHeader) -> None:
        self.header = header

    def __hash__(self) -> int:
        return id(self.header)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.header is other.header


@lru_cache(_KEPT_HEADERS)
def _members_of(
    same: _Same, header_end_bytes: int, size_bytes: int
) -> Mapping[str, tuple[TensorEntry, ...]]:
    """Check a header, which is the same object for the same bytes, once; see ``validate``."""
    return validate(same.header, header_end_bytes=header_end_bytes, file_size_bytes=size_bytes)
