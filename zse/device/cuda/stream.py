"""Streams, where work stands in line, and events, which mark a place in the line.

What work failed with is raised by whoever waits for it: see ``zse.device.gpu``.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Self

from zse.device.cuda.errors import NOT_READY
from zse.device.cuda.resource import Resource

if TYPE_CHECKING:
    from zse.device.cuda.resource import Owner
    from zse.device.gpu import Stream as AnyStream

_STREAM_NON_BLOCKING = 1
_EVENT_DISABLE_TIMING = 2


class Stream(Resource):
    """A line of work; it does not wait for the legacy default stream."""

    noun = "a stream"

    def __init__(self, owner: Owner) -> None:
        handle = ctypes.c_void_p()
        owner.driver.call("cuStreamCreate", ctypes.byref(handle), _STREAM_NON_BLOCKING)
        super().__init__(owner, handle.value or 0)

    def synchronize(self) -> None:
        self._driver.call("cuStreamSynchronize", self.handle)

    def wait(self, event: Event) -> None:
        """Let later work of this stream wait for an event, without waiting here."""
        self._driver.call("cuStreamWaitEvent", self.handle, event.handle, 0)

    def destroy(self) -> None:
        self.release()

    def _give_back(self, handle: int) -> None:
        self._driver.release("cuStreamDestroy_v2", handle)


class Event(Resource):
    """A mark in a stream; without timing it costs less."""

    noun = "an event"

    def __init__(self, owner: Owner, *, timing: bool = False) -> None:
        handle = ctypes.c_void_p()
        flags = 0 if timing else _EVENT_DISABLE_TIMING
        owner.driver.call("cuEventCreate", ctypes.byref(handle), flags)
        super().__init__(owner, handle.value or 0)
        self._query = owner.driver.raw("cuEventQuery")

    def record(self, stream: AnyStream) -> None:
        self._driver.call("cuEventRecord", self.handle, stream.handle)

    def synchronize(self) -> None:
        self._driver.call("cuEventSynchronize", self.handle)

    def is_done(self) -> bool:
        """Whether the mark is reached, or was never put anywhere."""
        code = self._query(self.handle)
        if code == NOT_READY:
            return False
        if code:
            self._driver.fail("cuEventQuery", code)
        return True

    def elapsed_ms(self, since: Self) -> float:
        milliseconds = ctypes.c_float()
        self._driver.call(
            "cuEventElapsedTime", ctypes.byref(milliseconds), since.handle, self.handle
        )
        return milliseconds.value

    def destroy(self) -> None:
        self.release()

    def _give_back(self, handle: int) -> None:
        self._driver.release("cuEventDestroy_v2", handle)
