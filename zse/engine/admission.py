"""What is refused at the door: requests that could never be served, whatever the load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import CapacityError, ContextLengthError, InvalidParameterError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from zse.engine.request import SamplingParams

_DEFAULT_MAX_TOKENS = 256
LONGEST_TOKEN_CHARACTERS = 512
"""More than the longest token of any known vocabulary has."""


def check_text(text: str, *, max_context: int, param: str) -> None:
    """Refuse a text that cannot fit, before a tokenizer works on it for seconds.

    Raises:
        ContextLengthError: It is too long, however few tokens it makes.
    """
    least = len(text) // LONGEST_TOKEN_CHARACTERS
    if least >= max_context:
        raise ContextLengthError(
            _overflow_message(max_context, least, 1), hint="Shorten the prompt.", param=param
        )


def check_request(
    prompt_token_ids: Sequence[int], params: SamplingParams | None, *, vocab_size: int
) -> None:
    """Check the token ids of a request.

    A runner indexes its logits with them: one that the model does not have would take the whole
    batch down, and the engine with it.

    Raises:
        InvalidParameterError: The prompt is empty, or it, the bias or the stop tokens name a token
            id that the model does not have.
    """
    if not prompt_token_ids:
        raise InvalidParameterError("the prompt has no tokens, expected 1 or more", param="prompt")
    _check_token_ids("prompt", prompt_token_ids, vocab_size)
    if params is not None:
        _check_token_ids("logit_bias", params.logit_bias, vocab_size)
        _check_token_ids("stop_token_ids", params.stop_token_ids, vocab_size)
        _check_token_ids("banned_token_ids", params.banned_token_ids, vocab_size)


def _check_token_ids(param: str, token_ids: Collection[int], vocab_size: int) -> None:
    if not token_ids or (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        return
    bad = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
    raise InvalidParameterError(
        f"{param} holds token id {bad}, expected 0 to {vocab_size - 1}", param=param
    )


def resolve_max_tokens(
    num_prompt_tokens: int, max_tokens: int | None, *, max_context: int, capacity_tokens: int
) -> int:
    """Return how many tokens may be generated.

    Args:
        num_prompt_tokens: Length of the prompt.
        max_tokens: As requested; None means as many as fit.
        max_context: Longest sequence in tokens that the model allows.
        capacity_tokens: Longest sequence in tokens that the KV pool also has room for.

    Raises:
        ContextLengthError: Prompt and completion exceed the context.
        CapacityError: They exceed the KV pool.
    """
    if max_tokens is None:
        max_tokens = max(capacity_tokens - num_prompt_tokens, 1)
    num_tokens = num_prompt_tokens + max_tokens
    if num_tokens > max_context:
        raise ContextLengthError(
            _overflow_message(max_context, num_prompt_tokens, max_tokens),
            hint="Shorten the prompt or ask for fewer tokens.",
            param="messages",
        )
    if num_tokens > capacity_tokens:
        raise CapacityError(
            _overflow_message(capacity_tokens, num_prompt_tokens, max_tokens),
            hint=f"The KV cache holds {capacity_tokens} of the context's {max_context} tokens: "
            "give it more memory, or shorten the request.",
            param="messages",
        )
    return max_tokens


def default_max_tokens(num_left: int) -> int:
    """Return how long an answer may get where nobody says, with so many tokens left for it."""
    return min(_DEFAULT_MAX_TOKENS, max(num_left, 1))


def _overflow_message(limit: int, num_prompt_tokens: int, max_tokens: int) -> str:
    # Client libraries recognize an overflow by three phrases of this text. Keep it as it is.
    return (
        f"This model's maximum context length is {limit} tokens. However, you requested "
        f"{num_prompt_tokens + max_tokens} tokens ({num_prompt_tokens} in the messages, "
        f"{max_tokens} in the completion). Please reduce the length of the messages or "
        "completion. (context_length_exceeded)"
    )
