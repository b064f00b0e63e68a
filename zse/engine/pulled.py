"""Streams of an engine without a thread: who waits for a token computes a step for everybody.

Threads take turns step by step and share batches. What a step made for another's stream lies there
until it is asked for.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from typing import TYPE_CHECKING

from zse.engine.output import Delta, RequestText
from zse.engine.request import Request
from zse.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.engine.adapters import Adapter
    from zse.engine.loading import LoadedModel
    from zse.engine.request import SamplingParams
    from zse.text.grammar.state import Grammar
    from zse.text.tokenizer import Tokenizer


class PulledStream:
    """A request in flight and the deltas that its caller has not taken yet."""

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        self.request = request
        self.text = RequestText(tokenizer, request)
        self.deltas: deque[Delta] = deque()


class PulledStreams:
    """The streams of one model, whose engine is driven here and nowhere else.

    Args:
        model: Closed with this.
    """

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._streams: dict[str, PulledStream] = {}
        self._request_ids = itertools.count()
        self._lock = threading.RLock()
        self._is_closed = False

    def open(
        self,
        token_ids: list[int],
        params: SamplingParams,
        adapter: Adapter | None,
        grammar: Grammar | None,
    ) -> PulledStream:
        """Begin a request. Whoever does ``forget``s it.

        Raises:
            UsageError: The model is closed.
            ZSEError: The request is refused.
        """
        request = Request(
            request_id=str(next(self._request_ids)),
            prompt_token_ids=token_ids,
            params=params,
            adapter=adapter,
            grammar=grammar,
        )
        stream = PulledStream(request, self._model.tokenizer)
        with self.held():
            self._model.core.add_request(request)
            self._streams[request.request_id] = stream
        return stream

    def step(self, wanted: PulledStream) -> None:
        """Compute one step for everybody, unless another thread has just finished ``wanted``."""
        with self._lock:
            if wanted.text.is_finished:
                return
            self._refuse_when_closed()
            self._advance()

    def forget(self, stream: PulledStream) -> None:
        """End a request, if it has not ended."""
        with self._lock:
            self._streams.pop(stream.request.request_id, None)
            self._model.core.abort(stream.request.request_id)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other threads from the engine.

        Raises:
            UsageError: The model is closed.
        """
        with self._lock:
            self._refuse_when_closed()
            yield

    @contextlib.contextmanager
    def ended(self) -> Iterator[None]:
        """Compute all that runs first, for what drives the engine by itself; else as ``held``."""
        with self.held():
            while self._streams and self._model.core.has_work:
                self._advance()
            yield

    def close(self) -> None:
        """Close the model. May be called twice."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._model.close()

    def _advance(self) -> None:
        for event in self._model.core.step():
            stream = self._streams.get(event.request_id)
            delta = stream.text.push(event) if stream is not None else None
            if stream is None or delta is None:
                continue
            stream.deltas.append(delta)
            if delta.finish_reason and not event.finish_reason:
                self._model.core.abort(event.request_id, event.index)  # a stop string

    def _refuse_when_closed(self) -> None:
        if self._is_closed:
            raise UsageError("the model is closed", hint="Make a new LLM.")
