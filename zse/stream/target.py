"""What the loader asks of a device. The CUDA device has this shape; so has the one in the tests."""

from __future__ import annotations

from typing import Any, Protocol


class HostBuffer(Protocol):
    """Pinned host memory."""

    @property
    def address(self) -> int:
        """Where it starts; a multiple of 4096."""

    @property
    def view(self) -> memoryview:
        """Its bytes, writable."""

    def free(self) -> None:
        """Give it back. No copy may be reading it."""


class CopyStream(Protocol):
    """Copies that run in order."""

    def synchronize(self) -> None:
        """Wait until every copy so far is done."""

    def destroy(self) -> None:
        """Give it back."""


class CopyDevice(Protocol):
    """A device with memory of its own. Every method may be called from several threads."""

    def make_current(self) -> None:
        """Make the device usable in the calling thread."""

    def allocate_host(self, length_bytes: int, /) -> HostBuffer:
        """Return pinned host memory."""

    def create_stream(self) -> CopyStream:
        """Return a stream of its own."""

    def copy_to_device(
        self, destination: int, source: int, length_bytes: int, stream: Any, /
    ) -> None:
        """Enqueue a copy from pinned host memory to device memory; return at once."""
