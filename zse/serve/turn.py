"""A turn: the answers to a conversation, as events that every protocol writes in its own words.

An answer in one piece is put together from the same events as a stream, so that both say the same.

    plan = plan_turn(conversation, model)
    turn = Turn(state, model, order_for(plan.prompt), plan)
    async for event in turn.events(): ...      # or: answers = await turn.answers()
    turn.usage()
"""

from __future__ import annotations

import uuid
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec import Struct

from zse.serve.generation import Generation
from zse.text.pieces import CallOpening, Said, Thought

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence

    from zse.engine.output import Delta, TokenLogprob
    from zse.engine.reading import PromptReport
    from zse.serve.conversation import TurnPlan
    from zse.serve.generation import WorkOrder
    from zse.serve.http.streaming import FrameSink
    from zse.serve.state import AppState, LoadedModel
    from zse.text.dialect import AnswerReading
    from zse.text.pieces import Piece

EndReason = Literal["stop", "length", "tool_calls"]
"""Why an answer ended: by itself, at a limit of tokens, or because it calls tools."""


class TextPart(Struct, frozen=True, gc=False):
    """More text of a choice."""

    index: int
    text: str
    """Empty only where log-probabilities are left over at the end."""
    logprobs: Sequence[TokenLogprob] = ()
    """Of all tokens since the last part, those of calls and reasoning between them included."""


class ReasoningPart(Struct, frozen=True, gc=False):
    """More of what a choice's model thinks before it answers."""

    index: int
    text: str


class CallOpened(Struct, frozen=True, gc=False):
    """A choice begins to call a tool that was offered."""

    index: int
    call: int
    """Which of the choice's calls, from 0."""
    id: str
    name: str


class CallArguments(Struct, frozen=True, gc=False):
    """More of the JSON text of a call's arguments. Calls do not overlap."""

    index: int
    call: int
    text: str


class ChoiceEnded(Struct, frozen=True, gc=False):
    """The last event of a choice."""

    index: int
    reason: EndReason
    stop: str | None = None
    """The stop string that ended it, where one did."""


class ToolRan(Struct, frozen=True, gc=False):
    """The server has run a tool that a choice called; the choice goes on."""

    index: int
    id: str
    name: str
    arguments: str
    """JSON text, as the model wrote it."""
    output: str
    """JSON, or the message of an error."""
    is_error: bool
    seconds: float


Event: TypeAlias = TextPart | ReasoningPart | CallOpened | CallArguments | ToolRan | ChoiceEnded


@dataclass
class Call:
    """One call of a whole answer."""

    id: str
    name: str
    arguments: str = ""
    """JSON text; cut where the answer was."""


@dataclass
class Answer:
    """One choice, put together from its events."""

    text: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    ran: list[ToolRan] = field(default_factory=list)
    """Tools that the server ran on the way."""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    reason: EndReason = "length"
    stop: str | None = None
    """The stop string that ended it, where one did."""


