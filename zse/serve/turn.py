"""A turn: the answers to a conversation, as events that every protocol writes in its own words.

An answer in one piece is put together from the same events as a stream, so that both say the same.

    plan = plan_turn(conversation, model)
    turn = Turn(Generation(state, model, order_for(plan.prompt)), plan)
    async for event in turn.events(): ...      # or: answers = await turn.answers()
    turn.usage()
"""

from __future__ import annotations

import uuid
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from zse.text.pieces import Arguments, CallOpening, Said

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    from zse.engine.output import Delta, TokenLogprob
    from zse.engine.reading import PromptReport
    from zse.serve.conversation import TurnPlan
    from zse.serve.generation import Generation
    from zse.text.pieces import AnswerReader, Piece

EndReason = Literal["stop", "length", "tool_calls"]
"""Why an answer ended: by itself, at a limit of tokens, or because it calls tools."""


class TextPart(NamedTuple):
    """More text of a choice."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls
    text: str
    """Empty only where log-probabilities are left over at the end."""
    logprobs: Sequence[TokenLogprob] = ()
    """Of all tokens since the last part, those of calls and reasoning between them included."""


class ReasoningPart(NamedTuple):
    """More of what a choice's model thinks before it answers."""

    index: int  # type: ignore[assignment]
    text: str


class CallOpened(NamedTuple):
    """A choice begins to call a tool that was offered."""

    index: int  # type: ignore[assignment]
    call: int
    """Which of the choice's calls, from 0."""
    id: str
    name: str


class CallArguments(NamedTuple):
    """More of the JSON text of a call's arguments. Calls do not overlap."""

    index: int  # type: ignore[assignment]
    call: int
    text: str


class ChoiceEnded(NamedTuple):
    """The last event of a choice."""

    index: int  # type: ignore[assignment]
    reason: EndReason
    stop: str | None = None
    """The stop string that ended it, where one did."""


Event: TypeAlias = TextPart | ReasoningPart | CallOpened | CallArguments | ChoiceEnded


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
    logprobs: list[TokenLogprob] = field(default_factory=list)
    reason: EndReason = "length"


class Turn:
    """Answers a conversation once.

    Args:
        generation: Of the plan's prompt.
        plan: How its answers are read.
    """

    def __init__(self, generation: Generation, plan: TurnPlan) -> None:
        self._generation = generation
        self._plan = plan

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
        choices: dict[int, _ReadChoice] = {}
        async with aclosing(self._generation.deltas()) as deltas:
            async for index, delta in deltas:
                if self._plan.make_reader is not None:
                    if index not in choices:
                        choices[index] = _ReadChoice(index, self._plan, self._plan.make_reader())
                    for event in choices[index].events(delta):
                        yield event
                    continue
                if delta.text or delta.logprobs:
                    yield TextPart(index, delta.text, delta.logprobs)
                if delta.finish_reason is not None:
                    yield ChoiceEnded(index, _end_reason(delta), delta.stop)

    async def answers(self) -> list[Answer]:
        """Return every choice when all have ended.

        Raises:
            ZSEError: As ``events``.
        """
        texts: dict[int, _Texts] = {}
        async with aclosing(self.events()) as events:
            async for event in events:
                texts.setdefault(event.index, _Texts()).add(event)
        return [texts[index].answer() for index in sorted(texts)]


class _ReadChoice:
    """A choice whose text is taken apart."""

    def __init__(self, index: int, plan: TurnPlan, reader: AnswerReader) -> None:
        self._index = index
        self._plan = plan
        self._reader = reader
        self._logprobs: list[TokenLogprob] = []
        self._num_calls = 0
        self._is_dropped = False
        """The call that is being read is one more than the request allows."""

    def events(self, delta: Delta) -> Iterator[Event]:
        self._logprobs.extend(delta.logprobs)
        for piece in self._reader.push(delta.text):
            yield from self._event(piece)
        if delta.finish_reason is None:
            return
        for piece in self._reader.finish():
            yield from self._event(piece)
        if self._logprobs:
            yield self._text("")
        reason = _end_reason(delta)
        # An answer that was cut says so, whatever it had begun.
        is_call = self._num_calls > 0 and reason == "stop"
        yield ChoiceEnded(self._index, "tool_calls" if is_call else reason, delta.stop)

    def _event(self, piece: Piece) -> Iterator[Event]:
        if isinstance(piece, Said):
            if piece.text:
                yield self._text(piece.text)
        elif isinstance(piece, CallOpening):
            self._is_dropped = self._num_calls > 0 and not self._plan.parallel_calls
            if not self._is_dropped:
                self._num_calls += 1
                yield CallOpened(self._index, self._num_calls - 1, _new_call_id(), piece.name)
        elif isinstance(piece, Arguments):
            if not self._is_dropped:
                yield CallArguments(self._index, self._num_calls - 1, piece.text)
        else:
            yield ReasoningPart(self._index, piece.text)

    def _text(self, text: str) -> TextPart:
        logprobs, self._logprobs = self._logprobs, []
        return TextPart(self._index, text, logprobs)


class _Texts:
    """The growing parts of an answer: joined once, so that long ones take linear time."""

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
        else:
            self._answer.reason = event.reason

    def answer(self) -> Answer:
        answer = self._answer
        answer.text, answer.reasoning = "".join(self._said), "".join(self._thought)
        for call, texts in zip(answer.calls, self._arguments, strict=True):
            call.arguments = "".join(texts)
        return answer


def _end_reason(delta: Delta) -> EndReason:
    return "length" if delta.finish_reason == "length" else "stop"


def _new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"
