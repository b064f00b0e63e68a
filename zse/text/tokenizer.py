"""The tokenizer: text to ids and back, from the sections of a .zse file or a checkpoint's files.

It loads from the binary form when the file holds one (written at conversion, and only if it equals
the reference there), else from tokenizer.json by the reference library.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from zse.errors import NotFoundError
from zse.format.errors import Rule
from zse.text.engines import KitokenEngine, ReferenceEngine
from zse.text.facts import BINARY_SECTION, TokenizerFacts, parse_object, unpack

if TYPE_CHECKING:
    from zse.format.model_file import ModelFile

_ANCHOR = "\n"
"""No token joins it with what follows."""
_TURN_ENDS = frozenset({"<|return|>", "<|call|>"})
"""Of harmony: a turn ends with a call as well, which not every file of gpt-oss says."""
Sections = Callable[[str], bytes | None]


class NoTokenizerError(NotFoundError):
    """A model holds no tokenizer, so that it can neither read nor write text."""

    default_hint = "Convert the checkpoint again with --tokenizer FOLDER."


class Tokenizer:
    """Text to token ids and back.

    Decoding works on bytes: a token is a byte string, a text is their concatenation read as UTF-8
    with U+FFFD for what is not UTF-8. It equals the reference for all ids that encode a text.
    """

    def __init__(
        self,
        engine: KitokenEngine | ReferenceEngine,
        facts: TokenizerFacts,
        eos_ids: tuple[int, ...] = (),
    ) -> None:
        self.engine = engine
        self.facts = facts
        self.eos_ids = eos_ids
        self.special_ids = facts.special_ids
        self._control_ids = facts.special_ids - engine.word_ids
        self.vocab_size = facts.vocab_size
        specials = sorted((t.text for t in facts.added if t.special), key=len, reverse=True)
        self._special_pattern = re.compile("|".join(map(re.escape, specials)) or r"(?!)")
        self.token_bytes = functools.lru_cache(maxsize=65536)(engine.token_bytes)

    @classmethod
    def from_sections(cls, get: Sections) -> Tokenizer:
        """Load from named byte sections.

        Args:
            get: Returns a section's bytes by name, or None when it is absent.

        Raises:
            NoTokenizerError: There is neither a binary form nor a tokenizer.json.
            FormatError: A section is damaged.
        """
        binary = get(BINARY_SECTION)
        if binary is not None:
            facts, payload = unpack(binary)
            return cls(KitokenEngine(payload, facts), facts, _end_ids(get, facts))
        source = get("tokenizer.json")
        if source is None:
            raise NoTokenizerError("the model holds no tokenizer.json")
        reference = ReferenceEngine(source)
        return cls(reference, reference.facts, _end_ids(get, reference.facts))

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Encode a text.

        Args:
            text: Any text; lone surrogates become U+FFFD, since no tokenizer can hold them.
            add_special_tokens: Put the tokens around it that the model's files ask for (bos).
            parse_special: Read the text of control tokens (``<|im_end|>``) as those tokens. When
                false no control token comes out, whatever the text says.
        """
        text = _without_surrogates(text)
        ids = self.engine.encode(text, parse_special=parse_special)
        if not parse_special and not self._control_ids.isdisjoint(ids):
            ids = self._encode_as_plain_text(text)
        if add_special_tokens:
            return [*self.facts.prefix_ids, *ids, *self.facts.suffix_ids]
        return ids

    def encode_pair(self, first: Iterable[int], second: Iterable[int]) -> tuple[list[int], int]:
        """Return two encoded texts as the one prompt of a pair, and where the second begins.

        Args:
            first: Ids of a text, without those that are put around it.
            second: Likewise.
        """
        facts = self.facts
        before = [*facts.prefix_ids, *first, *facts.middle_ids]
        return [*before, *second, *facts.suffix_ids], len(before)

    def encode_within(self, text: str, *, parse_special: bool = True) -> list[int]:
        """Encode what stands within a text: no space is put before it, nor tokens around it."""
        if self.facts.kind == "byte_level":
            return self.encode(text, add_special_tokens=False, parse_special=parse_special)
        # Other kinds put a space before what they take for the start of a text.
        anchor, ids = (
            self.encode(each, add_special_tokens=False, parse_special=parse_special)
            for each in (_ANCHOR, _ANCHOR + text)
        )
        if ids[: len(anchor)] == anchor:
            return ids[len(anchor) :]
        return self.encode(text, add_special_tokens=False, parse_special=parse_special)

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Decode ids; unknown ids are left out, bytes that are not UTF-8 become U+FFFD."""
        kept = [i for i in ids if not (skip_special_tokens and i in self.special_ids)]
        if self.facts.kind == "other":
            return self.engine.decode(kept)
        data = b"".join(map(self.token_bytes, kept))
        if self.facts.strips_space and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", "replace")

    def token_text(self, token_id: int) -> str:
        """Text of one token for display; U+FFFD stands for bytes that are no whole character."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def _encode_as_plain_text(self, text: str) -> list[int]:
        """Cut every control token's text in two, so that no vocabulary can match it whole."""
        cuts = [match.start() + 1 for match in self._special_pattern.finditer(text)]
        edges = [0, *cuts, len(text)]
        ids: list[int] = []
        for start, end in itertools.pairwise(edges):
            ids += self.engine.encode(text[start:end], parse_special=False)
        return [i for i in ids if i not in self._control_ids]


def load_tokenizer(reader: ModelFile) -> Tokenizer:
    return Tokenizer.from_sections(
        lambda name: bytes(reader.section(name)) if reader.has_section(name) else None
    )


def check_tokenizer(reader: ModelFile, name: str) -> None:
    """Refuse a .zse file that holds no tokenizer.

    Raises:
        NoTokenizerError: It holds none.
    """
    if not any(reader.has_section(section) for section in (BINARY_SECTION, "tokenizer.json")):
        raise NoTokenizerError(
            f"{name} holds no tokenizer, so that it cannot be served as text",
            hint="Convert the checkpoint again with --tokenizer FOLDER, or add "
            "--allow-no-tokenizer if that is meant.",
        )


def special_token_text(value: Any) -> str:
    """Text of a tokenizer_config.json token, given as a string, an object or null."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _end_ids(get: Sections, facts: TokenizerFacts) -> tuple[int, ...]:
    """Every id that ends a text, from the files that say so."""
    found: list[int] = []
    for name in ("generation_config.json", "config.json"):
        value = _document(get, name).get("eos_token_id")
        values = value if isinstance(value, list) else [value]
        if any(not isinstance(i, int) and i is not None for i in values):
            raise Rule.TOKENIZER(f"{name} holds eos_token_id={value!r}, not whole numbers")
        found += [i for i in values if i is not None]
    eos_text = special_token_text(_document(get, "tokenizer_config.json").get("eos_token"))
    found += [
        token.token_id
        for token in facts.added
        if token.text == eos_text or (token.special and token.text in _TURN_ENDS)
    ]
    return tuple(dict.fromkeys(found))


def _document(get: Sections, name: str) -> dict[str, Any]:
    return parse_object(data, name) if (data := get(name)) else {}


def _without_surrogates(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
