"""What steps have in common as bytes, whether they go to another process or to another machine.

A row of sampling differs in its penalties alone: ranks of one host are sent the text that they are
counted in, since a GPU may have a token to add that the host does not know yet; other machines are
sent what they have come to.
"""

from __future__ import annotations

from array import array
from ctypes import memmove
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from zse.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.backends.types import StepKind
    from zse.kernels.lm_head_sample.row import SamplingRow

STEP_KINDS: tuple[StepKind, ...] = ("decode", "verify", "prefill")
"""A chunk's kind is sent as its place here."""
_PLAIN = (
    *("temperature", "top_k", "top_p", "min_p", "seed", "step", "logprobs", "known_token_id"),
    *("wants_hidden", "is_masked"),
)


_plain: Callable[[object], tuple[Any, ...]] = attrgetter(*_PLAIN)


class PlainRow(msgspec.Struct, array_like=True, gc=False):
    """A ``SamplingRow`` but for its penalties and biases."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    step: int
    logprobs: int | None = None
    known_token_id: int | None = None
    wants_hidden: bool = False
    is_masked: bool = False
    banned: bytes = b""
    """i32."""


def plain_values(row: SamplingRow) -> tuple[Any, ...]:
    """Return the fields of a ``PlainRow``, in their order."""
    banned = row.banned_token_ids
    return *_plain(row), array("i", banned).tobytes() if banned else b""


def sampling_values(row: PlainRow) -> dict[str, Any]:
    """Return fields of the ``SamplingRow`` again.

    Raises:
        EngineError: The banned tokens are no whole numbers.
    """
    values: dict[str, Any] = dict(zip(_PLAIN, _plain(row), strict=True))
    values["banned_token_ids"] = numbers("i", row.banned).tolist() if row.banned else []
    return values


def numbers(kind: str, data: bytes) -> array[Any]:
    """Return numbers of 32 bits from their bytes.

    Raises:
        EngineError: It is no whole number of them.
    """
    if len(data) % 4:
        raise EngineError(f"{len(data)} bytes are no whole numbers of 32 bits")
    found = array(kind)
    found.frombytes(data)
    return found


class GivenMasks:
    """Masks that somebody else has written; see ``zse.backends.types.TokenMasks``."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = data

    def write(self, address: int, row_bytes: int) -> None:  # noqa: ARG002 - they are of this size
        memmove(address, self.data, len(self.data))
