"""Reading an object in ranges: parallel, ahead of the reader, taken up where a connection was cut.

What every remote store shares. A store says how one range is asked for; retries, buffers and
threads are here.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from zse.errors import StoreError
from zse.store.base import CHUNK_BYTES, MEBIBYTE
from zse.store.retry import ATTEMPTS, BusyServerError, pause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.store.location import Location

READERS = 8


class Body(Protocol):
    """The bytes of an answer."""

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill a part of ``buffer``; return how much, 0 at the end."""

    def close(self) -> None:
        """Give the connection back."""


class RangedReader(ABC):
    """The reading half of a remote store."""

    @property
    @abstractmethod
    def location(self) -> Location:
        """The place this store stands for."""

    @abstractmethod
    def size(self) -> int:
        """Return the object's length in bytes."""

    @abstractmethod
    def _open_range(self, first: int, last: int) -> Body:
        """Ask for bytes ``first`` to ``last``; return the body if it is exactly that."""

    @abstractmethod
    def _cut_errors(self) -> tuple[type[Exception], ...]:
        """Return the exceptions that mean: ask for the rest again."""

    def read_range(self, offset: int, length: int) -> bytes:
        """Return exactly ``length`` bytes from ``offset``."""
        buffer = bytearray(length)
        self.read_into(offset, buffer)
        return bytes(buffer)

    def read_into(self, offset: int, buffer: bytearray | memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``offset``; go on where a cut connection stopped."""
        self._read(offset, memoryview(buffer).cast("B"), threading.Event())

    def read_chunks(self, offset: int = 0) -> Iterator[memoryview]:
        """Yield the object from ``offset`` in order, read by several threads a few chunks ahead."""
        size_bytes = self.size()

        def fill(start: int, buffer: bytearray) -> tuple[memoryview, bytearray]:
            view = memoryview(buffer)[: min(CHUNK_BYTES, size_bytes - start)]
            self._read(start, view, stop)
            return view, buffer

        stop = threading.Event()
        idle: list[bytearray] = []
        ahead: deque[Future[tuple[memoryview, bytearray]]] = deque()
        with ThreadPoolExecutor(READERS, thread_name_prefix="zse-read") as pool:
            try:
                for start in range(offset, size_bytes, CHUNK_BYTES):
                    buffer = idle.pop() if idle else bytearray(min(CHUNK_BYTES, size_bytes))
                    ahead.append(pool.submit(fill, start, buffer))
                    if len(ahead) == 2 * READERS:
                        view, buffer = ahead.popleft().result()
                        yield view
                        idle.append(buffer)
                while ahead:
                    yield ahead.popleft().result()[0]
            finally:
                # Reads in flight end at their next mebibyte: a stopped copy ends at once.
                stop.set()
                pool.shutdown(wait=True, cancel_futures=True)

    def _read(self, offset: int, view: memoryview, stop: threading.Event) -> None:
        size_bytes = self.size()
        if offset < 0 or offset + len(view) > size_bytes:
            raise StoreError(
                f"{self.location} has {size_bytes} bytes; the range asked for ends at "
                f"{offset + len(view)}",
                hint="The object is shorter than expected: upload it again.",
            )
        filled = 0
        problem: Exception | None = None
        for attempt in range(ATTEMPTS):
            if attempt:
                pause(attempt, problem, stop)
            filled, problem = self._read_once(offset, view, filled, stop)
            if filled == len(view):
                return
            if stop.is_set():
                break
        raise StoreError(
            f"{self.location}: the connection was cut {ATTEMPTS} times, the last time "
            f"at byte {offset + filled}: {problem or 'the answer was too short'}",
            hint="Check the network and the server, then try again.",
        ) from problem

    def _read_once(
        self, offset: int, view: memoryview, filled: int, stop: threading.Event
    ) -> tuple[int, Exception | None]:
        """Ask once for what is missing; return how much is there now and what went wrong."""
        first, last = offset + filled, offset + len(view) - 1
        if first > last:
            return filled, None
        failures: tuple[type[Exception], ...] = (*self._cut_errors(), BusyServerError)
        try:
            with contextlib.closing(self._open_range(first, last)) as body:
                while filled < len(view) and not stop.is_set():
                    count = body.readinto(view[filled : filled + MEBIBYTE])
                    if not count:
                        break
                    filled += count
        except failures as error:
            return filled, error
        return filled, None
