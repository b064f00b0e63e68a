"""Answers in one piece: what ``LLM`` returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Collection

    from zse.engine.output import Delta, TokenLogprob
    from zse.engine.request import FinishReason, Request


@record
class Completion:
    """One answer."""

    index: int
    """Which of the ``n`` choices."""
    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None
    """``stop`` where the model or a stop text ended it, ``length`` at ``max_tokens``."""
    logprobs: list[TokenLogprob]
    """Empty unless asked for."""
    prompt_tokens: int
    """Length of the prompt."""
    cached_tokens: int
    """Prompt tokens whose KV was reused."""


@record
class RequestOutput:
    """The answers to one prompt."""

    prompt_token_ids: list[int]
    """The prompt as the model saw it."""
    outputs: list[Completion]
    """One for each of the ``n`` choices."""

    @property
    def text(self) -> str:
        """Text of the first answer."""
        return self.outputs[0].text

    @property
    def token_ids(self) -> list[int]:
        """Tokens of the first answer."""
        return self.outputs[0].token_ids


def output_of(request: Request, found: Collection[Delta]) -> RequestOutput:
    """Return the answers to a request from all of their pieces."""
    prompt = list(request.prompt_token_ids)
    outputs = []
    for index in range(request.params.n):
        deltas = [delta for delta in found if delta.index == index]
        outputs.append(
            Completion(
                index=index,
                text="".join(delta.text for delta in deltas),
                token_ids=[token_id for delta in deltas for token_id in delta.token_ids],
                finish_reason=deltas[-1].finish_reason,
                logprobs=[logprob for delta in deltas for logprob in delta.logprobs],
                prompt_tokens=len(prompt),
                cached_tokens=deltas[-1].cached_tokens,
            )
        )
    return RequestOutput(prompt_token_ids=prompt, outputs=outputs)
