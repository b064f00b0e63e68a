"""AsyncEngine: the core in one thread of its own, answers as asynchronous streams.

The event loop never waits for a step: commands go to the thread through a queue, and what a step
produced comes back as ``StreamsInFlight`` has it.

    generate() --command--> queue --> engine thread: step, deliver --> inbox, or past it
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from zse.engine.delivery import StreamsInFlight
from zse.engine.engine_thread import EngineThread
from zse.engine.grammars import Grammars
from zse.engine.inbox import UnreadBounds
from zse.errors import DeadlineError, ShuttingDownError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from pathlib import Path

    from zse.backends.gpu.retained import Retained
    from zse.engine.adapters import Adapters
    from zse.engine.delivery import Stream
    from zse.engine.encoder_core import AnyCore
    from zse.engine.inbox import Shortcut
    from zse.engine.output import Delta
    from zse.engine.reading import PromptQuery
    from zse.engine.request import Request, SamplingParams
    from zse.engine.stats import EngineStats
    from zse.errors import ZSEError
    from zse.options import LoRAOptions
    from zse.stream.peers.lending import Lendable, Lender
    from zse.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_DRAIN_POLL_SECONDS = 0.01
_TOO_LATE = "The answer was not complete in the time that the request was given."


def _nothing() -> None:
    """Stand in for a callback that nobody needs."""


class AsyncEngine:
    """Serves concurrent streams from one core.

    Args:
        core: The engine; from now on only this object's thread steps it.
        tokenizer: Turns token ids into text.
        unread: How much may be made of answers that their callers do not take.
    """

    def __init__(
        self, core: AnyCore, tokenizer: Tokenizer, *, unread: UnreadBounds | None = None
    ) -> None:
        self._core = core
        self.tokenizer = tokenizer
        self.max_running = core.options.max_sequences
        """Choices that run at once; the others wait."""
        self.grammars = Grammars(core, tokenizer)
        """Compiles the forms of answers."""
        self._streams = StreamsInFlight(
            tokenizer,
            unread or UnreadBounds(),
            abort=core.abort,
            cancel=self._cancel,
            on_read=self._note_read,
        )
        core.watch_readers(self._streams.are_unread)
        self._lock = threading.Lock()  # guards what decides whether a stream may be added
        self._adapters: Adapters | None = None
        self._is_draining = False
        self._is_closed = False
        self._thread = EngineThread(core, self._streams, self._lock)
        self._thread.start()

    @property
    def failure(self) -> BaseException | None:
        """What crashed the engine thread."""
        return self._thread.failure

    @property
    def is_healthy(self) -> bool:
        """Whether the engine thread runs; once it has crashed, it stays down."""
        return self.failure is None and not self._is_closed

    @property
    def num_active(self) -> int:
        return len(self._streams)

    @property
    def capacity_tokens(self) -> int:
        """Longest sequence in tokens that can finish."""
        return self._core.capacity_tokens

    def adapters(self, options: LoRAOptions) -> Adapters:
        """Return the adapters of the model; the first to ask says how many there may be."""
        from zse.engine.adapters import Adapters  # which most models do without

        with self._lock:
            if self._adapters is None:
                self._adapters = Adapters(self._core.runner, options)
            return self._adapters

    def stats(self) -> EngineStats:
        return self._core.stats()

    def memory_bytes(self) -> dict[str, int]:
        """Return what the model holds on its device, by purpose."""
        held = self._core.runner.memory_bytes()
        if self._adapters is None:
            return held
        return held | {"adapters": sum(one.size_bytes for one in self._adapters)}

    def limit_running(self, max_running: int) -> None:
        """Run at most so many choices at once, from the next step on.

        More than the engine was made for is as many as it was made for.
        """
        self.max_running = limit = min(max(1, max_running), self._core.options.max_sequences)
        self._thread.ask(lambda: self._core.limit_running(limit))

    def check(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        query: PromptQuery | None = None,
    ) -> None:
        """Refuse what ``generate`` would refuse, before a response has begun.

        Raises:
            ZSEError: As ``EngineCore.check``.
            EngineError: The engine thread has crashed.
            ShuttingDownError: The engine is draining.
        """
        self._refuse_when_down()
        self._core.check(prompt_token_ids, params, query)

    def generate(
        self,
        request: Request,
        *,
        deadline: float | None = None,
        on_choice_end: Callable[[], None] = _nothing,
        shortcut: Shortcut | None = None,
    ) -> AsyncGenerator[Delta, None]:
        """Stream the answer to a request, whose ``request_id`` another may share.

        The work begins with the first step of the generator; closing it cancels the request.

        Args:
            request: Its ``on_start`` is called by the engine's thread, its ``grammar`` comes of
                ``grammars.compile``.
            deadline: When it ends at the latest, on the loop's clock.
            on_choice_end: Called in the loop when the engine is done with a choice, read or not.
            shortcut: May take deltas while the generator waits for one, which then yields others.

        Yields:
            Deltas of all choices as they come; the last one of each carries its finish reason.

        Raises:
            DeadlineError: The deadline came first.
            UnreadOutputError: Too much of the answer lay here untaken.
            ZSEError: As ``check``, and EngineError when the engine crashes on the way.
        """
        self.check(request.prompt_token_ids, request.params, request.query)
        request = replace(request, request_id=f"{request.request_id}/{uuid.uuid4().hex}")
        return self._answer(request, deadline, on_choice_end, shortcut)

    async def _answer(
        self,
        request: Request,
        deadline: float | None,
        on_choice_end: Callable[[], None],
        shortcut: Shortcut | None,
    ) -> AsyncGenerator[Delta, None]:
        stream = self._streams.make(request, on_choice_end, shortcut)
        inbox, num_open = stream.inbox, request.params.n
        self._open(stream)
        alarm = None
        if deadline is not None:
            alarm = inbox.loop.call_at(deadline, self._end, stream, DeadlineError(_TOO_LATE))
        try:
            while num_open:
                delta = await inbox.get()
                num_open -= delta.finish_reason is not None
                yield delta
        finally:
            if alarm is not None:
                alarm.cancel()
            inbox.close()
            self._streams.remove(stream)

    async def drain(self, timeout_seconds: float) -> bool:
        """Take no new requests and wait for those in flight.

        Returns:
            True when all ended by themselves; False when the time ran out and the rest was failed
            with ShuttingDownError.
        """
        with self._lock:
            self._is_draining = True
        deadline = time.monotonic() + timeout_seconds
        while self._streams and time.monotonic() < deadline:
            await asyncio.sleep(_DRAIN_POLL_SECONDS)
        is_empty = not self._streams
        stopped = "the server stopped before the answer ended"
        self._streams.fail_all(lambda: ShuttingDownError(stopped))
        return is_empty

    def retain(self, file: Path) -> Retained | None:
        """Have ``close`` leave the device to the model of a file, where that has the same shape.

        Whoever gets something takes it or gives it up.
        """
        runner = self._core.runner
        retained = runner.retain()
        if retained is not None and not retained.takes(file):
            runner.release()
            return None
        return retained

    def lend(self, begin: Callable[[Lendable], Lender]) -> Lender | None:
        """Have the weights lent to other processes of the host, until the model leaves.

        Args:
            begin: Begins to lend them, once all of them are there.

        Returns:
            What ``begin`` has; None where they lie in memory that nobody else can map.
        """
        runner = self._core.runner
        lendable = runner.lendable() if hasattr(runner, "lendable") else None  # a mesh's is not
        if lendable is None:
            return None
        lender = begin(lendable)
        runner.owns(lender.close)
        return lender

    def expect_request(self, num_tokens: int = 0) -> None:
        """Note that a request is about to come: nothing is prepared that would be in its way.

        Args:
            num_tokens: About how many tokens its prompt has; 0 where nobody knows.
        """
        expect = getattr(self._core.runner, "expect_step", None)  # nor is anything by a mesh
        if expect is not None:
            expect(num_tokens)

    def settle(self) -> None:
        """Wait until all weights are there; raises what kept them from it."""
        settle = getattr(self._core.runner, "settle", None)  # a mesh's weights are elsewhere
        if settle is not None:
            settle()

    def close(self) -> None:
        """Fail what is in flight, stop the thread and close the core. May be called twice."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._thread.begin_stop()
        stop = getattr(self._core.runner, "stop_settling", None)
        if stop is not None:
            stop()  # a step may wait for weights
        has_ended = self._thread.join()
        self._streams.fail_all(lambda: ShuttingDownError("the engine was closed"))
        self._streams.close()
        if not has_ended:
            logger.error("a step does not end: its memory is left to the end of the process")
            return
        self._core.close()

    def fail(self, error: BaseException) -> None:
        """Crash for what happened beside the engine: what it computes on has failed.

        Any thread may call this.
        """

        def crash() -> None:
            raise error

        self._thread.ask(crash)

    # --- in any thread --------------------------------------------------------------------------

    def _note_read(self) -> None:
        self._thread.note_read()

    def _refuse_when_down(self) -> None:
        if self.failure is not None:
            raise self._thread.crash_error()
        if self._is_draining or self._is_closed:
            raise ShuttingDownError(
                "the model takes no new requests: it, or the server, is shutting down"
            )

    def _open(self, stream: Stream) -> None:
        request = stream.request
        with self._lock:
            self._refuse_when_down()
            self._streams.add(stream)
            self._thread.ask(lambda: self._core.add_request(request))

    def _cancel(self, request_id: str) -> None:
        self._thread.ask(lambda: self._core.abort(request_id))

    def _end(self, stream: Stream, error: ZSEError) -> None:
        """Fail what is left of a request; called in its loop."""
        stream.inbox.put(error)
        stream.inbox.wake()
        self._cancel(stream.request.request_id)
