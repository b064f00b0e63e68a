"""What the router reads of a request: its model, and hashes of how its prompt begins.

The JSON text itself is hashed, not what it means: a conversation that goes on repeats the bytes of
its earlier turns, since the same client writes them. Numbers of tokens are hashed by the block as
replicas count it. What cannot be read has no prefix, and the replica says what is wrong with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from zse.options import CacheOptions
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BLOCK_TOKENS = CacheOptions().block_size
BYTES_A_TOKEN = 4
"""Of English and of code, about."""
BLOCK_BYTES = BLOCK_TOKENS * BYTES_A_TOKEN
MAX_BLOCKS = 256
"""Hashes of one prompt; what follows differs from others anyhow, or is alike with all before it."""
_CREDENTIALS = (b"authorization", b"x-api-key")
_NOTHING = msgspec.Raw()


class _Body(msgspec.Struct):
    """What of all protocols' bodies comes before, or is, the prompt."""

    model: msgspec.Raw = _NOTHING
    cache_salt: msgspec.Raw = _NOTHING
    tools: msgspec.Raw = _NOTHING
    system: msgspec.Raw = _NOTHING
    instructions: msgspec.Raw = _NOTHING
    messages: msgspec.Raw = _NOTHING
    prompt: msgspec.Raw = _NOTHING
    input: msgspec.Raw = _NOTHING
    previous_response_id: msgspec.Raw = _NOTHING


@record
class Prompt:
    """How a prompt begins."""

    digests: tuple[int, ...] = ()
    """Of its blocks, each with all before it."""
    goes_on: bool = False
    """Whether it goes on from an answer that one replica keeps."""


_decode = msgspec.json.Decoder(_Body).decode
_decode_ids = msgspec.json.Decoder(list[int]).decode
NO_PROMPT = Prompt()


def read_prompt(body: bytes, fields: Mapping[bytes, bytes]) -> Prompt:
    """Return how the prompt of a request begins; of no JSON, nothing.

    Args:
        fields: Headers by name: callers' prefixes are kept apart by their keys.
    """
    if not body.startswith((b"{", b" ", b"\n", b"\r", b"\t")):
        return NO_PROMPT
    try:
        read = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return NO_PROMPT
    credentials = tuple(fields.get(name) for name in _CREDENTIALS)
    root = hash((bytes(read.model), bytes(read.cache_salt), credentials))
    return Prompt(
        digests=tuple(_chain(root, _blocks_of(read))),
        goes_on=bytes(read.previous_response_id) not in (b"", b"null"),
    )


def _blocks_of(read: _Body) -> Iterator[bytes | tuple[int, ...]]:
    ids = _ids_of(bytes(read.prompt))
    if ids is not None:
        for start in range(0, len(ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            yield tuple(ids[start : start + BLOCK_TOKENS])
        return
    parts = (read.tools, read.system, read.instructions, read.messages, read.prompt, read.input)
    text = b"".join(bytes(part)[: MAX_BLOCKS * BLOCK_BYTES] for part in parts)
    for start in range(0, len(text) - BLOCK_BYTES + 1, BLOCK_BYTES):
        yield text[start : start + BLOCK_BYTES]


def _ids_of(raw: bytes) -> list[int] | None:
    """Return the numbers of tokens that a prompt is; None where it is a text."""
    if not raw.startswith(b"["):
        return None
    try:
        return _decode_ids(raw)
    except msgspec.DecodeError:
        return None


def _chain(root: int, blocks: Iterator[bytes | tuple[int, ...]]) -> Iterator[int]:
    digest = root
    for _, block in zip(range(MAX_BLOCKS), blocks, strict=False):
        # Of Python itself: fast, and seeded anew in each process, so that nobody can aim at it.
        digest = hash((digest, block))
        yield digest
