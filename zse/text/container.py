"""The tokenizer's binary form as it stands in a .zse file.

0    8    magic: b"ZTOK" + u32 little-endian version (1)
8    4    u32 length of the facts
12   -    facts: canonical UTF-8 JSON of TokenizerFacts
-    -    kitoken's own serialized definition, to the end
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict

from zse.format.errors import Rule
from zse.text.facts import TokenizerFacts, parse_object

BINARY_SECTION = "tokenizer.kitoken"
_HEAD = struct.Struct("<4sII")
_MAGIC, _VERSION = b"ZTOK", 1


def pack(facts: TokenizerFacts, payload: bytes) -> bytes:
    """Return the section's bytes; the same facts and payload give the same bytes."""
    document = json.dumps(
        asdict(facts), sort_keys=True, separators=(",", ":"), ensure_ascii=False
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
