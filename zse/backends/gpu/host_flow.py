"""How the stream comes from the host to a stage on a GPU, and goes back: of a machine of several.

Same words as ``flow.StreamFlow``, so a backend knows no difference: the rows of one step wait in
pinned memory before it, and lie there when it is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.gpu.flow import PassedStep

if TYPE_CHECKING:
    from zse.device.gpu import Event, Gpu, HostBlock, Stream

_NUMBER_BYTES = 4


class HostFlow:
    """See above. Of one step at a time.

    Args:
        hidden: Columns of the stream.
        most_rows: Of a step.
    """

    num_stages = 1
    length_bytes = 0

    def __init__(self, gpu: Gpu, stream: Stream, *, hidden: int, most_rows: int) -> None:
        self._gpu, self._stream = gpu, stream
        self._row_bytes = hidden * _NUMBER_BYTES
        self._host: HostBlock = gpu.allocate_host(most_rows * self._row_bytes)
        self._event: Event = gpu.create_event()
        self._has_come = False

    def put(self, rows: memoryview[float]) -> None:
        """Have these be what the next step begins with, float32 [rows * hidden]."""
        data = rows.cast("B")
        self._host.view[: len(data)] = data
        self._has_come = True

    def taken(self, num_rows: int) -> memoryview[float]:
        """Return what the last step has left, when it has been waited for."""
        return memoryview(bytearray(self._host.view[: num_rows * self._row_bytes])).cast("f")

    def receive(self, residual: int, rows: int) -> None:
        if self._has_come:
            length = rows * self._row_bytes
            self._gpu.copy_to_device(residual, self._host.address, length, self._stream)
        self._has_come = False

    def send(self, residual: int, rows: int) -> None:
        length = rows * self._row_bytes
        self._gpu.copy_to_host(self._host.address, residual, length, self._stream)

    def passed(self, num_chunks: int) -> PassedStep:
        """Return the step whose last work was enqueued just now: tokens are chosen elsewhere."""
        self._event.record(self._stream)
        return PassedStep(self, self._event, num_chunks)

    def wait_for(self, event: Event) -> None:
        self._gpu.make_current()
        event.synchronize()

    def check(self) -> None:
        """Do nothing: rows come from nobody whose loss could be missed."""

    def close(self) -> None:
        self._event.destroy()
        self._host.free()
