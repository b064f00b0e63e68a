"""Turns SIGTERM and SIGHUP into exceptions, so that a command that is stopped cleans up."""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def clean_stop() -> Iterator[None]:
    """Let the block clean up when the process is told to end, then exit with 128 + the signal.

    A second signal changes nothing: the clean-up is what it would interrupt.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say what a signal does
        return

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        sys.exit(128 + number)

    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
