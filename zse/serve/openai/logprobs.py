"""Log-probabilities in the shapes of OpenAI, for answers and prompts, and in vLLM's for prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.engine.output import describe_logprob

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from zse.backends.types import SampledToken
    from zse.engine.output import TokenLogprob, TopLogprob
    from zse.text.tokenizer import Tokenizer

MINIMUM = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


def chat_logprobs(entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    content = [{**_said(entry), "top_logprobs": list(map(_said, entry.top))} for entry in entries]
    return {"content": content, "refusal": None}


def _said(entry: TokenLogprob | TopLogprob) -> dict[str, Any]:
    return {"token": entry.token, "logprob": _finite(entry.logprob), "bytes": list(entry.bytes)}


def completion_logprobs(entries: Iterable[TokenLogprob], *, text_offset: int) -> dict[str, Any]:
    """Return a text completion's logprobs: four lists of equal length.

    The alternatives of a token hold itself, too, likely or not.

    Args:
        entries: The tokens.
        text_offset: Characters of the choice's text before the first of them.
    """
    lists = _four_lists()
    for entry in entries:
        lists["tokens"].append(entry.token)
        lists["token_logprobs"].append(_finite(entry.logprob))
        alternatives: dict[str, float] = {}
        for one in entry.top:
            alternatives.setdefault(one.token, _finite(one.logprob))
        alternatives.setdefault(entry.token, _finite(entry.logprob))
        lists["top_logprobs"].append(alternatives)
        lists["text_offset"].append(text_offset)
        text_offset += len(entry.token)
    return lists


def echoed_logprobs(
    tokenizer: Tokenizer, prompt: Sequence[int], told: Sequence[SampledToken]
) -> dict[str, Any]:
    """Return the same of a prompt; nothing comes before its first token, which has nulls."""
    first = tokenizer.token_text(prompt[0])
    rest = completion_logprobs(_described(tokenizer, told), text_offset=len(first))
    begin = {"tokens": first, "token_logprobs": None, "top_logprobs": None, "text_offset": 0}
    return {name: [begin[name], *values] for name, values in rest.items()}


def joined(first: dict[str, Any] | None, second: dict[str, Any]) -> dict[str, Any]:
    """Return both logprobs of a text completion as one; the second begins where the first ends."""
    return {name: [*first[name], *values] for name, values in second.items()} if first else second


def end_of(logprobs: dict[str, Any] | None) -> int:
    """Return the characters of the text whose logprobs these are."""
    if not logprobs or not logprobs["tokens"]:
        return 0
    return int(logprobs["text_offset"][-1]) + len(logprobs["tokens"][-1])


def prompt_logprobs(tokenizer: Tokenizer, told: Sequence[SampledToken]) -> list[Any]:
    """Return vLLM's form: null, then a mapping of token ids for each further token of a prompt.

    A token that is none of the likeliest has no rank: how many are likelier is not counted.
    """
    return [None, *(_ranked(token, tokenizer) for token in told)]


def _ranked(token: SampledToken, tokenizer: Tokenizer) -> dict[str, Any]:
    assert token.logprob is not None
    found = {token.token_id: (token.logprob, None)} | {
        other: (logprob, rank) for rank, (other, logprob) in enumerate(token.top, start=1)
    }
    return {
        str(token_id): {
            "logprob": _finite(logprob),
            "rank": rank,
            "decoded_token": tokenizer.token_text(token_id),
        }
        for token_id, (logprob, rank) in found.items()
    }


def _described(tokenizer: Tokenizer, told: Sequence[SampledToken]) -> Iterable[TokenLogprob]:
    for token in told:
        assert token.logprob is not None
        yield describe_logprob(tokenizer, token.token_id, token.logprob, token.top)


def _four_lists() -> dict[str, list[Any]]:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def _finite(value: float) -> float:
    return max(value, MINIMUM)
