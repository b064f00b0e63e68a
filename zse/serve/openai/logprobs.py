"""Log-probabilities in the two shapes OpenAI uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.engine.output import TokenLogprob, TopLogprob

MINIMUM = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


def chat_logprobs(entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    content = [{**_said(entry), "top_logprobs": list(map(_said, entry.top))} for entry in entries]
    return {"content": content, "refusal": None}


def _said(entry: TokenLogprob | TopLogprob) -> dict[str, Any]:
    return {"token": entry.token, "logprob": _finite(entry.logprob), "bytes": list(entry.bytes)}


def completion_logprobs(
    entries: Sequence[TokenLogprob], *, text_offset: int, with_top: bool
) -> dict[str, Any]:
    """Return a text completion's logprobs: four lists of equal length.

    Args:
        entries: The tokens.
        text_offset: Characters of the choice's text before the first of them.
        with_top: Whether alternatives were asked for; otherwise each place holds null.
    """
    offsets = []
    for entry in entries:
        offsets.append(text_offset)
        text_offset += len(entry.token)
    return {
        "tokens": [entry.token for entry in entries],
        "token_logprobs": [_finite(entry.logprob) for entry in entries],
        "top_logprobs": [
            {top.token: _finite(top.logprob) for top in entry.top} if with_top else None
            for entry in entries
        ],
        "text_offset": offsets,
    }


def _finite(value: float) -> float:
    return max(value, MINIMUM)
