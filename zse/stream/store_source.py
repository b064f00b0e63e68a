"""Any object of a store as a source: for looking into a .zse file without fetching it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zse.store.base import Store


class StoreSource:
    """An object behind s3://, hf:// or https://; see ``ByteSource``.

    Args:
        store: Where it is. It holds itself to the version that it found first.
    """

    kind = "http"

    def __init__(self, store: Store) -> None:
        self._store = store
        self.name = str(store.location)
        self.size_bytes = store.size()

    def read_into(self, offset_bytes: int, view: memoryview) -> None:
        """Fill ``view`` with the bytes from ``offset_bytes``."""
        self._store.read_into(offset_bytes, view)

    def is_slow(self, offset_bytes: int, length_bytes: int) -> bool:  # noqa: ARG002
        """Return True: a network is."""
        return True

    def check_unchanged(self) -> None:
        """Do nothing: a read of a replaced object fails."""

    def interrupt(self) -> None:
        """Do nothing: reads of a store end by themselves."""

    def close(self) -> None:
        """Do nothing: connections are closed with the store."""
