"""What the runtime must know of a tokenizer beside its merges: kept next to the binary form.

Parsing a large ``tokenizer.json`` takes over half a second, so everything here is worked out once,
when a checkpoint is converted, and stored as a few kilobytes of JSON. The section of a .zse file:

0    8    magic: b"ZTOK" + u32 little-endian version (1)
8    4    u32 length of the facts
12   -    facts: canonical UTF-8 JSON of TokenizerFacts
-    -    kitoken's own serialized definition, to the end
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict
from typing import Any, Literal, NamedTuple

from zse.format.errors import Rule
from zse.records import record

BINARY_SECTION = "tokenizer.kitoken"
_HEAD = struct.Struct("<4sII")
_MAGIC, _VERSION = b"ZTOK", 1

Kind = Literal["byte_level", "metaspace", "other"]
"""How tokens become bytes: by the byte alphabet, by ▁ and <0xNN>, or only as a whole sequence."""


class AddedToken(NamedTuple):
    """One added token: matched in text before the model runs; ``special`` ones are control."""

    token_id: int
    text: str
    special: bool


@record
class TokenizerFacts:
    """Facts worked out from a tokenizer.json.

    ``prefix_ids`` and ``suffix_ids`` are what encoding adds around a text, ``middle_ids`` what it
    adds between two that are a pair; ``strips_space`` says that decoding drops one leading space;
    ``vocab_size`` is the highest id plus one.
    """

    kind: Kind
    vocab_size: int
    strips_space: bool = False
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()
    middle_ids: tuple[int, ...] = ()
    added: tuple[AddedToken, ...] = ()

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of control tokens, which decoding leaves out by default."""
        return frozenset(token.token_id for token in self.added if token.special)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> TokenizerFacts:
        """Build from the values of its fields, as JSON has them.

        Raises:
            FormatError: A field is missing or has the wrong type.
        """
        try:
            return cls(
                kind=value["kind"],
                vocab_size=int(value["vocab_size"]),
                strips_space=bool(value["strips_space"]),
                prefix_ids=tuple(int(i) for i in value["prefix_ids"]),
                suffix_ids=tuple(int(i) for i in value["suffix_ids"]),
                middle_ids=tuple(int(i) for i in value.get("middle_ids", ())),
                added=tuple(
                    AddedToken(int(i), str(text), bool(special))
                    for i, text, special in value["added"]
                ),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise Rule.TOKENIZER(f"the stored tokenizer facts are damaged: {error!r}") from error


def parse_object(data: bytes, name: str) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        FormatError: ``data`` is not a JSON object; the message names the file.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Rule.TOKENIZER(f"{name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise Rule.TOKENIZER(f"{name} holds a {type(value).__name__}, not an object")
    return value


def pack(facts: TokenizerFacts, payload: bytes) -> bytes:
    """Return the section's bytes; the same facts and payload give the same bytes."""
    values = asdict(facts)
    if not facts.middle_ids:  # as before there were any
        del values["middle_ids"]
    document = json.dumps(
        values, sort_keys=True, separators=(",", ":"), ensure_ascii=False
    ).encode()
    return _HEAD.pack(_MAGIC, _VERSION, len(document)) + document + payload


def unpack(data: bytes) -> tuple[TokenizerFacts, bytes]:
    """Return the facts and kitoken's definition.

    Raises:
        FormatError: The bytes are not of this form or version.
    """
    if len(data) < _HEAD.size:
        raise Rule.TOKENIZER(f"{BINARY_SECTION} has {len(data)} bytes, fewer than {_HEAD.size}")
    magic, version, length = _HEAD.unpack_from(data)
    if magic != _MAGIC or version != _VERSION:
        raise Rule.TOKENIZER(
            f"{BINARY_SECTION} starts with {magic!r} version {version}, "
            f"not {_MAGIC!r} version {_VERSION}"
        )
    end = _HEAD.size + length
    if end > len(data):
        raise Rule.TOKENIZER(f"{BINARY_SECTION} says {length} bytes of facts, past its end")
    facts = TokenizerFacts.from_json(parse_object(data[_HEAD.size : end], BINARY_SECTION))
    return facts, data[end:]


def decoder_kind(decoder: Any) -> tuple[Kind, bool]:
    """Return how tokens of this decoder become bytes, and whether a leading space is dropped."""
    steps = _steps(decoder)
    names = [step.get("type") for step in steps]
    if "ByteLevel" in names:
        return "byte_level", False
    if names == ["Metaspace"]:
        scheme = steps[0].get("prepend_scheme", "always")
        return "metaspace", scheme != "never"
    replaces = [s for s in steps if s.get("type") == "Replace" and s.get("content") == " "]
    if replaces and set(names) <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
        strips = [s for s in steps if s.get("type") == "Strip"]
        plain = all(s.get("content") == " " and s.get("stop", 0) == 0 for s in strips)
        if plain and sum(int(s.get("start", 0)) for s in strips) <= 1:
            return "metaspace", any(s.get("start") for s in strips)
    return "other", False


def _steps(decoder: Any) -> list[dict[str, Any]]:
    if not isinstance(decoder, dict):
        return []
    if decoder.get("type") == "Sequence":
        return [step for part in decoder.get("decoders", []) for step in _steps(part)]
    return [decoder]
