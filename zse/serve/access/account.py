"""What one request uses: for the limits of its key, and for the line that the audit log gets.

Work may outlive the request that began it, as a stream does whose client went away: the account is
closed when the request has ended and all of its work, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.serve.access.caller import ANYBODY

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.serve.access.caller import Caller
    from zse.serve.access.limits import Limits
    from zse.serve.access.windows import Charge


class Account:
    """Tokens of one request.

    Args:
        caller: Whose request it is.
    """

    def __init__(self, caller: Caller = ANYBODY) -> None:
        self.caller = caller
        self.model = ""
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.tools: list[str] = []
        """Names of those that ran for it, in their order."""
        self.limits: Limits | None = None
        """What the caller's tokens are counted by, where they are limited."""
        self._num_open = 0
        self._on_close: Callable[[], None] | None = None

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    async def begin(self, model: str, *, prompt_tokens: int, most_tokens: int) -> Charge | None:
        """Begin a piece of work, which may use so many tokens at most; end it with ``end``.

        Raises:
            RateLimitError: The key has no tokens left for it; nothing was begun.
        """
        charge = None
        if self.limits is not None:
            charge = await self.limits.charge(
                self.caller, prompt_tokens=prompt_tokens, most_tokens=most_tokens
            )
        self._num_open += 1
        self.model = model
        return charge

    def end(self, charge: Charge | None, *, prompt_tokens: int, completion_tokens: int) -> None:
        """End a piece of work that used so much; what was charged beyond that is given back."""
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens
        if charge is not None and self.limits is not None:
            self.limits.settle(charge, prompt_tokens + completion_tokens)
        self._num_open -= 1
        self._report()

    def hold(self) -> None:
        """Keep the account open: work goes on behind the request's end, until ``release``."""
        self._num_open += 1

    def release(self) -> None:
        """Let it be closed when no other work is left."""
        self._num_open -= 1
        self._report()

    def close(self, report: Callable[[], None]) -> None:
        """Call ``report`` once no work is left; the request has ended."""
        self._on_close = report
        self._report()

    def _report(self) -> None:
        if self._num_open == 0 and self._on_close is not None:
            report, self._on_close = self._on_close, None
            report()
