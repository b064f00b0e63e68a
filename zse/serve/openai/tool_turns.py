"""Chat completions whose tools the server runs: call, run, go on, until there is an answer.

The client sees one answer. What was called and what came of it stands in ``server_tools`` of the
message, or of deltas, which clients that do not know the field skip.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec

from zse.serve.http.errors import BadRequestError
from zse.serve.http.requests import state_of
from zse.serve.openai.chat_turn import open_turn
from zse.serve.openai.protocol import ChatRequest, Message, Tool
from zse.serve.toolbox import Toolbox
from zse.serve.turn import (
    CallArguments,
    CallOpened,
    ChoiceEnded,
    GrowingAnswer,
    ToolRan,
    whole_answers,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from starlette.requests import Request

    from zse.engine.reading import PromptReport
    from zse.serve.http.streaming import FrameSink
    from zse.serve.state import LoadedModel
    from zse.serve.turn import Answer, Call, Event, Turn

MOST_CALLS_IN_A_ROUND = 16


async def open_tool_turns(
    request: Request, mapping: dict[str, Any], body: ChatRequest
) -> tuple[LoadedModel, ToolTurns]:
    """Let a conversation in whose tools the server runs.

    Raises:
        BadRequestError: This server runs no such tools, or the request brings tools of its own.
        ZSEError: As ``open_turn``.
    """
    toolbox = state_of(request).one_of(Toolbox)
    await toolbox.settle()
    offered = msgspec.structs.replace(body, tools=_offered(body, toolbox))
    model, turn = await open_turn(request, mapping, offered)
    return model, ToolTurns(request, offered, toolbox, turn)


def _offered(body: ChatRequest, toolbox: Toolbox) -> list[Tool]:
    known = toolbox.registry.names
    wanted = known if body.server_tools is True else tuple(body.server_tools or ())
    for name in wanted:
        if name not in toolbox.registry:
            raise BadRequestError(
                f"Invalid 'server_tools': there is no tool {name[:80]!r} here. "
                f"Those that are: {', '.join(known) or 'none'}.",
                param="server_tools",
            )
    if not wanted:
        raise BadRequestError(
            "Invalid 'server_tools': this server runs no tools. It is started with --tools or "
            "--mcp; the servers of --mcp may be away.",
            param="server_tools",
        )
    if body.tools:
        raise BadRequestError(
            "'server_tools' and 'tools' are both set: an answer may call tools of the server or of "
            "the client.",
            param="server_tools",
        )
    if (body.n or 1) != 1:
        raise BadRequestError("'server_tools' takes one choice: set 'n' to 1.", param="n")
    return [msgspec.convert(one, Tool) for one in toolbox.registry.definitions(wanted)]


class ToolTurns:
    """Turns that follow each other, seen as one; what ``Turn`` offers to whoever writes answers.

    Args:
        body: Offers the tools.
        first: The turn that answers it.
    """

    def __init__(self, request: Request, body: ChatRequest, toolbox: Toolbox, first: Turn) -> None:
        self._request = request
        self._body = body
        self._toolbox = toolbox
        self._turns = [first]

    @property
    def report(self) -> PromptReport | None:
        """What was asked of the prompt, as the client sent it."""
        return self._turns[0].report

    def usage(self) -> dict[str, Any]:
        """Return OpenAI's usage object for all rounds together."""
        total: dict[str, Any] = {}
        for turn in self._turns:
            _add(total, turn.usage())
        return total

    def shorten(
        self,
        sink: FrameSink | None,
        frames_of: Callable[[Event], Iterable[bytes]],
        around: Callable[[int], tuple[bytes, bytes] | None] | None = None,
    ) -> None:
        """Do nothing: every event must be seen here."""

    async def answers(self) -> list[Answer]:
        """Return the choice when it has ended; as ``Turn.answers``."""
        return await whole_answers(self.events())

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield the events of all rounds: calls appear when they have run.

        Raises:
            ZSEError: As ``Turn.events``, and as ``open_turn`` for the rounds behind the first.
        """
        while True:
            growing = GrowingAnswer()
            end: ChoiceEnded | None = None
            async with aclosing(self._turns[-1].events()) as events:
                async for event in events:
                    growing.add(event)
                    if isinstance(event, ChoiceEnded):
                        end = event
                    elif not isinstance(event, CallOpened | CallArguments):
                        yield event
            answer = growing.answer()
            if not answer.calls or end is None or end.reason != "tool_calls":
                if end is not None:
                    yield end
                return
            calls = answer.calls[:MOST_CALLS_IN_A_ROUND]
            ran = await asyncio.gather(*map(self._run, calls))  # in the order of the calls
            for each in ran:
                yield each
            await self._go_on(answer.text, ran)

    async def _run(self, call: Call) -> ToolRan:
        state = self._request.state
        state.account.tools.append(call.name[:64])
        result = await self._toolbox.run(
            call.name,
            call.arguments,
            request_id=state.request_id,
            caller=state.caller,
        )
        return ToolRan(
            index=0,
            id=call.id,
            name=call.name,
            arguments=call.arguments,
            output=result.output,
            is_error=result.is_error,
            seconds=result.seconds,
        )

    async def _go_on(self, text: str, ran: list[ToolRan]) -> None:
        """Open the next turn, with what was called and what came of it; the last one calls none."""
        asked = {
            "role": "assistant",
            "content": text,
            "tool_calls": [
                {
                    "id": each.id,
                    "type": "function",
                    "function": {"name": each.name, "arguments": each.arguments},
                }
                for each in ran
            ],
        }
        told = [{"role": "tool", "tool_call_id": each.id, "content": each.output} for each in ran]
        added = [msgspec.convert(message, Message) for message in (asked, *told)]
        is_last = len(self._turns) >= self._toolbox.rounds
        self._body = msgspec.structs.replace(
            self._body,
            messages=[*self._body.messages, *added],
            tool_choice="none" if is_last else _once_forced(self._body.tool_choice),
        )
        mapping = msgspec.to_builtins(self._body.messages)
        _, turn = await open_turn(self._request, {"messages": mapping}, self._body)
        self._turns.append(turn)


def _once_forced(asked: Any) -> Any:
    """Return how tools are chosen behind a round: who forces a call has got it by then.

    Forced in every round, no model could answer before the last one.
    """
    if asked == "required":
        return "auto"
    if not isinstance(asked, dict):
        return asked
    if asked.get("type") != "allowed_tools":
        return "auto"
    return {**asked, "allowed_tools": {**asked["allowed_tools"], "mode": "auto"}}


def _add(total: dict[str, Any], more: dict[str, Any]) -> None:
    for name, value in more.items():
        if isinstance(value, dict):
            _add(total.setdefault(name, {}), value)
        else:
            total[name] = total.get(name, 0) + value
