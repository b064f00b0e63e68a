"""Streams, where work stands in line, and events, which mark a place in the line.

What work failed with is raised by whoever waits for it: see ``zse.device.gpu``.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Self

from zse.device.cuda.resource import Resource

if TYPE_CHECKING:
    from zse.device.cuda.resource import Owner
    from zse.device.gpu import Stream as AnyStream

_STREAM_NON_BLOCKING = 1
_EVENT_DISABLE_TIMING = 2


class Stream(Resource):
    """A line of work; it does not wait for the legacy default stream."""

    noun = "a stream"
    taken_back_by = "cuStreamDestroy_v2"

    def __init__(self, owner: Owner) -> None:
        handle = owner.driver.read(ctypes.c_void_p, "cuStreamCreate", _STREAM_NON_BLOCKING)
        super().__init__(owner, handle)

    def synchronize(self) -> None:
        self._driver.call("cuStreamSynchronize", self.handle)


class Event(Resource):
    """A mark in a stream; without timing it costs less."""

    noun = "an event"
    taken_back_by = "cuEventDestroy_v2"

    def __init__(self, owner: Owner, *, timing: bool = False) -> None:
        flags = 0 if timing else _EVENT_DISABLE_TIMING
        super().__init__(owner, owner.driver.read(ctypes.c_void_p, "cuEventCreate", flags))

    def record(self, stream: AnyStream) -> None:
        self._driver.call("cuEventRecord", self.handle, stream.handle)

    def synchronize(self) -> None:
        self._driver.call("cuEventSynchronize", self.handle)

    def elapsed_ms(self, since: Self) -> float:
        milliseconds = ctypes.c_float()
        self._driver.call(
            "cuEventElapsedTime", ctypes.byref(milliseconds), since.handle, self.handle
        )
        return milliseconds.value
