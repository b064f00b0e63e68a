"""A load out of the memory of a replica's GPU, on this host: group by group, device to device.

A group has arrived when its copy is over and the loan still stands; see ``lending``. Its digest is
the one that the file's header has, as the lender tells it: bytes in a GPU's memory are not hashed
again. What the replica has not got, or can no longer be believed to have, another load brings.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

from zse.errors import DeviceError, LoadCancelledError, StoreError
from zse.stream.options import LoadReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from zse.device.gpu import Event, Gpu, Stream
    from zse.stream.peers.borrowing import Loan
    from zse.stream.plan import GroupReads, ReadPlan

_LOG = logging.getLogger("zse.stream")
KIND = "peer memory"
_AHEAD = 4
"""Groups on their way at once. Kernels of a pass that begins already stand behind them, where the
driver has one queue to the device."""


class Load(Protocol):
    """A load that is running; see ``zse.stream.loader.RegionLoad``."""

    def num_bytes(self) -> tuple[int, int]: ...
    def cancel(self) -> None: ...
    def wait_for_group(self, group: int) -> None: ...
    def wait(self) -> LoadReport: ...


class CopiedLoad:
    """A load that is running; see ``zse.stream.loader.RegionLoad``, whose interface it has.

    Args:
        loan: Of whole groups, taken over.
        plan: Of whole groups, each one run of bytes.
        destination_address: The device's block; it must outlive the load.
        begin_rest: Begins a load of the groups with some names, in their order.
    """

    def __init__(
        self,
        gpu: Gpu,
        loan: Loan,
        plan: ReadPlan,
        destination_address: int,
        begin_rest: Callable[[Sequence[str]], Load],
    ) -> None:
        self._gpu = gpu
        self._loan = loan
        self._plan = plan
        self._destination = destination_address
        self._begin_rest = begin_rest
        self._changed = threading.Condition()
        self._landed = {index for index, group in enumerate(plan.groups) if not group.chunks}
        self._landed_bytes = 0
        self._left: list[int] | None = None
        """Groups that were not copied, once that is known."""
        self._rest: Load | None = None
        self._error: BaseException | None = None
        self._is_cancelled = False
        self._seconds = {"map": 0.0, "copy": 0.0}
        self._started = time.perf_counter()
        self._thread = threading.Thread(target=self._run, name="zse-load-copy", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            loan.close()
            raise StoreError(
                f"the thread that copies from a replica could not be started: {error}",
                hint="Allow this process more threads (ulimit -u, the container's pids limit).",
            ) from error

    def num_bytes(self) -> tuple[int, int]:
        """Return the bytes that are in device memory, and the bytes of the whole load."""
        rest = self._rest
        of_rest = 0 if rest is None else rest.num_bytes()[0]
        return self._landed_bytes + of_rest, self._plan.total_bytes

    def cancel(self) -> None:
        """Stop soon; ``wait`` then raises ``LoadCancelledError``."""
        with self._changed:
            self._is_cancelled = True
            rest = self._rest
        if rest is not None:
            rest.cancel()

    def wait_for_group(self, group: int) -> None:
        """Wait until a group, counted as in the plan, is in device memory; raises as ``wait``."""
        with self._changed:
            self._changed.wait_for(lambda: group in self._landed or self._left is not None)
            if group in self._landed:
                return
            if self._error is not None:
                raise self._error
        assert self._rest is not None
        assert self._left is not None
        self._rest.wait_for_group(self._left.index(group))

    def wait(self) -> LoadReport:
        """Wait until everything is in device memory.

        May be called again: it ends as it did.

        Raises:
            FormatError, SourceChangedError, StoreError: The rest's source changed or failed.
            DeviceError: The device failed.
            LoadCancelledError: ``cancel`` was called.
        """
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._left is not None)
            self._let_go()
            report = None if self._rest is None else self._rest.wait()
        except BaseException:
            self.cancel()
            self._thread.join()  # the caller frees the block that is copied to
            raise
        if self._error is not None:
            raise self._error
        return self._report(report)

    def _let_go(self) -> None:
        """Have the memory of the replica unmapped beside whatever follows, if the device waits."""
        functions = self._gpu.copy_functions()
        stays_for = None if functions is None else functions.stays_for
        if stays_for is None:
            self._thread.join()
        else:
            stays_for(self._thread)

    def _report(self, rest: LoadReport | None) -> LoadReport:
        seconds, phases = self._seconds["map"] + self._seconds["copy"], dict(self._seconds)
        source, threads = KIND, 1
        if rest is not None:
            seconds, threads = seconds + rest.seconds, rest.threads
            source = f"{KIND} and {rest.source}" if self._landed else rest.source
            phases = {**phases, **rest.phase_seconds}
        return LoadReport(
            num_bytes=self._plan.total_bytes,
            seconds=seconds,
            source=source,
            threads=threads,
            phase_seconds=phases,
        )

    # --- the thread that copies -------------------------------------------------------------------

    def _run(self) -> None:
        with contextlib.suppress(DeviceError), contextlib.ExitStack() as stack:
            stack.callback(self._loan.close)
            rest, error = None, None
            try:
                self._copy_what_is_lent(stack)
                rest = self._begin_what_is_left()
            except BaseException as failure:  # noqa: BLE001 - who waits raises it
                error = failure
            self._tell(rest, error)

    def _copy_what_is_lent(self, stack: contextlib.ExitStack) -> None:
        try:
            self._gpu.make_current()
            self._copy(stack)
        except (DeviceError, OSError) as error:
            _LOG.warning("weights in the memory of a replica could not be copied: %s", error)

    def _begin_what_is_left(self) -> Load | None:
        names = [self._plan.groups[index].name for index in self._not_landed()]
        return self._begin_rest(names) if names and not self._is_cancelled else None

    def _not_landed(self) -> list[int]:
        return [index for index in range(len(self._plan.groups)) if index not in self._landed]

    def _tell(self, rest: Load | None, error: BaseException | None) -> None:
        """Tell who waits what was not copied, and who brings it."""
        left = self._not_landed()
        with self._changed:
            if left and self._is_cancelled:
                error = LoadCancelledError("copying from a replica was stopped")
                if rest is not None:
                    rest.cancel()
            self._rest, self._error, self._left = rest, error, left
            self._changed.notify_all()

    def _copy(self, stack: contextlib.ExitStack) -> None:
        """Copy what the replica has; what is mapped for that is given back with a stack."""
        gpu, began = self._gpu, time.perf_counter()
        mapped = gpu.open_shared(self._loan.descriptor, self._loan.length_bytes)
        stack.callback(mapped.free)
        stream = gpu.create_stream()
        stack.callback(stream.destroy)
        self._seconds["map"] = time.perf_counter() - began
        with contextlib.ExitStack() as copies:
            copies.callback(stream.synchronize)  # whatever happens: the rest goes to these places
            self._copy_groups(mapped.address, stream, stack)
        self._seconds["copy"] = time.perf_counter() - began - self._seconds["map"]

    def _copy_groups(self, address: int, stream: Stream, stack: contextlib.ExitStack) -> None:
        """Copy groups from what begins at an address, until the loan is over."""
        gpu = self._gpu
        waiting: deque[tuple[int, Event]] = deque()
        for index, group, offset in self._lent():
            if len(waiting) == _AHEAD and not self._is_there(*waiting.popleft()):
                return
            first = self._destination + group.chunks[0].destination_offset_bytes
            gpu.copy_on_device(first, address + offset, _length_of(group), stream)
            event = gpu.create_event()
            stack.callback(event.destroy)
            event.record(stream)
            waiting.append((index, event))
        while waiting and self._is_there(*waiting.popleft()):
            pass

    def _is_there(self, index: int, event: Event) -> bool:
        """Wait for a group's copy; whether it counts, and others may follow."""
        event.synchronize()
        if self._is_cancelled or not self._loan.is_valid:
            return False
        self._land(index)
        return True

    def _lent(self) -> Iterator[tuple[int, GroupReads, int]]:
        """Yield the groups that the replica has, in the order of need, and where they lie there."""
        for index, group in enumerate(self._plan.groups):
            offset = self._loan.place_of(group.sha256, _length_of(group))
            if offset is not None:
                yield index, group, offset

    def _land(self, index: int) -> None:
        with self._changed:
            self._landed.add(index)
            self._landed_bytes += _length_of(self._plan.groups[index])
            self._changed.notify_all()


def _length_of(group: GroupReads) -> int:
    return sum(chunk.length_bytes for chunk in group.chunks)
