"""The thread that steps a core: it does what is asked, and hands on what each step has made.

While there is work it steps without a pause. Without work it first prepares steps that may come,
then gives memory back, and then sleeps until somebody asks.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from typing import TYPE_CHECKING

from zse.errors import EngineError, LoadCancelledError, ShuttingDownError

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.engine.delivery import StreamsInFlight
    from zse.engine.encoder_core import AnyCore

logger = logging.getLogger(__name__)

_JOIN_SECONDS = 10.0
"""How long ``stop`` waits for a step; one that takes longer is left behind with the process."""
_PAUSE_SECONDS = 0.1
"""How long nobody asks anything before steps are made ready that may come."""
_BUSY_SECONDS = 1.0
"""How long an engine without work keeps the memory of its last steps for the next ones."""


class EngineThread:
    """Steps one core. Every method may be called by any thread.

    Args:
        core: The engine; nobody else steps it.
        streams: Where the events of a step are delivered.
        lock: Held while a failure is noted: whoever adds a stream under it, and sees none, has its
            stream failed by this thread.
    """

    def __init__(self, core: AnyCore, streams: StreamsInFlight, lock: threading.Lock) -> None:
        self.failure: BaseException | None = None
        """What crashed the thread."""
        self.commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._core = core
        self._streams = streams
        self._lock = lock
        self._is_stopped = False
        self._is_patient = False
        """Whether a step is put off until readers are done with the last one."""
        self._thread = threading.Thread(target=self._run, name="zse-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask(self, command: Callable[[], None]) -> None:
        """Have something done between two steps."""
        self.commands.put(command)

    def note_read(self) -> None:
        """Note that a reader has taken what it was given: a step may wait for that."""
        if self._is_patient:
            self.commands.put(_wake)

    def begin_stop(self) -> None:
        """Have the thread end after the step that it is in."""
        self._is_stopped = True
        self.commands.put(_wake)

    def join(self) -> bool:
        """Wait for the end of the thread; whether it came in time."""
        self._thread.join(_JOIN_SECONDS)
        return not self._thread.is_alive()

    def crash_error(self) -> EngineError:
        """Return what those are told whose answers a crash has ended."""
        failure = self.failure
        hint = "Restart the server; its log holds the traceback."
        return EngineError(f"the engine crashed: {type(failure).__name__}: {failure}", hint=hint)

    def _run(self) -> None:
        core, commands, deliver = self._core, self.commands, self._streams.deliver
        try:
            while not self._is_stopped:
                if not (core.has_work and commands.empty()):
                    self._run_commands()
                if core.patience_seconds > 0:
                    self._await_more()
                deliver(core.step())
        except LoadCancelledError as error:  # a step waits for weights no longer
            cause = error.__cause__
            why = "" if cause is None else f": {cause}"
            self._streams.fail_all(lambda: ShuttingDownError(f"the model was closed{why}"))
        except BaseException as error:
            logger.exception("the engine thread crashed")
            core.parting = None  # nobody knows what its blocks hold
            with self._lock:
                self.failure = error
            self._streams.fail_all(self.crash_error)

    def _run_commands(self) -> None:
        """Do what is asked; sleep until something is when the core has no work."""
        if not self._core.has_work:
            self._next_command()()
        while not self.commands.empty():
            self.commands.get()()

    def _await_more(self) -> None:
        """Do what is asked until the next step must be planned, or there is enough for it."""
        self._is_patient = True
        while (seconds := self._core.patience_seconds) > 0:
            with contextlib.suppress(queue.Empty):
                self.commands.get(timeout=seconds)()
        self._is_patient = False

    def _next_command(self) -> Callable[[], None]:
        """Wait for what is asked next; a core that nobody asks anything for a while rests."""
        for seconds, use in ((_PAUSE_SECONDS, self._prepare), (_BUSY_SECONDS, self._core.rest)):
            with contextlib.suppress(queue.Empty):
                return self.commands.get(timeout=seconds)
            use()
        return self.commands.get()

    def _prepare(self) -> None:
        """Make steps ready that may come, one by one until something is asked."""
        while self.commands.empty() and self._core.prepare_idle():
            pass


def _wake() -> None:
    """Do nothing, as a command: the thread looks about."""
