"""How a load is done, and what it did."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.errors import UsageError
from zse.format.spec import PAGE
from zse.records import record
from zse.stream.plan import CHUNK_BYTES
from zse.units import align_up

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.stream.source import ByteSource

LEAST_CHUNK_BYTES = 2 << 20
_TURNS_OF_A_THREAD = 6


@record
class LoaderOptions:
    """How a load is done."""

    threads: int = 12
    chunk_bytes: int = CHUNK_BYTES
    """Bytes of one read and one copy, at most; a multiple of 4096."""
    buffers_per_thread: int = 1
    """More let a thread read beside its own copy; more threads with a buffer each do better. All
    buffers together are the pinned memory in use."""
    is_verified: bool = False
    """Whether each group's SHA-256 is checked on the bytes that are copied; a local file is
    trusted."""

    def __post_init__(self) -> None:
        if self.threads < 1 or self.buffers_per_thread < 1:
            raise UsageError(
                f"threads is {self.threads}, buffers_per_thread {self.buffers_per_thread}; "
                "both must be at least 1"
            )


def options_for(source: ByteSource) -> LoaderOptions:
    return _OF_KIND.get(source.kind, LOCAL_OPTIONS)


def spread(options: LoaderOptions, num_bytes: int) -> LoaderOptions:
    """Return options for a load of so many bytes in which every thread has several chunks.

    The threads of a small load end together then; the buffers of larger ones hold its chunks.
    """
    each = num_bytes // (options.threads * _TURNS_OF_A_THREAD)
    chunk_bytes = max(LEAST_CHUNK_BYTES, align_up(each, PAGE))
    return replace(options, chunk_bytes=min(options.chunk_bytes, chunk_bytes))


LOCAL_OPTIONS = LoaderOptions(chunk_bytes=4 << 20)
"""Buffers of this size are still in the processor's last cache when the device takes them."""
NETWORK_OPTIONS = LoaderOptions(threads=16)
"""One connection of an object store brings about 0.1 GB/s, so there are more of them."""

PEER_OPTIONS = LoaderOptions(threads=16, is_verified=True)
"""What replicas bring is held against the digests of the header, which came from the origin."""
_OF_KIND = {"http": NETWORK_OPTIONS, "peers": PEER_OPTIONS}


@record
class LoadReport:
    """What a load did."""

    num_bytes: int
    seconds: float
    """From the start until every byte was in device memory."""
    source: str
    """``page cache``, ``direct``, ``mixed``, ``http``, ``peers`` or ``peer memory``."""
    threads: int
    phase_seconds: Mapping[str, float]
    """Mean over the threads: pin, read, copy (waiting for copies), digest."""

    @property
    def gigabytes_per_second(self) -> float:
        return self.num_bytes / 1e9 / self.seconds if self.seconds else 0.0
