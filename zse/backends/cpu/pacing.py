"""Weights of a model that is larger than the memory it may have: pages come ahead and go behind.

Layers that stay are mapped like those of any model. Those that stream are read by a thread ahead
of the step, so that kernels meet no page that is missing, and are let go when they are computed:
the kernel then takes them first when it needs memory, and not what is needed every time.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import threading
import time
from typing import TYPE_CHECKING

from zse.backends.cpu.memory import address_of
from zse.backends.resident import mixtures_of
from zse.errors import StoreError
from zse.stream.fit import plan_streaming, plan_window
from zse.units import GIB, MIB, memory_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.device.probe import DeviceInfo
    from zse.format.reader import ZSEReader
    from zse.models.spec import ModelSpec
    from zse.options import StreamOptions
    from zse.stream.fit import WindowPlan
    from zse.stream.source import ByteSource

_LOG = logging.getLogger("zse.backends.cpu")
_POPULATE_READ = 22
"""``MADV_POPULATE_READ``, since Linux 5.14: it fails where a fault would end the process."""
_BYTES_AT_ONCE = 8 * MIB
_EINVAL = 22
STALL_SECONDS = 60.0
_SHARE = 0.7
"""Of what is available goes to weights where they are larger; a KV cache has a quarter."""


def window_of(
    reader: ZSEReader, spec: ModelSpec, options: StreamOptions, machine: DeviceInfo
) -> WindowPlan | None:
    """Return what stays and what streams; None where all of a model may stay.

    Nobody's layers stream unasked where they have experts, of which a step reads a few: the kernel
    keeps those that come often.

    Raises:
        DeviceError: The memory that was allowed does not hold two layers.
    """
    if options.stream == "off":
        return None
    header = reader.header.loaded()
    weight_bytes = sum(group.length_bytes for group in header.groups)
    limit = options.ram_bytes
    is_larger = weight_bytes > machine.available_memory_bytes and not mixtures_of(spec)
    if not limit and (options.stream == "on" or is_larger):
        limit = int(machine.available_memory_bytes * _SHARE)
    if not limit or (limit >= weight_bytes and options.stream != "on"):
        return None
    choose = plan_streaming if options.stream == "on" else plan_window
    plan = choose(header, limit, slots=options.slots, most_resident=options.resident_layers)
    return plan if plan.streamed else None


class PacedWeights:
    """The pages of a mapped file under a plan.

    Args:
        reader: The file; it stays open until ``close``.
        source: The same file, to see whether it changed; it is closed with this.
        plan: What stays and what streams.
        drops_cache: Whether pages that were let go leave the machine's cache as well: it could not
            hold them until they are needed again, and would give up others for them.
        stall_seconds: After which a layer that has not come will not.
    """

    def __init__(
        self,
        reader: ZSEReader,
        source: ByteSource,
        plan: WindowPlan,
        *,
        drops_cache: bool = False,
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        header = reader.header.loaded()
        self._reader = reader
        self._source = source
        self.plan = plan
        self._stall_seconds = stall_seconds
        self._file = reader.share_file() if drops_cache else None
        base = address_of(reader.weights()) - header.groups[0].offset_bytes
        found = {group.name: (group.offset_bytes, group.length_bytes) for group in header.groups}
        self._ranges = [found[name] for name in plan.streamed]
        self._base = base
        self._advise: Callable[[int, int, int], int] = ctypes.CDLL(None, use_errno=True).madvise
        self._advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self._changed = threading.Condition()
        self._next = self._done = self._cursor = 0
        self._error: BaseException | None = None
        self._is_closed = False
        self.waited_seconds = 0.0
        for name in plan.resident:
            offset, length = found[name]
            self._advise(base + offset, length, mmap.MADV_WILLNEED)
        self._thread = threading.Thread(target=self._run, name="zse-pages-ahead", daemon=True)
        self._thread.start()

    def number_of(self, name: str) -> int | None:
        """Return which of the layers that stream a group is; None for one that stays."""
        return self.plan.streamed.index(name) if name in self.plan.streamed else None

    def enter(self, number: int) -> None:
        """Wait until a layer's pages are there. Layers of a pass that broke off are passed over.

        Raises:
            SourceChangedError, StoreError: The file changed, failed or stalled.
        """
        while self._cursor % len(self._ranges) != number:
            self.leave(self._cursor % len(self._ranges))
        started = time.monotonic()
        with self._changed:
            self._wait_until_there(number)
        self.waited_seconds += time.monotonic() - started

    def leave(self, number: int) -> None:
        """Let a layer's pages go, and the next ones come; fails as ``enter``."""
        with self._changed:
            self._wait_until_there(number)  # or the thread would map them again
            self._let_go(number)
            self._cursor += 1
            self._changed.notify_all()

    def _wait_until_there(self, number: int) -> None:
        started = time.monotonic()
        while self._done <= self._cursor and self._error is None:
            left = self._stall_seconds - (time.monotonic() - started)
            if left <= 0:
                raise StoreError(
                    f"{self.plan.streamed[number]} of {self._source.name} has not come for "
                    f"{self._stall_seconds:.0f} seconds",
                    hint="Check the disk or the network file system, then start again.",
                )
            self._changed.wait(left)
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Stop; return when no page is asked for any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()
        if self._file is not None:
            self._file.close()
        self._source.close()

    def _let_go(self, number: int) -> None:
        offset, length = self._ranges[number]
        self._advise(self._base + offset, length, mmap.MADV_DONTNEED)
        if self._file is not None:
            os.posix_fadvise(self._file.fd, offset, length, os.POSIX_FADV_DONTNEED)

    def _run(self) -> None:
        try:
            while self._wait_for_room():
                number = self._next % len(self._ranges)
                if number == 0:
                    self._source.check_unchanged()
                self._bring(*self._ranges[number])
                with self._changed:
                    self._next += 1
                    self._done = self._next
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - who computes raises it
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _wait_for_room(self) -> bool:
        """Wait until one more layer may be there; return whether to go on."""
        with self._changed:
            while not self._is_closed and self._next >= self._cursor + self.plan.slots:
                self._changed.wait()
            return not self._is_closed

    def _bring(self, offset: int, length: int) -> None:
        self._advise(self._base + offset, length, mmap.MADV_WILLNEED)  # the disk's whole queue
        for start in range(offset, offset + length, _BYTES_AT_ONCE):
            size = min(_BYTES_AT_ONCE, offset + length - start)
            if self._is_closed:
                return
            if self._advise(self._base + start, size, _POPULATE_READ):
                number = ctypes.get_errno()
                if number == _EINVAL:  # an older kernel: pages come with their use
                    return
                raise StoreError(
                    f"cannot read {self._source.name} at byte {start}: {os.strerror(number)}",
                    hint="Check the disk or the network file system.",
                )


def say(plan: WindowPlan) -> None:
    """Tell what stays and what streams."""
    _LOG.info(
        "%d of %d layers stay in memory (%s with all that is no layer), %d stream: %.2f GB are "
        "mapped for each step, and read for it where the machine's cache does not hold them",
        len(plan.resident),
        plan.num_layers,
        memory_text(plan.resident_bytes + plan.ends_bytes),
        len(plan.streamed),
        plan.streamed_bytes / 1e9,
        extra={
            "resident_layers": len(plan.resident),
            "streamed_layers": len(plan.streamed),
            "streamed_gigabytes": round(plan.streamed_bytes / 1e9, 3),
            "memory_gib": round(plan.total_bytes / GIB, 3),
        },
    )
