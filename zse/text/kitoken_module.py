"""Importing kitoken so that threads may come and go.

kitoken's native module carries an allocator (mimalloc) that is tied to the thread that imports the
module and is taken down when the process exits. Two crashes follow, both seen with 0.11.1: when the
importing thread has ended, the next call from any thread is a segmentation fault; and so is a call
that a daemon thread is in while the process exits. Hence the two measures here.
"""

from __future__ import annotations

import atexit
import importlib
import threading
from concurrent.futures import Future
from typing import Any

from zse.settings import prepare_for_kitoken

_DRAIN_SECONDS = 10.0


class CallGate:
    """Lets calls through side by side until it is shut; then late callers wait for good."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._running = 0
        self._is_shut = False

    def __enter__(self) -> None:
        with self._condition:
            if not self._is_shut:
                self._running += 1
                return
        threading.Event().wait()  # the process is ending; a daemon thread has nothing to do

    def __exit__(self, *_: object) -> None:
        with self._condition:
            self._running -= 1
            self._condition.notify_all()

    def shut(self) -> None:
        """Let no more calls in, and wait for the running ones."""
        with self._condition:
            self._is_shut = True
            self._condition.wait_for(lambda: self._running == 0, _DRAIN_SECONDS)


CALL_GATE = CallGate()
"""Held around every call into kitoken; shut when the process exits."""

_import_lock = threading.Lock()
_imported: list[Any] = []


def import_kitoken() -> Any:
    """Import kitoken in a thread that never ends, and return the module.

    Raises:
        ImportError: kitoken is not installed.
    """
    with _import_lock:
        if not _imported:
            _imported.append(_import_in_keeper())
            atexit.register(CALL_GATE.shut)
        return _imported[0]


def _import_in_keeper() -> Any:
    imported: Future[Any] = Future()

    def keep() -> None:
        prepare_for_kitoken()
        try:
            imported.set_result(importlib.import_module("kitoken"))
        except BaseException as error:  # noqa: BLE001 - raised to who waits
            imported.set_exception(error)
            return
        threading.Event().wait()

    threading.Thread(target=keep, name="kitoken-keeper", daemon=True).start()
    return imported.result()
