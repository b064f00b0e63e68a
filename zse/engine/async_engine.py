"""AsyncEngine: the core in one thread of its own, answers as asynchronous streams.

The event loop never waits for a step: commands go to the thread through a queue, and what a step
produced comes back in one call into each loop. Text is made in the thread, so that a stop string
ends its choice before the next step spends anything on it.

    generate() --command--> queue --> engine thread: step, detokenize --> call_soon_threadsafe
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
import uuid
from collections import defaultdict, deque
from typing import TYPE_CHECKING, TypeAlias

from zse.engine.output import Delta, RequestText
from zse.engine.request import Request, SamplingParams
from zse.errors import EngineError, ShuttingDownError, ZSEError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from zse.engine.core import EngineCore, EngineStats
    from zse.engine.reading import PromptQuery
    from zse.engine.request import TokenEvent
    from zse.text.tokenizer import Tokenizer

    _Item: TypeAlias = Delta | ZSEError
    _Batches: TypeAlias = dict[asyncio.AbstractEventLoop, list[tuple["_Stream", _Item]]]

logger = logging.getLogger(__name__)

_DRAIN_POLL_SECONDS = 0.01
_JOIN_SECONDS = 10.0
"""How long ``close`` waits for a step; one that takes longer is left behind with the process."""


class _Stream:
    """One caller's view of a request. Its inbox belongs to the loop, the text to the thread."""

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        self.request = request
        self.text = RequestText(tokenizer, request)
        self.loop = asyncio.get_running_loop()
        # One reader within one loop: half the cost of ``asyncio.Queue``.
        self._items: deque[_Item] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: _Item) -> None:
        self._items.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> _Item:
        while not self._items:
            self._waiter = self.loop.create_future()
            await self._waiter
        return self._items.popleft()


class AsyncEngine:
    """Serves concurrent streams from one core.

    Args:
        core: The engine; from now on only this object's thread steps it.
        tokenizer: Turns token ids into text.
    """

    def __init__(self, core: EngineCore, tokenizer: Tokenizer) -> None:
        self._core = core
        self.tokenizer = tokenizer
        self.max_running = core.options.max_sequences
        """Choices that run at once; the others wait."""
        self.failure: BaseException | None = None
        """What crashed the engine thread."""
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._streams: dict[str, _Stream] = {}
        self._lock = threading.Lock()  # guards what decides whether a stream may be added
        self._is_draining = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="zse-engine", daemon=True)
        self._thread.start()

    @property
    def is_healthy(self) -> bool:
        """Whether the engine thread runs; once it has crashed, it stays down."""
        return self.failure is None and not self._is_closed

    @property
    def num_active(self) -> int:
        return len(self._streams)

    def stats(self) -> EngineStats:
        return self._core.stats()

    def memory_bytes(self) -> dict[str, int]:
        """Return what the model holds on its device, by purpose."""
        return self._core.runner.memory_bytes()

    def limit_running(self, max_running: int) -> None:
        """Run at most so many choices at once, from the next step on.

        More than the engine was made for is as many as it was made for.
        """
        self.max_running = limit = min(max(1, max_running), self._core.options.max_sequences)
        self._commands.put(lambda: self._core.limit_running(limit))

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

    async def generate(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams | None = None,
        request_id: str = "",
        priority: int = 0,
        cache_salt: str = "",
        query: PromptQuery | None = None,
    ) -> AsyncGenerator[Delta, None]:
        """Stream the answer to a request, whose ``request_id`` another may share.

        Closing the generator cancels it.

        Yields:
            Deltas of all choices as they come; the last one of each carries its finish reason.

        Raises:
            ZSEError: As ``check``, and EngineError when the engine crashes on the way.
        """
        params = params or SamplingParams()
        self.check(prompt_token_ids, params, query)
        request = Request(
            request_id=f"{request_id}/{uuid.uuid4().hex}",
            prompt_token_ids=prompt_token_ids,
            params=params,
            priority=priority,
            cache_salt=cache_salt,
            query=query,
        )
        stream = _Stream(request, self.tokenizer)
        self._open(stream)
        num_open = params.n
        try:
            while num_open:
                item = await stream.get()
                if isinstance(item, ZSEError):
                    raise item
                num_open -= item.finish_reason is not None
                yield item
        finally:
            self._forget(stream)

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
        self._fail_all(lambda: ShuttingDownError("the server stopped before the answer ended"))
        return is_empty

    def close(self) -> None:
        """Fail what is in flight, stop the thread and close the core. May be called twice."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._commands.put(lambda: None)  # wakes the thread
        self._thread.join(_JOIN_SECONDS)
        self._fail_all(lambda: ShuttingDownError("the engine was closed"))
        if self._thread.is_alive():
            logger.error("a step does not end: its memory is left to the end of the process")
            return
        self._core.close()

    # --- in any thread --------------------------------------------------------------------------

    def _refuse_when_down(self) -> None:
        if self.failure is not None:
            raise _crash_error(self.failure)
        if self._is_draining or self._is_closed:
            raise ShuttingDownError("the server is shutting down")

    def _open(self, stream: _Stream) -> None:
        request = stream.request
        with self._lock:
            self._refuse_when_down()
            self._streams[request.request_id] = stream
            self._commands.put(lambda: self._core.add_request(request))

    def _forget(self, stream: _Stream) -> None:
        request_id = stream.request.request_id
        if self._streams.pop(request_id, None) is not None:
            self._commands.put(lambda: self._core.abort(request_id))

    def _fail_all(self, make_error: Callable[[], ZSEError]) -> None:
        for stream in list(self._streams.values()):
            self._hand_over({stream.loop: [(stream, make_error())]})
            self._forget(stream)

    # --- in the engine thread -------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_closed:
                self._run_commands()
                self._deliver(self._core.step())
        except BaseException as error:
            logger.exception("the engine thread crashed")
            with self._lock:
                self.failure = failure = error
            self._fail_all(lambda: _crash_error(failure))

    def _run_commands(self) -> None:
        """Do what is asked; sleep until something is when the core has no work."""
        if not self._core.has_work:
            self._commands.get()()
        while not self._commands.empty():
            self._commands.get()()

    def _deliver(self, events: list[TokenEvent]) -> None:
        batches: _Batches = defaultdict(list)
        for event in events:
            stream = self._streams.get(event.request_id)
            if stream is None:
                continue  # cancelled while the step ran
            item = self._item_of(stream, event)
            if item is not None:
                batches[stream.loop].append((stream, item))
        self._hand_over(batches)

    def _item_of(self, stream: _Stream, event: TokenEvent) -> _Item | None:
        try:
            delta = stream.text.push(event)
        except Exception as error:  # one request's text must not take the others down
            logger.exception("request %s: its text could not be made", event.request_id)
            self._core.abort(event.request_id)
            return EngineError(f"the answer has no text: {type(error).__name__}: {error}")
        if delta is not None and delta.finish_reason and not event.finish_reason:
            self._core.abort(event.request_id, event.index)  # a stop string
        return delta

    def _hand_over(self, batches: _Batches) -> None:
        for loop, items in batches.items():
            try:
                loop.call_soon_threadsafe(_put_all, items)
            except RuntimeError:  # the loop is closed: nobody is left to read
                for stream, _ in items:
                    self._forget(stream)


def _put_all(items: list[tuple[_Stream, _Item]]) -> None:
    for stream, item in items:
        stream.put(item)


def _crash_error(failure: BaseException) -> EngineError:
    hint = "Restart the server; its log holds the traceback."
    return EngineError(f"the engine crashed: {type(failure).__name__}: {failure}", hint=hint)
