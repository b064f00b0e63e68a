"""What every store can do: one location, read in order, put whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from zse.records import record
from zse.units import MIB

if TYPE_CHECKING:
    from pathlib import Path

    from zse.store.checksum import Checksum
    from zse.store.location import Location

Progress = Callable[[int, int], None]
"""Called as ``progress(done_bytes, total_bytes)`` from the calling thread."""

CHUNK_BYTES = 8 * MIB


@record
class Entry:
    """One object found by ``list``."""

    location: Location
    size_bytes: int


@record
class Transfer:
    """What a copy did."""

    size_bytes: int
    sha256: str
    verified: bool
    """Whether the bytes were checked against a digest that the store had."""
    resumed_bytes: int = 0
    """How much an earlier attempt had moved already."""


class Store(Protocol):
    """One location. Readers may be used from several threads at once.

    Every method raises ``NotFoundError`` when what it needs is absent and ``StoreError`` when the
    storage fails or answers something it should not.
    """

    @property
    def location(self) -> Location:
        """The place this store stands for."""

    def exists(self) -> bool:
        """Return whether the object is there."""

    def size(self) -> int:
        """Return the object's length in bytes."""

    def checksum(self) -> Checksum | None:
        """Return the best digest of the whole object that the store knows, if it knows one."""

    def version(self) -> str:
        """Return a word that is another one when the object was replaced, even by one as long."""

    def read_chunks(self, offset: int = 0) -> Iterator[bytes | bytearray | memoryview]:
        """Yield the rest of the object in order. A chunk is valid until the next is asked for."""

    def list(self) -> Iterator[Entry]:
        """Yield the objects at or below this location, sorted by name."""


class WritableStore(Store, Protocol):
    """A location that objects can be put to."""

    def put_file(
        self, local_path: Path, *, progress: Progress | None = None, resume: bool = False
    ) -> Transfer:
        """Copy a local file here, replacing what is there only when every byte has arrived.

        With ``resume`` it goes on with what an earlier attempt left, and leaves what is done if
        it fails.
        """
