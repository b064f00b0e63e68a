"""Ids become text one token at a time, and never half a character."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.text.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
_CONTEXT_TOKENS = 8
_LONGEST_HOLD_TOKENS = 16
_Decoder = codecs.getincrementaldecoder("utf-8")


class IncrementalDetokenizer:
    """Turns generated tokens into text as they come.

    The pushes and the flush, joined, are what :meth:`Tokenizer.decode` gives for the same ids; with
    a prompt, what it adds to the prompt's text. Bytes of an unfinished character are held back;
    U+FFFD appears only for bytes that no later token could complete. Control tokens have no text,
    but for those in ``shown``.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = (), shown: Sequence[int] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids.difference(shown) if shown else tokenizer.special_ids
        self._is_whole = tokenizer.facts.kind == "other"
        # Only a text's very first token may lose its leading space.
        self._strips_next = tokenizer.facts.strips_space and not self._kept(prompt_ids)
        self._decoder = _Decoder("replace")
        self._context = self._kept(prompt_ids[-_CONTEXT_TOKENS:])
        self._pending: list[int] = []

    @property
    def is_at_rest(self) -> bool:
        """Whether the next token's text depends on nothing that came before it."""
        return not (self._is_whole or self._strips_next or self._decoder.buffer)

    def push(self, token_id: int) -> str:
        """Take a token; return the characters that are now complete."""
        if token_id in self._skipped:
            return ""
        if self._is_whole:
            return self._push_whole(token_id)
        data = self._tokenizer.token_bytes(token_id)
        if self._strips_next and data:
            self._strips_next = False
            data = data.removeprefix(b" ")
        if data.isascii() and not self._decoder.buffer:
            return data.decode("ascii")
        return self._decoder.decode(data)

    def flush(self) -> str:
        """Return what was held back, with U+FFFD for a character that was never finished."""
        if self._is_whole:
            return self._emit_pending(allow_replacement=True)
        return self._decoder.decode(b"", final=True)

    def _kept(self, ids: Sequence[int]) -> list[int]:
        return [i for i in ids if i not in self._skipped]

    def _push_whole(self, token_id: int) -> str:
        """For tokens without bytes of their own: what a token adds to the text before it."""
        self._pending.append(token_id)
        return self._emit_pending(allow_replacement=len(self._pending) > _LONGEST_HOLD_TOKENS)

    def _emit_pending(self, *, allow_replacement: bool) -> str:
        before = self._tokenizer.engine.decode(self._context) if self._context else ""
        after = self._tokenizer.engine.decode([*self._context, *self._pending])
        text = after[len(before) :]
        if text.endswith(_REPLACEMENT) and not allow_replacement:
            return ""
        self._context = [*self._context, *self._pending][-_CONTEXT_TOKENS:]
        self._pending = []
        return text
