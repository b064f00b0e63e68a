"""States that come with a step's tokens, and those that its chunks want to have of theirs.

Chunks bring and take them in the order of the batch; the rows of a step have an order of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.cpu.execution import Stream
from zse.backends.cpu.join import GIVEN
from zse.errors import EngineError
from zse.kernels.native.codes import Register

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.backends.cpu.step import Step
    from zse.backends.types import SequenceChunk

NORMED_STATES = Register.ADDED
"""Where the states of all rows are behind the last layer, if any chunk wants them."""
_NUMBER_BYTES = 4


def states_of(step: Step, width: int, *, is_joined: bool) -> Stream | None:
    """Return what comes and goes besides tokens; None where nothing does.

    Raises:
        EngineError: A chunk brings no states where they are needed, or not as many as tokens.
    """
    if not is_joined and not step.leaves_states:
        return None
    incoming = given_states(step, width) if is_joined else None
    outgoing = None
    if step.leaves_states:
        outgoing = memoryview(bytearray(_NUMBER_BYTES * len(step.tokens) * width)).cast("f")
    return Stream(width, incoming, outgoing, GIVEN, NORMED_STATES)


def hand_out(step: Step, states: Stream) -> None:
    """Copy the states that have come out of a step to the chunks that want them."""
    if states.outgoing is None:
        return
    found = states.outgoing.cast("B")
    for chunk, first, end in _rows_of_chunks(step):
        if chunk.states_to is not None:
            size = _NUMBER_BYTES * states.width
            chunk.states_to[:] = found[first * size : end * size]


def given_states(step: Step, width: int) -> memoryview[float]:
    """Return float32 [tokens * width]: the states that a step's tokens came with.

    Raises:
        EngineError: A chunk brings none, or not as many as tokens.
    """
    given = bytearray()
    for chunk, first, end in _rows_of_chunks(step):
        length_bytes = 0 if chunk.joined is None else len(chunk.joined)
        if length_bytes != _NUMBER_BYTES * width * (end - first):
            raise EngineError(
                f"{end - first} tokens came with {length_bytes} bytes of states; "
                f"{_NUMBER_BYTES * width} are needed for each"
            )
        assert chunk.joined is not None
        given += chunk.joined
    return memoryview(given).cast("f")


def _rows_of_chunks(step: Step) -> Iterator[tuple[SequenceChunk, int, int]]:
    """Return each chunk with its first row and the end of its rows."""
    end = 0
    for index in step.order:
        chunk = step.batch.chunks[index]
        first, end = end, end + len(chunk.token_ids)
        yield chunk, first, end
