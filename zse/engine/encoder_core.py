"""The engine of an encoder: whole texts in, a vector or scores of each out, many texts a step.

It is driven as ``EngineCore`` is, so that queues, deadlines, cancelling, accounts and metrics are
those of every request. Nothing is kept of a text, so there is no pool, no preemption and nothing to
look ahead to. Texts wait in the same line: classes of priority, fair shares between tenants.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, TypeAlias

from zse.engine.admission import check_request, resolve_max_tokens
from zse.engine.intake import rank_of
from zse.engine.reading import PromptReport
from zse.engine.request import Request, TokenEvent
from zse.engine.sequence import Sequence
from zse.engine.stats import EngineStats
from zse.engine.step_clock import TimedStep
from zse.engine.waiting_line import WaitingLine
from zse.errors import InvalidParameterError, UnsupportedModelError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as TokenIds

    from zse.backends.types import LogitRows
    from zse.engine.adapters import Adapter
    from zse.engine.core import EngineCore
    from zse.engine.reading import PromptQuery
    from zse.engine.request import SamplingParams
    from zse.models.runner import ModelRunner
    from zse.models.spec import Pooling
    from zse.options import LoadOptions


AnyCore: TypeAlias = "EngineCore | EncoderCore"
"""What callers drive."""


class EncoderCore:
    """Texts over one runner, as many in a step as its budget of tokens allows; at least one.

    Args:
        runner: The model; closed with the core.
        options: How much is computed together.
        aging_steps: Steps of waiting that weigh as much as one unit of priority.
    """

    least_jump = 0
    end_token_ids: tuple[int, ...] = ()
    parting: Callable[[], None] | None = None
    """Nothing: texts that are read whole leave nothing behind."""

    def __init__(self, runner: ModelRunner, options: LoadOptions, *, aging_steps: int = 64) -> None:
        self.runner = runner
        self.options = options.batch
        self._line = WaitingLine()
        self._waiting: dict[str, Sequence] = {}
        self._max_texts = self.options.max_sequences
        self._pending: list[TokenEvent] = []
        self._arrivals = itertools.count()
        self._aging_steps = aging_steps
        self._num_steps = 0
        self._num_prompt_tokens = 0
        self._num_computed_tokens = 0

    @property
    def max_context(self) -> int:
        """Longest text in tokens."""
        allowed = self.options.max_context
        return min(allowed, self.runner.max_position) if allowed else self.runner.max_position

    @property
    def capacity_tokens(self) -> int:
        """The same: nothing limits it besides."""
        return self.max_context

    def limit_running(self, max_sequences: int) -> None:
        """Compute so many texts in a step from now on."""
        self._max_texts = max_sequences

    @property
    def has_work(self) -> bool:
        """Whether a step has anything to do or to report."""
        return bool(self._pending or self._waiting)

    @property
    def patience_seconds(self) -> float:
        """No time at all: a step is computed when it is asked for."""
        return 0.0

    def watch_readers(self, _are_busy: Callable[[], bool]) -> None:
        """Put nothing off."""

    def check(
        self,
        prompt_token_ids: TokenIds[int],
        params: SamplingParams,
        query: PromptQuery | None = None,
    ) -> int:
        """Refuse what cannot be computed; return 0, the tokens that follow a text.

        Touches no state: any thread may call it.

        Raises:
            InvalidParameterError: Text is asked for, or a pooling that its classifier does not
                have; the text is empty, or a token id is out of range.
            ContextLengthError: The text is longer than the context.
        """
        if query is None or query.generates or query.pooling is None:
            raise InvalidParameterError(
                "this model is an encoder, which writes no text; zse.LLM.embed, or "
                "POST /v1/embeddings, makes its vectors",
                param="model",
            )
        head = self.runner.spec.head
        if head.classifier is not None and query.pooling != head.pooling:
            raise InvalidParameterError(
                f"this model scores states pooled by {head.pooling!r}, not {query.pooling!r}",
                param="pooling",
            )
        check_request(prompt_token_ids, params, vocab_size=self.runner.vocab_size)
        limit = self.max_context
        return resolve_max_tokens(
            len(prompt_token_ids), 0, max_context=limit, capacity_tokens=limit
        )

    def add_request(self, request: Request) -> None:
        """Let a text wait for its turn.

        Raises:
            UsageError: The id is in use.
            ZSEError: As ``check``.
        """
        if request.request_id in self._waiting:
            raise UsageError(f"request {request.request_id!r} is running already")
        self.check(request.prompt_token_ids, request.params, request.query)
        rank = rank_of(
            priority=request.priority,
            arrival=next(self._arrivals),
            step=self._num_steps,
            aging_steps=self._aging_steps,
        )
        text = Sequence(
            request=request,
            index=0,
            seed=0,
            max_tokens=1,
            end_token_ids=frozenset(),
            rank=rank,
            prompt_token_ids=list(request.prompt_token_ids),
        )
        self._waiting[request.request_id] = text
        self._line.add(text)
        self._num_prompt_tokens += len(text.prompt_token_ids)

    def abort(self, request_id: str, index: int | None = None) -> None:
        """End a request now, if it still waits; the next step reports it as ``abort``."""
        text = self._waiting.get(request_id) if index in (None, 0) else None
        if text is not None:
            self._line.remove(text)
            del self._waiting[request_id]
            self._pending.append(TokenEvent(request_id, 0, None, finish_reason="abort"))

    def step(self) -> list[TokenEvent]:
        """Compute the texts whose turn it is and return what became of them, in their order."""
        events, self._pending = self._pending, []
        texts = self._take()
        if not texts:
            return events
        began = time.perf_counter()
        vectors = self.runner.vectors(
            [text.prompt_token_ids for text in texts],
            _pooling_of(texts[0]),
            [text.request.second_from for text in texts],
        )
        self._note(texts, began)
        for text, vector in zip(texts, vectors, strict=True):
            report = PromptReport(vector=vector)
            name = text.request.request_id
            events.append(TokenEvent(name, 0, None, finish_reason="length", report=report))
        return events

    def _take(self) -> list[Sequence]:
        """Take the texts of the next step, which all pool alike, out of the line."""
        taken: list[Sequence] = []
        num_left = self.options.max_batch_tokens
        while len(taken) < self._max_texts and (text := self._line.first()) is not None:
            count = len(text.prompt_token_ids)
            if taken and (count > num_left or _pooling_of(text) != _pooling_of(taken[0])):
                break
            num_left -= count
            self._line.charge(text, count)
            self._line.take(text)
            del self._waiting[text.request.request_id]
            if text.request.on_start is not None:
                text.request.on_start()
            taken.append(text)
        return taken

    def _note(self, texts: list[Sequence], began: float) -> None:
        self._num_steps += 1
        ended = time.perf_counter()
        for text in texts:
            count = len(text.prompt_token_ids)
            self._num_computed_tokens += count
            if (log := text.request.steps) is not None:
                log.add(TimedStep(began, ended, reads_prompt=True, num_tokens=count))

    def stats(self) -> EngineStats:
        return EngineStats(
            num_waiting=len(self._waiting),
            prompt_tokens=self._num_prompt_tokens,
            computed_tokens=self._num_computed_tokens,
            steps=self._num_steps,
        )

    def logits(self, _token_ids: TokenIds[int], _adapter: Adapter | None = None) -> LogitRows:
        """Refuse: there are none.

        Raises:
            UnsupportedModelError: Always.
        """
        raise UnsupportedModelError("this model is an encoder, which has no logits")

    def prepare_idle(self) -> bool:
        """Prepare nothing: texts are of all lengths."""
        return False

    def rest(self) -> None:
        """Give back memory that no step needs; texts leave no blocks behind."""
        self.runner.rest(())

    def close(self) -> None:
        for request_id in list(self._waiting):
            self.abort(request_id)
        self._pending.clear()
        self.runner.close()


def _pooling_of(text: Sequence) -> Pooling:
    query = text.request.query
    assert query is not None
    assert query.pooling is not None
    return query.pooling
