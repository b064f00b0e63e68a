"""One API request's work: its prompts through the engine, admitted, counted and cleaned up.

However a request ends (answered, refused, cut by the client or by shutdown), its room is given
back, its engine work is cancelled, and exactly one log line says what it used.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from zse.engine.request import Request
from zse.errors import EngineError
from zse.records import record
from zse.serve.access.account import Account
from zse.serve.history import RequestFact
from zse.serve.http.shortcut import Shortcut
from zse.serve.telemetry.watch import RequestWatch, Subject, Used

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

    from zse.engine.output import Delta, TokenLogprob
    from zse.engine.reading import PromptQuery, PromptReport
    from zse.engine.request import CheckedDrafts, SamplingParams
    from zse.errors import ZSEError
    from zse.serve.access.caller import Caller
    from zse.serve.access.windows import Charge
    from zse.serve.admission import Room
    from zse.serve.history import Outcome
    from zse.serve.http.streaming import FrameSink
    from zse.serve.state import AppState, LoadedModel
    from zse.serve.telemetry.trace import Place
    from zse.text.grammar.state import Grammar


@record
class WorkOrder:
    """What to generate."""

    request_id: str
    arrival: float
    """When the request came, on ``time.perf_counter``."""
    prompts: tuple[Sequence[int], ...]
    """Token ids of each prompt; choices are numbered prompt by prompt."""
    params: SamplingParams
    grammar: Grammar | None = None
    """The form that the answers are held to."""
    query: PromptQuery | None = None
    """What is to be told of each prompt."""
    second_from: tuple[int | None, ...] = ()
    """Where the second text of each prompt begins; empty where none is a pair."""
    account: Account = field(default_factory=Account)
    """Whose it is, and what is told of it at the end."""
    asked_priority: int | None = None
    """As the body has it; the caller decides what becomes of it, and of the salt."""
    asked_salt: str | None = None
    deadline: float | None = None
    """When it must be complete, on the loop's clock."""
    place: Place | None = None
    """In a trace; None where it is not traced."""
    room: Room | None = None
    """Taken before the prompts were read; None where it is taken when the work begins."""

    @property
    def caller(self) -> Caller:
        return self.account.caller


@dataclass
class WholeChoice:
    """One choice, put together from its deltas."""

    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str = "length"

    @property
    def text(self) -> str:
        return "".join(self.texts)


