"""JSON bodies to mappings: long ones in a thread, one after the other.

The decoder keeps the interpreter until it is done, so it is what ``bodies`` lets through that keeps
a long body from being felt by others. What is checked in Python goes on beside the loop.
"""

from __future__ import annotations

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack

import msgspec

from zse.serve.http.errors import BadRequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from zse.serve.http.bodies import BodyRoom

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")

MAX_DEPTH = 128
SHORT_BYTES = 16 << 10
"""Bodies up to this are decoded at once, in a fraction of a millisecond."""


def _finite(text: str) -> float:
    """Read a number; the decoder's own way takes 30 microseconds for one with many digits."""
    number = float(text)
    if math.isinf(number):
        raise ValueError("a number is out of range")
    return number


_decode = msgspec.json.Decoder(float_hook=_finite).decode
_thread = ThreadPoolExecutor(1, thread_name_prefix="bodies")


async def read_json(request: Request, room: BodyRoom) -> dict[str, Any]:
    """Return the JSON object in the body of a request.

    Raises:
        BadRequestError: It is none.
        OverloadedError: There is no room for it beside the bodies of others.
        ClientDisconnect: The client left before it had sent all of it.
    """
    with room.hold(request.state.caller.tenant) as held:
        pieces = []
        async for piece in request.stream():
            held.add(len(piece))
            pieces.append(piece)
        body = b"".join(pieces)
        pieces.clear()
        request.state.has_long_body = len(body) > SHORT_BYTES
        return await with_body(request, read_mapping, body)


async def with_body(
    request: Request, work: Callable[[Unpack[Arguments]], Result], *arguments: *Arguments
) -> Result:
    """Do something with what was in a body: where it is long, in the thread that decoded it."""
    if not getattr(request.state, "has_long_body", False):
        return work(*arguments)
    return await asyncio.get_running_loop().run_in_executor(_thread, work, *arguments)


def read_mapping(body: bytes) -> dict[str, Any]:
    """Parse a body into a mapping.

    Raises:
        BadRequestError: The body is no JSON object, or is nested too deeply.
    """
    try:
        value = _decode(body)
    except RecursionError:
        raise _too_deep() from None
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        reason = str(error)[:200]
        raise BadRequestError(f"The body could not be parsed as JSON: {reason}.") from None
    if not isinstance(value, dict):
        raise BadRequestError("The body must be a JSON object.")
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        _check_depth(value)
    return value


def _check_depth(value: dict[str, Any]) -> None:
    """Refuse what is nested deeper than any of what follows can walk down."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for each in level
            for child in (each.values() if type(each) is dict else each)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> BadRequestError:
    return BadRequestError(f"The body is nested too deeply: more than {MAX_DEPTH} levels.")
