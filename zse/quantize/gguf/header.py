"""The header of a GGUF file: settings by name, and where each tensor lies.

Values are little-endian; a text is its length in bytes (u64) and UTF-8.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any, Protocol

from zse.errors import CheckpointError, UnsupportedModelError
from zse.quantize.gguf.types import BLOCK_TYPES, BlockType
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER_BYTES = 1 << 28
"""A quarter of a million tokens and their merges take 20 MB."""
_MAX_SETTINGS = 1 << 16
_MAX_TENSORS = 1 << 20
_MAX_NAME_BYTES = 1 << 16
_MAX_AXES = 4
_MAX_ALIGNMENT = 1 << 16
_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_TEXT, _ARRAY = 8, 9


@record
class GgufTensor:
    """One tensor; the offset counts from the start of the file."""

    name: str
    type: BlockType
    shape: tuple[int, ...]
    """As Hugging Face counts: the last axis lies in a row. (The file counts the other way.)"""
    offset_bytes: int
    length_bytes: int
    shard: int = 0
    """The file that it is in, of a model that was split."""

    @property
    def num_rows(self) -> int:
        """Rows of the last axis; a vector is one."""
        return math.prod(self.shape[:-1])

    @property
    def row_bytes(self) -> int:
        return self.shape[-1] // self.type.numbers * self.type.size_bytes


@record
class GgufHeader:
    """What a file says of itself."""

    settings: Mapping[str, Any]
    """By name: numbers, texts, and lists of one kind of these."""
    tensors: Mapping[str, GgufTensor]


class Sliceable(Protocol):
    """The bytes of a file; those of a mapping are read when they are sliced."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> bytes: ...


def parse_header(head: Sliceable, file_bytes: int, where: str) -> GgufHeader:
    """Parse a header.

    Args:
        head: The file, or the first bytes of it; no more than ``MAX_HEADER_BYTES`` are looked at.
        file_bytes: The size of the file.
        where: The file's name, for errors.

    Raises:
        CheckpointError: It breaks a rule of the format.
        UnsupportedModelError: A version or a type of numbers that is not known.
    """
    return _Parser(head, file_bytes, where).parse()


