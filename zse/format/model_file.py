"""What loading needs of an open .zse file, whether it lies on a disk or in object storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from zse.format.spec import TensorEntry, ZSEHeader


class ModelFile(Protocol):
    """An open file whose header was checked. Tensors are read by whoever needs them."""

    @property
    def path(self) -> Path | str:
        """The path, or the address."""

    @property
    def header(self) -> ZSEHeader:
        """Everything the file says about itself."""

    @property
    def size_bytes(self) -> int:
        """Length of the file."""

    def names(self) -> tuple[str, ...]:
        """Return the tensor names in file order."""

    def entry(self, name: str) -> TensorEntry:
        """Return a tensor's entry."""

    def has_section(self, name: str) -> bool:
        """Whether the file carries a section of this name."""

    def section(self, name: str) -> memoryview:
        """Return a section's bytes."""

    def close(self) -> None:
        """Stop reading."""
