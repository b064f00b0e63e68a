"""A small vocabulary, and answers drawn at random from what a grammar allows."""

from __future__ import annotations

import ctypes
import random
from types import SimpleNamespace
from typing import TYPE_CHECKING

from zse.text.facts import AddedToken, TokenizerFacts
from zse.text.grammar.compile import GrammarCompiler
from zse.text.grammar.masks import MaskRows, write_masks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.text.grammar.state import GrammarState

WORDS = (
    '{"', '": ', '", "', '"}', "true", "false", "null", "name", "arguments", "city", "Paris",
    "12", "</", "\n", " \n", "a", "b", "ü", '"},', "</parameter>\n", "\n</parameter>\n",
    "</arg_value>", "<tool_call>", "</tool_call>", "[TOOL", "_CALLS]", "</think>", "yes", "no",
)  # fmt: skip
END = "<|end_of_answer|>"
NUM_PADDED = 3
"""Logits of a model beyond its tokenizer's tokens: a mask has a bit for each of them, too."""


class WordTokenizer:
    """Every byte is a token, some words are, and control tokens; texts are cut greedily."""

    def __init__(self, controls: Sequence[str] = (), words: Sequence[str] = WORDS) -> None:
        pieces = [bytes([byte]) for byte in range(256)]
        pieces += [word.encode() for word in words if len(word.encode()) > 1]
        self._take(pieces, (END, *controls), len(pieces))

    @classmethod
    def of(cls, words: Sequence[str]) -> WordTokenizer:
        """Make one whose token 0 is the end, and which has these words and nothing else."""
        tokenizer = cls.__new__(cls)
        tokenizer._take([word.encode() for word in words], (END,), 0)
        return tokenizer

    def _take(self, pieces: list[bytes], controls: Sequence[str], first: int) -> None:
        pieces[first:first] = [text.encode() for text in controls]
        self._pieces = pieces
        added = [
            AddedToken(token_id=first + place, text=text, special=True)
            for place, text in enumerate(controls)
        ]
        self.facts = TokenizerFacts(kind="byte_level", vocab_size=len(pieces), added=tuple(added))
        self.controls = {token.text: token.token_id for token in added}
        self.special_ids = self.facts.special_ids
        self.vocab_size = len(pieces)
        self.engine = SimpleNamespace(token_bytes=self.token_bytes)
        self._ids = {piece: token for token, piece in enumerate(pieces)}
        self._most = max(map(len, pieces))

    def token_bytes(self, token_id: int) -> bytes:
        return self._pieces[token_id]

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[int]:
        data, ids, start = text.encode(), [], 0
        hidden = () if parse_special else self.special_ids
        while start < len(data):
            for end in range(min(start + self._most, len(data)), start, -1):
                token = self._ids.get(data[start:end])
                if token is not None and token not in hidden:
                    break
            else:
                raise AssertionError(f"no token for {data[start:]!r}")
            ids.append(token)
            start = end
        return ids

    def encode_within(self, text: str, *, parse_special: bool = True) -> list[int]:
        return self.encode(text, parse_special=parse_special)

    def text_of(self, ids: Sequence[int]) -> str:
        end = self.controls[END]
        return b"".join(self._pieces[i] for i in ids if i != end).decode(errors="replace")


def compiler_for(tokenizer: WordTokenizer, **options: object) -> GrammarCompiler:
    sizes = {
        "vocab_size": tokenizer.vocab_size + NUM_PADDED,
        "end_token_ids": (tokenizer.controls[END],),
    }
    return GrammarCompiler(tokenizer, **{**sizes, **options})  # type: ignore[arg-type]


def allowed_by(state: GrammarState, vocab_size: int, banned: Sequence[int] = ()) -> list[int]:
    """Return the tokens that may come next."""
    row_bytes = 4 * -(-vocab_size // 32)
    words = (ctypes.c_uint32 * (row_bytes // 4))()
    write_masks([MaskRows(state, [banned])], ctypes.addressof(words), row_bytes)
    return [token for token in range(vocab_size) if words[token // 32] >> (token % 32) & 1]


def walk(
    state: GrammarState, tokenizer: WordTokenizer, *, seed: int, most: int = 600
) -> tuple[list[int], bool]:
    """Return an answer of random tokens, of long ones rather, and whether it came to its end."""
    draw = random.Random(seed)
    ids: list[int] = []
    end = tokenizer.controls[END]
    while not state.is_complete and len(ids) < most:
        allowed = allowed_by(state, tokenizer.vocab_size + NUM_PADDED)
        assert allowed, f"nothing may follow {tokenizer.text_of(ids)!r}"
        if end in allowed and draw.random() < 0.5:
            return ids, True
        long = [token for token in allowed if token >= 256 and token != end]
        token = draw.choice(long if long and draw.random() < 0.6 else allowed)
        state.advance(token)
        assert not state.error, state.error
        ids.append(token)
    return ids, state.is_complete