class _Parser:
    def __init__(self, head: Sliceable, file_bytes: int, where: str) -> None:
        self._head = head
        self._end = min(len(head), MAX_HEADER_BYTES)
        self._file_bytes = file_bytes
        self._where = where
        self._at = 0

    def parse(self) -> GgufHeader:
        if self._take(4) != MAGIC:
            raise self._broken("it does not begin with GGUF")
        version = self._number("I")
        if version not in VERSIONS:
            raise UnsupportedModelError(
                f"{self._where} is GGUF in version {version}; versions 2 and 3 are read"
                + (
                    " (its bytes are in the order of another processor)" if version > 0xFFFF else ""
                ),
                hint="Convert the checkpoint that it was made from.",
            )
        num_tensors = self._count("Q", _MAX_TENSORS, "tensors")
        num_settings = self._count("Q", _MAX_SETTINGS, "settings")
        settings: dict[str, Any] = {}
        for _ in range(num_settings):
            name = self._text(_MAX_NAME_BYTES)
            if name in settings:
                raise self._broken(f"the setting {name[:100]!r} is there twice")
            settings[name] = self._value(self._number("I"))
        facts = [self._tensor_facts() for _ in range(num_tensors)]
        return GgufHeader(settings=settings, tensors=self._placed(facts, settings))

    def _tensor_facts(self) -> tuple[str, BlockType, tuple[int, ...], int]:
        name = self._text(_MAX_NAME_BYTES)
        num_axes = self._count("I", _MAX_AXES, f"axes of {name[:100]!r}")
        shape = tuple(self._number("Q") for _ in range(num_axes))[::-1]
        number, offset_bytes = self._number("I"), self._number("Q")
        if number not in BLOCK_TYPES:
            raise UnsupportedModelError(
                f"{self._where}: tensor {name[:100]!r} has numbers of the unknown type {number}",
                hint="Convert the checkpoint that the file was made from.",
            )
        kind = BLOCK_TYPES[number]
        if not shape or 0 in shape or shape[-1] % kind.numbers or math.prod(shape) >= 1 << 48:
            raise self._broken(
                f"tensor {name[:100]!r} has shape {list(shape)} in blocks of {kind.numbers}"
            )
        return name, kind, shape, offset_bytes

    def _placed(
        self, facts: list[tuple[str, BlockType, tuple[int, ...], int]], settings: Mapping[str, Any]
    ) -> dict[str, GgufTensor]:
        """Return the tensors where they lie, after checking that each has a place of its own."""
        alignment = settings.get("general.alignment", 32)
        if type(alignment) is not int or not 0 < alignment <= _MAX_ALIGNMENT or alignment % 8:
            raise self._broken(f"its alignment is {str(alignment)[:50]}")
        start = -(-self._at // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, kind, shape, offset_bytes in facts:
            length_bytes = math.prod(shape) // kind.numbers * kind.size_bytes
            if name in tensors:
                raise self._broken(f"tensor {name[:100]!r} is there twice")
            if offset_bytes % alignment or start + offset_bytes + length_bytes > self._file_bytes:
                raise self._broken(
                    f"tensor {name[:100]!r} lies at {offset_bytes} after byte {start} and has "
                    f"{length_bytes} bytes, but the file has {self._file_bytes}"
                )
            tensors[name] = GgufTensor(
                name=name,
                type=kind,
                shape=shape,
                offset_bytes=start + offset_bytes,
                length_bytes=length_bytes,
            )
        self._check_apart(tensors)
        return tensors

    def _check_apart(self, tensors: Mapping[str, GgufTensor]) -> None:
        end, before = 0, ""
        for tensor in sorted(tensors.values(), key=lambda one: one.offset_bytes):
            if tensor.offset_bytes < end:
                raise self._broken(
                    f"tensors {before[:100]!r} and {tensor.name[:100]!r} lie on each other"
                )
            end, before = tensor.offset_bytes + tensor.length_bytes, tensor.name

    def _value(self, kind: int, *, in_array: bool = False) -> Any:
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        if kind == _TEXT:
            return self._text(MAX_HEADER_BYTES)
        if kind == _ARRAY and not in_array:
            return self._array()
        raise self._broken(f"a setting has a value of kind {kind}")

    def _array(self) -> list[Any]:
        kind = self._number("I")
        form = _NUMBERS.get(kind)
        smallest = struct.calcsize(f"<{form}") if form else 8  # of a text its length
        count = self._count("Q", (self._end - self._at) // smallest, "values of a list")
        if form:
            return list(struct.unpack(f"<{count}{form}", self._take(count * smallest)))
        return [self._value(kind, in_array=True) for _ in range(count)]

    def _number(self, form: str) -> Any:
        return struct.unpack(f"<{form}", self._take(struct.calcsize(f"<{form}")))[0]

    def _count(self, form: str, most: int, what: str) -> int:
        count: int = self._number(form)
        if count > most:
            raise self._broken(f"it claims {count} {what}")
        return count

    def _text(self, most_bytes: int) -> str:
        # Tokens may be parts of characters: what is no UTF-8 is kept as surrogates.
        return self._take(self._count("Q", most_bytes, "bytes of a text")).decode(
            "utf-8", "surrogateescape"
        )

    def _take(self, count: int) -> bytes:
        if self._at + count > self._end:
            raise self._broken(f"its header ends at byte {self._end}, {count} more were to follow")
        taken = self._head[self._at : self._at + count]
        self._at += count
        return taken

    def _broken(self, reason: str) -> CheckpointError:
        return CheckpointError(
            f"{self._where} is not a whole GGUF file: {reason}", hint="Download the file again."
        )