class Generation:
    """Runs a work order once, admitted by the state and counted there."""

    def __init__(self, state: AppState, model: LoadedModel, order: WorkOrder) -> None:
        self._state = state
        self._model = model
        self._order = order
        self._num_choices = len(order.prompts) * order.params.n
        self._num_admitted = self._num_choices
        if order.query is not None and not order.query.generates:
            # What is only read is done soon: more of it than runs at once takes no more room.
            self._num_admitted = min(self._num_choices, state.max_running)
        self.prompt_tokens = sum(len(prompt) for prompt in order.prompts)
        self._completion_tokens = 0
        self.reasoning_tokens = 0
        """Of these, what was thought; counted by whoever reads the text."""
        self._cached_by_prompt: dict[int, int] = {}
        self._drafts: dict[tuple[int, int], CheckedDrafts] = {}
        """Of each choice of each prompt, the guessed tokens that were checked."""
        self.reports: dict[int, PromptReport] = {}
        """What was asked of the prompts that have been read so far."""
        self._outcome: Outcome = "aborted"
        self._watch = RequestWatch(
            state,
            Subject(
                request_id=order.request_id,
                model=model.name,
                key_name=order.caller.name,
                arrival=order.arrival,
                place=order.place,
            ),
        )
        self._charge: Charge | None = None
        self._shortcut: Shortcut | None = None

    @property
    def completion_tokens(self) -> int:
        """Tokens that were made so far; asked in the loop."""
        self._count_passed()
        return self._completion_tokens

    @property
    def cached_tokens(self) -> int:
        return sum(self._cached_by_prompt.values())

    def usage(self) -> dict[str, Any]:
        """Return OpenAI's usage object for what has been done so far."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {
                "reasoning_tokens": self.reasoning_tokens,
                "accepted_prediction_tokens": sum(one.accepted for one in self._drafts.values()),
                "rejected_prediction_tokens": sum(one.rejected for one in self._drafts.values()),
            },
        }

    async def whole(self) -> list[WholeChoice]:
        """Return every choice when all have ended.

        Raises:
            ZSEError: As ``deltas``.
        """
        choices = [WholeChoice() for _ in range(self._num_choices)]
        async with aclosing(self.deltas()) as deltas:
            async for index, delta in deltas:
                choice = choices[index]
                choice.texts.append(delta.text)
                choice.logprobs.extend(delta.logprobs or ())
                choice.finish_reason = delta.finish_reason or choice.finish_reason
        return choices

    def shorten(
        self,
        sink: FrameSink | None,
        frames_of: Callable[[int, Delta], Iterable[bytes]],
        around: Callable[[int], tuple[bytes, bytes] | None] | None = None,
    ) -> None:
        """Let the engine's thread write frames straight to a sink, past ``deltas``.

        Only of a single prompt: the frames of several are merged by ``deltas``.

        Args:
            sink: Where frames are written; None: ``deltas`` yields everything.
            frames_of: Makes the frames of a choice's delta, in the engine's thread or the loop.
            around: Returns the bytes before and behind a choice's text in a frame, as ``Shortcut``
                has it; None where a frame is more than the text of its token.
        """
        if sink is None or len(self._order.prompts) > 1:
            return

        def frames_past(deltas: Sequence[Delta]) -> bytes:
            frames: list[bytes] = []
            for delta in deltas:
                self._count(0, delta)
                frames += frames_of(delta.index, delta)
            return b"".join(frames)

        self._shortcut = Shortcut(sink, frames_past, around=around, count=self._count_texts)

    async def deltas(self) -> AsyncGenerator[tuple[int, Delta], None]:
        """Yield ``(choice index, delta)`` until every choice has ended.

        Raises:
            RateLimitError: The caller has no tokens left; nothing was started.
            OverloadedError: The queue is full; likewise.
            DeadlineError: The order's deadline came first.
            EngineError: The engine gave up on a choice.
        """
        room = await self._begin()
        self._state.num_answering += 1
        self._model.uses.begin()
        try:
            # A single prompt needs no merging, which would cost each token one generator more.
            if len(self._order.prompts) == 1:
                async with aclosing(self._one(0, room)) as source:
                    async for delta in source:
                        self._count_passed()
                        self._count(0, delta)
                        yield delta.index, delta
            else:
                async with aclosing(self._merged(room)) as merged:
                    async for prompt_index, delta in merged:
                        self._count(prompt_index, delta)
                        yield prompt_index * self._order.params.n + delta.index, delta
            self._outcome = "completed"
        finally:
            room.close()
            self._state.num_answering -= 1
            self._model.uses.end()
            self._end_account()
            self._report()

    async def _begin(self) -> Room:
        """Charge the caller for the tokens that it may use, and take room in the queue."""
        order = self._order
        each = order.params.max_tokens or self._model.max_context
        self._charge = await order.account.begin(
            self._model.name,
            prompt_tokens=self.prompt_tokens,
            most_tokens=self.prompt_tokens + self._num_choices * each,
        )
        try:
            return self._room()
        except BaseException:
            order.account.end(self._charge, prompt_tokens=0, completion_tokens=0)
            raise

    def _room(self) -> Room:
        """Take over the room that was admitted for this work before, or admit it now."""
        room = self._order.room
        if room is None or not room.is_open:
            room = self._state.admit(self._num_admitted, tenant=self._order.caller.tenant)
        room.use(self.prompt_tokens)
        return room

    def _end_account(self) -> None:
        self._order.account.end(
            self._charge,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
        )

    def _count(self, prompt_index: int, delta: Delta) -> None:
        self._watch.piece()
        self._completion_tokens += len(delta.token_ids)
        # The first choice fills the cache for the others; only its reuse was there before.
        if delta.index == 0 and prompt_index not in self._cached_by_prompt:
            self._cached_by_prompt[prompt_index] = delta.cached_tokens
            if delta.report is not None:
                self.reports[prompt_index] = delta.report
        reason = delta.finish_reason
        if reason is not None:
            self._drafts[prompt_index, delta.index] = delta.drafts
            if reason == "abort":
                raise self._abort_error()
            self._watch.choice_ended(reason)

    def _count_passed(self) -> None:
        """Count the tokens that were written past ``deltas`` so far."""
        if self._shortcut is not None:
            self._shortcut.count()

    def _count_texts(self, moments: Sequence[float]) -> None:
        """Count tokens that were written as text, without a delta, by when each of them came."""
        self._completion_tokens += len(moments)
        self._watch.pieces(moments)

    def _abort_error(self) -> ZSEError:
        if self._order.grammar is None:
            return EngineError("the engine aborted a choice")
        from zse.text.grammar.spec import GrammarError

        return GrammarError(
            "The answer could not be held to its form: a token of it takes more work than is "
            "allowed. Ask for a simpler form."
        )

    def _report(self) -> None:
        used = Used(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cached_tokens=self.cached_tokens,
        )
        seconds = self._watch.end(used, self._outcome)
        self._state.history.add(self._fact(seconds))

    def _fact(self, seconds: float) -> RequestFact:
        return RequestFact(
            request_id=self._order.request_id,
            model=self._model.name,
            caller=self._order.caller.name,
            ended_at=self._state.history.now(),
            duration_ms=seconds * 1000,
            first_token_ms=self._watch.first_token_ms,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cached_tokens=self.cached_tokens,
            outcome=self._outcome,
        )

    def _one(self, prompt_index: int, room: Room) -> AsyncGenerator[Delta, None]:
        """Return the answers to one of the prompts."""
        order = self._order
        suffix = f"-{prompt_index}" if len(order.prompts) > 1 else ""
        params = order.params
        if params.seed is not None and prompt_index:
            # Equal prompts in one request would otherwise give equal answers.
            params = replace(params, seed=params.seed + prompt_index)
        request = Request(
            request_id=order.request_id + suffix,
            prompt_token_ids=order.prompts[prompt_index],
            params=params,
            priority=order.caller.priority_of(order.asked_priority),
            cache_salt=order.caller.salt_of(order.asked_salt),
            adapter=self._model.adapter,
            query=order.query,
            second_from=order.second_from[prompt_index] if order.second_from else None,
            tenant=order.caller.tenant,
            weight=order.caller.weight,
            grammar=order.grammar,
            on_start=self._watch.started,
            steps=self._watch.steps,
        )
        return self._model.engine.generate(
            request,
            deadline=order.deadline,
            on_choice_end=room.end_choice,
            shortcut=self._shortcut,
        )

    async def _merged(self, room: Room) -> AsyncGenerator[tuple[int, Delta], None]:
        """Interleave the prompts' deltas as they come."""
        queue: asyncio.Queue[tuple[int, Delta] | BaseException | None] = asyncio.Queue(64)

        async def pump(prompt_index: int) -> None:
            try:
                async with aclosing(self._one(prompt_index, room)) as source:
                    async for delta in source:
                        await queue.put((prompt_index, delta))
            except Exception as error:  # noqa: BLE001 - carried to the consumer, which raises it
                await queue.put(error)
            else:
                await queue.put(None)

        tasks = [asyncio.create_task(pump(i)) for i in range(len(self._order.prompts))]
        try:
            remaining = len(tasks)
            while remaining:
                entry = await queue.get()
                if entry is None:
                    remaining -= 1
                elif isinstance(entry, BaseException):
                    raise entry
                else:
                    yield entry
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
