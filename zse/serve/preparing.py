"""From a checked body to a work order, under admission and in fair turns.

What a request would take is told from its size before anything is tokenized; then it holds its room
while its texts wait for their turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from zse.serve.http.requests import state_of
from zse.serve.http.streaming import race
from zse.serve.text_workers import SHORT_CHARACTERS, TextWorkers

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

Result = TypeVar("Result")

_CHARACTERS_PER_TOKEN = 4
"""Of ordinary text; what is held is corrected when the tokens are known."""


def admit(request: Request, *, num_choices: int, size: int) -> None:
    """Let a request in; its room lies in its state, where ``work_order`` finds it.

    Args:
        request: What is to be answered.
        num_choices: Answers that it asks for, of all its prompts.
        size: Of its prompts, as ``num_characters`` has it.

    Raises:
        OverloadedError: There is no room.
        InvalidParameterError: There never would be.
    """
    num_tokens = size // _CHARACTERS_PER_TOKEN
    request.state.room = state_of(request).admit(
        num_choices, num_prompt_tokens=num_tokens, tenant=request.state.caller.tenant
    )


async def in_turn(request: Request, job: Callable[[], Result], *, size: int) -> Result:
    """Run a job on a request's texts in a thread, when its turn comes.

    Args:
        request: Whose turn it is to be.
        job: Called in a thread.
        size: Of the texts that it works on, as ``num_characters`` has it.

    Raises:
        DeadlineError: The request's deadline came first.
        ClientGoneError: The client left while a long text waited.
        ZSEError: What the job raises.
    """
    state, call = state_of(request), request.state
    work = state.one_of(TextWorkers).run(
        job,
        num_characters=size,
        request_id=call.request_id,
        caller=call.caller,
        deadline=call.deadline,
    )
    if size <= SHORT_CHARACTERS:
        return await work
    return await race(work, request.receive, state.terminate)


def num_characters(value: object) -> int:
    """Return how many characters the texts in a value have, any other leaf of it counting as one.

    The value is JSON that was read within bounds: it is not nested deeply. Of a long body it takes
    milliseconds.
    """
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(num_characters, value.values()))
    if isinstance(value, list):
        return sum(map(num_characters, value))
    return 1
