"""The two tokenizer engines behind one small interface: kitoken (fast) and tokenizers (reference).

Both are imported where they are built, so that a process pays for the one it uses.
"""

from __future__ import annotations

import itertools
import re
import threading
from typing import TYPE_CHECKING, Any

from zse.format.errors import Rule
from zse.text.facts import AddedToken, TokenizerFacts, decoder_kind, parse_object
from zse.text.kitoken_module import CALL_GATE, import_kitoken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenizers import Tokenizer as ReferenceTokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_PROBE = "a"
_SPACE_RUN = re.compile(r"\s+")
_LONGEST_SPACE_RUN = 1 << 18
"""In characters. Split patterns such as ``\\s+(?!\\S)`` keep a place to go back to for each one,
and kitoken ends the process when there are a million of them."""


class KitokenEngine:
    """Loads in a seventh of the reference's time and encodes about five times faster."""

    word_ids: frozenset[int] = frozenset()
    """Special tokens that stand for ordinary words."""

    def __init__(self, payload: bytes, facts: TokenizerFacts) -> None:
        kitoken = import_kitoken()
        try:
            with CALL_GATE:
                self._kitoken: Any = kitoken.Kitoken(payload)
        except ValueError as error:
            raise Rule.TOKENIZER(f"the tokenizer's binary form is damaged: {error}") from error
        # Other kinds split at spaces, and would take the start of a piece for a text's start.
        self._splits_by_pattern = facts.kind == "byte_level"
        # A token in front keeps the decoder from treating the token asked for as a text's start.
        self._anchor: list[int] = []
        if facts.kind != "byte_level":
            self._anchor = self.encode(_PROBE, parse_special=False)[-1:]
        self._anchor_length = len(self._decode_bytes(self._anchor))

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """Encode without the tokens that surround a text (bos, eos).

        Without ``parse_special`` only ordinary added tokens are matched in the text.
        """
        specials = True if parse_special else ["priority"]
        ids: list[int] = []
        for piece in self._pieces(text):
            with CALL_GATE:
                ids += self._kitoken.encode(piece, specials)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Decode a whole sequence, control tokens included."""
        try:
            data = self._decode_bytes(list(ids))
        except ValueError:
            data = self._decode_bytes([i for i in ids if self._exists(i)])
        return data.decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of one token inside a text; empty for an id that names no token."""
        try:
            return self._decode_bytes([*self._anchor, token_id])[self._anchor_length :]
        except ValueError:
            return b""

    def _pieces(self, text: str) -> list[str]:
        """Cut what the engine would die of: nearly always, this is the text itself."""
        if not self._splits_by_pattern or len(text) <= _LONGEST_SPACE_RUN:
            return [text]
        edges = [0]
        for run in _SPACE_RUN.finditer(text):
            edges += range(run.start() + _LONGEST_SPACE_RUN, run.end(), _LONGEST_SPACE_RUN)
        return [text[start:end] for start, end in itertools.pairwise([*edges, len(text)])]

    def _decode_bytes(self, ids: list[int]) -> bytes:
        if not ids:
            return b""
        with CALL_GATE:
            return bytes(self._kitoken.decode(ids, True))

    def _exists(self, token_id: int) -> bool:
        try:
            self._decode_bytes([token_id])
        except ValueError:
            return False
        return True


class ReferenceEngine:
    """Hugging Face ``tokenizers``: the behaviour that the other's is compared with."""

    def __init__(self, tokenizer_json: bytes) -> None:
        document = parse_object(tokenizer_json, "tokenizer.json")
        self.tokenizer = _load_reference(tokenizer_json)
        self.facts = _facts(document, self.tokenizer)
        self._kind = self.facts.kind
        model = document.get("model", {})
        self.model_type = str(model.get("type", ""))
        self.unknown_text = str(model.get("unk_token") or "")
        # WordPiece says so of words that it cannot spell.
        unknown = {self.unknown_text} if self.model_type == "WordPiece" else set()
        self.word_ids = frozenset(t.token_id for t in self.facts.added if t.text in unknown)
        self._added = {token.token_id: token.text.encode() for token in self.facts.added}
        self._alphabet = _byte_alphabet() if self._kind == "byte_level" else {}
        # The switch that turns matching of specials off lives in the shared object.
        self._lock = threading.Lock()

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """Encode; safe to call from several threads."""
        with self._lock:
            self.tokenizer.encode_special_tokens = not parse_special
            return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def token_bytes(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id]
        text = self.tokenizer.id_to_token(token_id) if token_id >= 0 else None
        if text is None:
            return b""
        if self._kind == "byte_level":
            found = [self._alphabet.get(character) for character in text]
            known = [byte for byte in found if byte is not None]
            return bytes(known) if len(known) == len(found) else text.encode()
        if self._kind == "metaspace":
            byte = _BYTE_TOKEN.fullmatch(text)
            return bytes([int(byte[1], 16)]) if byte else text.replace("▁", " ").encode()
        return text.encode()


def _load_reference(tokenizer_json: bytes) -> ReferenceTokenizer:
    from tokenizers import Tokenizer as ReferenceTokenizer

    try:
        tokenizer = ReferenceTokenizer.from_str(tokenizer_json.decode("utf-8"))
    except Exception as error:
        raise Rule.TOKENIZER(f"tokenizer.json cannot be loaded: {error}") from error
    # A stored truncation or padding is a training-time setting; prompts must arrive whole.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _facts(document: dict[str, Any], tokenizer: ReferenceTokenizer) -> TokenizerFacts:
    kind, strips_space = decoder_kind(document.get("decoder"))
    inner = tokenizer.encode(_PROBE, add_special_tokens=False).ids
    outer = tokenizer.encode(_PROBE, add_special_tokens=True).ids
    start = next((i for i in range(len(outer)) if outer[i : i + len(inner)] == inner), 0)
    end = start + len(inner)
    pair = tokenizer.encode(_PROBE, _PROBE, add_special_tokens=True).ids
    between = pair[end : len(pair) - len(outer) + start]
    added = tokenizer.get_added_tokens_decoder()
    return TokenizerFacts(
        kind=kind,
        strips_space=strips_space,
        vocab_size=max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1,
        prefix_ids=tuple(outer[:start]),
        suffix_ids=tuple(outer[end:]),
        middle_ids=tuple(between) if pair[: len(outer) - len(outer[end:])] == outer[:end] else (),
        added=tuple(
            AddedToken(token_id=i, text=token.content, special=token.special)
            for i, token in sorted(added.items())
        ),
    )


def _byte_alphabet() -> dict[str, int]:
    """The byte-level alphabet: printable bytes stand for themselves, others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {**alphabet, **{chr(256 + i): byte for i, byte in enumerate(others)}}
