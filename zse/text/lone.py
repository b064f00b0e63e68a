"""Tokens that are text by themselves, as JSON: what a stream says of most of its tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from zse.text.tokenizer import Tokenizer

_MOST_KEPT = 32768
"""Tokens: some megabytes, whatever the size of the vocabulary."""
_encode = msgspec.json.Encoder().encode


class LoneTokens(dict[int, bytes | None]):
    """The JSON text of tokens that are whole characters by themselves, made when first asked for.

    None for a token that is not: a part of a character, a control token, one without text, or any
    of a tokenizer whose tokens have no bytes of their own. Not for several threads.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._is_whole = tokenizer.facts.kind == "other"

    def __missing__(self, token_id: int) -> bytes | None:
        if len(self) >= _MOST_KEPT:
            self.clear()
        made = self[token_id] = self._made(token_id)
        return made

    def _made(self, token_id: int) -> bytes | None:
        if self._is_whole or token_id in self._tokenizer.special_ids:
            return None
        try:
            text = self._tokenizer.token_bytes(token_id).decode()
        except UnicodeDecodeError:
            return None
        return _encode(text) if text else None
