"""Who is let in: so many choices, and so many tokens of their prompts, run and wait together.

A choice's room is free when the engine is done with it, not when its client has read it. When room
will be free is told from how fast choices lately ended. No key takes all of it: see ``shares``.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from zse.errors import InvalidParameterError, OverloadedError
from zse.records import record
from zse.serve.shares import Shares

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_RETRY_SECONDS = 60.0
_MIN_RETRY_SECONDS = 0.05
_UNKNOWN_SECONDS = 1.0
"""What is told where too few choices have ended to tell a rate."""
_NUM_TIMED = 64
"""Ends of choices that the rate is told from."""


@record
class Limits:
    """What may run and wait together."""

    choices: int
    prompt_tokens: int


class Admission:
    """Counts what is in.

    Args:
        limits: Asked at each request.
        on_refusal: Called when a request meets a full queue.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        limits: Callable[[], Limits],
        *,
        on_refusal: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._on_refusal = on_refusal
        self._clock = clock
        self._choices = Shares()
        self._prompt_tokens = Shares()
        self._ended: deque[float] = deque(maxlen=_NUM_TIMED)

    @property
    def num_choices(self) -> int:
        """Choices that the engine is not done with."""
        return self._choices.total

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompts of their requests."""
        return self._prompt_tokens.total

    def refuse_oversized(self, num_choices: int) -> None:
        """Refuse what would not even fit into an idle server: to wait for room would be in vain.

        Raises:
            InvalidParameterError: The request asks for more answers than run and wait together.
        """
        if num_choices > (limit := self._limits().choices):
            raise InvalidParameterError(
                f"The request asks for {num_choices} answers, this server takes {limit} at once.",
                param="n",
            )

    def admit(self, num_choices: int, *, num_prompt_tokens: int = 0, tenant: str = "") -> Room:
        """Take room for a request.

        Args:
            num_choices: Answers to all its prompts.
            num_prompt_tokens: Of all its prompts; an estimate until they are known.
            tenant: Whose work it is; empty where there are no keys.

        Raises:
            OverloadedError: Running and waiting work is at its limit, or the tenant's part of it.
            InvalidParameterError: As ``refuse_oversized``.
        """
        self.refuse_oversized(num_choices)
        limits = self._limits()
        if self.num_choices + num_choices > limits.choices:
            what = f"{self.num_choices} of {limits.choices} answers are running or waiting"
            raise self._overloaded(what, self.num_choices + num_choices - limits.choices)
        # A prompt that is longer than the limit has the server for itself.
        if self.num_choices and self.num_prompt_tokens + num_prompt_tokens > limits.prompt_tokens:
            what = f"{self.num_prompt_tokens} of {limits.prompt_tokens} prompt tokens are in it"
            raise self._overloaded(what, 1)
        for shares, amount, most, noun in (
            (self._choices, num_choices, limits.choices, "answers"),
            (self._prompt_tokens, num_prompt_tokens, limits.prompt_tokens, "prompt tokens"),
        ):
            if not shares.has_share(tenant, amount, most=most):
                what = f"{shares.held(tenant)} of {most} {noun} are of this key, the rest of others"
                raise self._overloaded(what, num_choices)
        return Room(self, num_choices, num_prompt_tokens, tenant)

    def seconds_until(self, num_choices: int) -> float:
        """Return when so many choices will have ended, at the rate of those that ended last."""
        if len(self._ended) < 2:
            return _UNKNOWN_SECONDS
        seconds_each = (self._clock() - self._ended[0]) / len(self._ended)
        return min(max(num_choices * seconds_each, _MIN_RETRY_SECONDS), MAX_RETRY_SECONDS)

    def begun(self, tenant: str, num_choices: int) -> None:
        """Note that a tenant has so many choices more."""
        self._choices.take(tenant, num_choices)

    def hold_tokens(self, tenant: str, num_tokens: int) -> None:
        """Note that a tenant's prompts have so many tokens more, or less."""
        self._prompt_tokens.take(tenant, num_tokens)

    def ended(self, tenant: str, num_choices: int) -> None:
        """Note that the engine is done with choices."""
        self._choices.take(tenant, -num_choices)
        self._ended.extend([self._clock()] * num_choices)

    def _overloaded(self, what: str, num_missing: int) -> OverloadedError:
        self._on_refusal()
        error = OverloadedError(f"The queue is full ({what}).")
        error.retry_after_seconds = self.seconds_until(num_missing)
        return error


class Room:
    """What one request holds of the server's room, until the engine is done with it."""

    def __init__(
        self, admission: Admission, num_choices: int, num_prompt_tokens: int, tenant: str
    ) -> None:
        self._admission = admission
        self._tenant = tenant
        self._num_open = num_choices
        self._num_prompt_tokens = num_prompt_tokens
        self._is_in_use = False
        admission.begun(tenant, num_choices)
        admission.hold_tokens(tenant, num_prompt_tokens)

    @property
    def is_open(self) -> bool:
        """Whether it holds anything."""
        return self._num_open > 0

    def use(self, num_prompt_tokens: int) -> None:
        """Hand it to the engine's work, whose prompts have so many tokens."""
        self._is_in_use = True
        self._hold_tokens(num_prompt_tokens)

    def end_choice(self) -> None:
        """Give back the room of one choice that the engine is done with."""
        if self._num_open:
            self._num_open -= 1
            self._admission.ended(self._tenant, 1)
            if not self._num_open:
                self._hold_tokens(0)

    def close(self) -> None:
        """Give back what is left. May be called twice."""
        if self._num_open:
            self._admission.ended(self._tenant, self._num_open)
            self._num_open = 0
            self._hold_tokens(0)

    def abandon(self) -> None:
        """Give it back where no work took it over."""
        if not self._is_in_use:
            self.close()

    def _hold_tokens(self, num_tokens: int) -> None:
        self._admission.hold_tokens(self._tenant, num_tokens - self._num_prompt_tokens)
        self._num_prompt_tokens = num_tokens