class Turn:
    """Answers a conversation once.

    Args:
        order: To answer the plan's prompt.
        plan: How its answers are read.
    """

    def __init__(
        self, state: AppState, model: LoadedModel, order: WorkOrder, plan: TurnPlan
    ) -> None:
        if plan.reading is not None and plan.reading.shown_ids:
            params = replace(order.params, shown_special_ids=plan.reading.shown_ids)
            order = replace(order, params=params)
        self._generation = Generation(state, model, order)
        self._plan = plan
        self._choices: dict[int, _ReadChoice] = {}

    def usage(self) -> dict[str, Any]:
        """Return OpenAI's usage object for what has been done so far."""
        return self._generation.usage()

    @property
    def report(self) -> PromptReport | None:
        """What was asked of the prompt, once it has been read."""
        return self._generation.reports.get(0)

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield the events of all choices as they come.

        Raises:
            ZSEError: As ``Generation.deltas``.
        """
        async with aclosing(self._generation.deltas()) as deltas:
            async for index, delta in deltas:
                for event in self._events_of(index, delta):
                    yield event

    def shorten(
        self,
        sink: FrameSink | None,
        frames_of: Callable[[Event], Iterable[bytes]],
        around: Callable[[int], tuple[bytes, bytes] | None] | None = None,
    ) -> None:
        """Let frames go to a sink without ``events``; as ``Generation.shorten``.

        Text that must be taken apart is none that stands alone.
        """

        def frames_of_delta(index: int, delta: Delta) -> list[bytes]:
            frames: list[bytes] = []
            for event in self._events_of(index, delta):
                frames += frames_of(event)
            return frames

        is_plain = self._plan.reading is None
        self._generation.shorten(sink, frames_of_delta, around if is_plain else None)

    def _events_of(self, index: int, delta: Delta) -> list[Event]:
        reading = self._plan.reading
        if reading is not None:
            if (choice := self._choices.get(index)) is None:
                choice = self._choices[index] = _ReadChoice(index, self._plan, reading)
            events = choice.events(delta)
            self._generation.reasoning_tokens += choice.take_reasoning_tokens()
            return events
        events = []
        if delta.text or delta.logprobs:
            events.append(TextPart(index, delta.text, delta.logprobs))
        if delta.finish_reason is not None:
            events.append(ChoiceEnded(index, _end_reason(delta), delta.stop))
        return events

    async def answers(self) -> list[Answer]:
        """Return every choice when all have ended.

        Raises:
            ZSEError: As ``events``.
        """
        return await whole_answers(self.events())


async def whole_answers(events: AsyncGenerator[Event, None]) -> list[Answer]:
    """Return the choices that events tell of, when these have ended."""
    growing: dict[int, GrowingAnswer] = {}
    async with aclosing(events):
        async for event in events:
            growing.setdefault(event.index, GrowingAnswer()).add(event)
    return [growing[index].answer() for index in sorted(growing)]


class _ReadChoice:
    """A choice whose text is taken apart."""

    def __init__(self, index: int, plan: TurnPlan, reading: AnswerReading) -> None:
        self._index = index
        self._parallel_calls = plan.parallel_calls
        self._call_id_characters = reading.call_id_characters
        self._reader = reading.make_reader()
        self._logprobs: list[TokenLogprob] = []
        self._reasoning_tokens = 0
        self._num_calls = 0
        self._is_dropped = False
        """The call that is being read is one more than the request allows."""

    def take_reasoning_tokens(self) -> int:
        """Return how many tokens were thought since the last time."""
        count, self._reasoning_tokens = self._reasoning_tokens, 0
        return count

    def events(self, delta: Delta) -> list[Event]:
        self._logprobs.extend(delta.logprobs)
        was_thinking = self._reader.is_thinking
        events = list(self._events_of(self._reader.push(delta.text)))
        if was_thinking or self._reader.is_thinking:
            self._reasoning_tokens += len(delta.token_ids)
        if delta.finish_reason is not None:
            events += self._events_of(self._reader.finish())
            events += [self._text("")] if self._logprobs else ()
            events.append(ChoiceEnded(self._index, self._end_reason(delta), delta.stop))
        return events

    def _end_reason(self, delta: Delta) -> EndReason:
        reason = _end_reason(delta)
        # An answer that was cut says so, whatever it had begun.
        return "tool_calls" if self._num_calls and reason == "stop" else reason

    def _events_of(self, pieces: list[Piece]) -> Iterator[Event]:
        for piece in pieces:
            if isinstance(piece, Said):
                yield self._text(piece.text)
            elif isinstance(piece, Thought):
                yield ReasoningPart(self._index, piece.text)
            elif isinstance(piece, CallOpening):
                self._is_dropped = self._num_calls > 0 and not self._parallel_calls
                if not self._is_dropped:
                    self._num_calls += 1
                    call_id = _new_call_id(self._call_id_characters)
                    yield CallOpened(self._index, self._num_calls - 1, call_id, piece.name)
            elif not self._is_dropped:
                yield CallArguments(self._index, self._num_calls - 1, piece.text)

    def _text(self, text: str) -> TextPart:
        logprobs, self._logprobs = self._logprobs, []
        return TextPart(self._index, text, logprobs)


class GrowingAnswer:
    """An answer while its events come. Texts are joined once: long ones take linear time."""

    def __init__(self) -> None:
        self._said: list[str] = []
        self._thought: list[str] = []
        self._arguments: list[list[str]] = []
        self._answer = Answer()

    def add(self, event: Event) -> None:
        if isinstance(event, TextPart):
            self._said.append(event.text)
            self._answer.logprobs.extend(event.logprobs)
        elif isinstance(event, ReasoningPart):
            self._thought.append(event.text)
        elif isinstance(event, CallOpened):
            self._answer.calls.append(Call(event.id, event.name))
            self._arguments.append([])
        elif isinstance(event, CallArguments):
            self._arguments[event.call].append(event.text)
        elif isinstance(event, ToolRan):
            self._answer.ran.append(event)
        else:
            self._answer.reason, self._answer.stop = event.reason, event.stop

    def answer(self) -> Answer:
        """Return what the events came to."""
        answer = self._answer
        answer.text, answer.reasoning = "".join(self._said), "".join(self._thought)
        for call, texts in zip(answer.calls, self._arguments, strict=True):
            call.arguments = "".join(texts)
        return answer


def _end_reason(delta: Delta) -> EndReason:
    return "length" if delta.finish_reason == "length" else "stop"


def _new_call_id(num_characters: int) -> str:
    digits = uuid.uuid4().hex
    return digits[:num_characters] if num_characters else f"call_{digits[:24]}"
