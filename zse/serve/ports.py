"""What the server needs of the engine and of text, as protocols.

The engine is imported by the boot thread only; handlers know these shapes. It is also how the tests
drive the server with scripted answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from zse.engine.request import SamplingParams


class TokenLogprob(Protocol):
    """A generated token with its log-probability and the likeliest alternatives."""

    @property
    def token(self) -> str:
        """Its text."""

    @property
    def logprob(self) -> float:
        """Natural logarithm of its probability."""

    @property
    def bytes(self) -> Sequence[int]:
        """Its bytes, which need not be whole characters."""

    @property
    def top(self) -> Sequence[Any]:
        """Alternatives as ``(token, token_id, logprob, bytes)``."""


class Delta(Protocol):
    """A piece of one choice, as the engine streams it."""

    @property
    def index(self) -> int:
        """Which of the ``n`` choices."""

    @property
    def text(self) -> str:
        """New text; may be empty while characters or stop strings are incomplete."""

    @property
    def token_ids(self) -> Sequence[int]:
        """New tokens."""

    @property
    def logprobs(self) -> Sequence[TokenLogprob]:
        """One for each new token when asked for."""

    @property
    def finish_reason(self) -> str | None:
        """Set on the last delta of a choice: stop, length or abort."""

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens whose KV was reused."""


class Engine(Protocol):
    """What the server needs of ``zse.engine``'s asynchronous engine."""

    @property
    def is_healthy(self) -> bool:
        """False once it has crashed or was closed."""

    @property
    def failure(self) -> BaseException | None:
        """What crashed it; only a new process helps."""

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        request_id: str = "",
        priority: int = 0,
        cache_salt: str = "",
    ) -> AsyncGenerator[Any, None]:
        """Stream the deltas of all choices; closing the generator cancels them."""

    def check(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        """Refuse what could never be served."""

    def stats(self) -> Any:
        """Return counters and gauges."""

    def close(self) -> None:
        """End everything."""


class Tokenizer(Protocol):
    """What the server needs of ``zse.text``'s tokenizer."""

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Return token ids."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return text."""


class Template(Protocol):
    """What the server needs of ``zse.text``'s chat template."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """Return the prompt's text."""


class Closable(Protocol):
    """Something that holds a file or memory."""

    def close(self) -> None:
        """Give it back."""
