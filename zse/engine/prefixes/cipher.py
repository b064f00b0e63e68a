r"""Encrypts what is kept of prompts: AES-256-GCM, in frames, each of which is checked.

    0    4   magic ``ZPE\0``
    4    4   u32 little-endian version, 1
    8    32  random: the frames' key is HKDF-SHA256 of the given key and it
    40   -   frames: 1 MiB of text at most, and a tag of 16 bytes

A frame's nonce is its number, and whether it is the last one; so none can be left out, moved or
cut off. The first 40 bytes go into each tag. A key that nobody else has is used once a file.
"""

from __future__ import annotations

import hmac
import re
import secrets
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zse.errors import RefusedError, UsageError, needing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAGIC = b"ZPE\0"
_VERSION = 1
_HEAD = struct.Struct("<4sI32s")
_FRAME_BYTES = 1 << 20
_TAG_BYTES = 16
_KEY_BYTES = 32
_HEX = re.compile(rb"\s*([0-9a-fA-F]{64})\s*")


class UnreadablePrefixesError(RefusedError):
    """What is kept of prefixes is encrypted otherwise than this server expects, or was changed."""


def read_key(path: str) -> bytes:
    """Return the key of a file: 32 bytes, or as many in hexadecimal digits.

    Raises:
        UsageError: It cannot be read, or holds something else.
    """
    try:
        with Path(path).expanduser().open("rb") as file:
            data = file.read(4096)
    except OSError as error:
        raise UsageError(f"the key of prefixes, {path}, cannot be read: {error.strerror}") from None
    found = _HEX.fullmatch(data)
    key = bytes.fromhex(found[1].decode()) if found else data
    if len(key) != _KEY_BYTES:
        raise UsageError(
            f"the key of prefixes, {path}, has {len(key)} bytes; expected {_KEY_BYTES}",
            hint="Make one: head -c 32 /dev/urandom > KEY; chmod 600 KEY",
        )
    _cipher(key, bytes(_HEAD.size))  # what it stands on is missed now, not when the server stops
    return key


def encrypted(pieces: Iterable[bytes | bytearray], key: bytes) -> Iterator[bytes]:
    """Yield some bytes encrypted."""
    head = _HEAD.pack(MAGIC, _VERSION, secrets.token_bytes(32))
    cipher = _cipher(key, head)
    yield head
    held, number = bytearray(), 0
    for piece in pieces:
        held += piece
        while len(held) > _FRAME_BYTES:
            yield cipher.encrypt(_nonce(number, is_last=False), bytes(held[:_FRAME_BYTES]), head)
            del held[:_FRAME_BYTES]
            number += 1
    yield cipher.encrypt(_nonce(number, is_last=True), bytes(held), head)


def decrypted(data: memoryview, key: bytes) -> bytearray:
    """Return the text of what ``encrypted`` gave.

    Raises:
        UnreadablePrefixesError: It is none, was encrypted with another key, or was changed.
    """
    head = bytes(data[: _HEAD.size])
    if len(head) < _HEAD.size or not is_encrypted(data):
        raise UnreadablePrefixesError("it is not encrypted, and a key was given")
    if _HEAD.unpack(head)[1] != _VERSION:
        raise UnreadablePrefixesError("another version of zse encrypted it")
    cipher, text = _cipher(key, head), bytearray()
    from cryptography.exceptions import InvalidTag

    step = _FRAME_BYTES + _TAG_BYTES
    starts = range(_HEAD.size, len(data), step) or range(_HEAD.size, _HEAD.size + 1, step)
    for number, start in enumerate(starts):
        frame, is_last = data[start : start + step], start + step >= len(data)
        try:
            text += cipher.decrypt(_nonce(number, is_last=is_last), frame, head)
        except InvalidTag:
            raise UnreadablePrefixesError("another key encrypted it, or it was changed") from None
    return text


def is_encrypted(data: memoryview) -> bool:
    return bytes(data[: len(MAGIC)]) == MAGIC


def _cipher(key: bytes, head: bytes) -> Any:
    """Return AES-GCM with the key of one file: HKDF's two steps, of one block."""
    with needing("encrypt", "encrypted prefixes"):
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    extracted = hmac.digest(head[8:], key, "sha256")
    return AESGCM(hmac.digest(extracted, b"zse prefixes\x01", "sha256"))


def _nonce(number: int, *, is_last: bool) -> bytes:
    return struct.pack("<QI", number, is_last)
