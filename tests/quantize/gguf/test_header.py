"""A header is read as a hostile one: what does not fit the file ends in one sentence about it."""

from __future__ import annotations

import struct

import pytest

from zse.errors import CheckpointError, UnsupportedModelError
from zse.quantize.gguf.header import GgufHeader, parse_header


def text(words: str) -> bytes:
    return struct.pack("<Q", len(words.encode())) + words.encode()


def setting(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    axes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + axes + struct.pack("<IQ", kind, offset)


def file_of(
    settings: list[bytes], tensors: list[bytes], *, data: int = 64, version: int = 3
) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(settings))
    head += b"".join(settings) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + bytes(data)


def parsed(data: bytes) -> GgufHeader:
    return parse_header(data, len(data), "m.gguf")


def test_settings_and_tensors_are_read_with_the_last_axis_in_a_row() -> None:
    numbers = struct.pack("<IQ3i", 5, 3, 1, -2, 3)
    words = struct.pack("<IQ", 8, 2) + text("a") + text("\u00e9")
    header = parsed(
        file_of(
            [
                setting("n", 4, struct.pack("<I", 7)),
                setting("l", 9, numbers),
                setting("w", 9, words),
            ],
            [tensor("a", (4, 2)), tensor("b", (3,), 0, 32)],
        )
    )
    assert header.settings == {"n": 7, "l": [1, -2, 3], "w": ["a", "\u00e9"]}
    assert {name: one.shape for name, one in header.tensors.items()} == {"a": (2, 4), "b": (3,)}
    assert header.tensors["b"].offset_bytes - header.tensors["a"].offset_bytes == 32


ONE = [tensor("a", (4, 2))]
BROKEN = {
    "begin with GGUF": b"ZSE\0" + file_of([], ONE)[4:],
    "ends at byte": file_of([], ONE)[:30],
    "claims 9999999999 tensors": b"GGUF" + struct.pack("<IQQ", 3, 9999999999, 0),
    "settings": b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 40),
    "bytes of a text": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 60),
    "values of a list": file_of([setting("l", 9, struct.pack("<IQ", 4, 1 << 60))], ONE),
    "value of kind 9": file_of([setting("l", 9, struct.pack("<IQ", 9, 1) + bytes(64))], ONE),
    "value of kind 77": file_of([setting("l", 77, bytes(8))], ONE),
    "'n' is there twice": file_of([setting("n", 0, b"\1"), setting("n", 0, b"\1")], ONE),
    "'a' is there twice": file_of([], ONE * 2),
    "5 axes": file_of([], [tensor("a", (1, 1, 1, 1, 1))]),
    "shape .4, 0.": file_of([], [tensor("a", (0, 4))]),
    "in blocks of 32": file_of([], [tensor("a", (33,), 2)]),
    "lies at 64": file_of([], [tensor("a", (4,), 0, 64)]),
    "lies at 4 ": file_of([], [tensor("a", (4,), 0, 4)]),
    "on each other": file_of([], [tensor("a", (12,)), tensor("b", (4,), 0, 32)]),
    "alignment": file_of([setting("general.alignment", 4, struct.pack("<I", 3))], ONE),
    "of 281474976710656": file_of([], [tensor("a", (1 << 40, 1 << 40))]),
}


@pytest.mark.parametrize("reason", BROKEN)
def test_what_does_not_fit_is_refused_by_name(reason: str) -> None:
    match = reason if not reason.startswith("of ") else "shape"
    with pytest.raises(CheckpointError, match=match):
        parsed(BROKEN[reason])


def test_other_versions_and_types_are_named() -> None:
    with pytest.raises(UnsupportedModelError, match="version 1;"):
        parsed(file_of([], ONE, version=1))
    with pytest.raises(UnsupportedModelError, match="order of another processor"):
        parsed(file_of([], ONE, version=3 << 24))
    with pytest.raises(UnsupportedModelError, match="unknown type 99"):
        parsed(file_of([], [tensor("a", (4,), 99)]))


@pytest.mark.parametrize("length", range(4, 130, 7))
def test_a_file_cut_anywhere_is_refused(length: int) -> None:
    whole = file_of(
        [setting("n", 4, struct.pack("<I", 7))], [tensor("a", (4, 2)), tensor("b", (3,), 0, 32)]
    )
    with pytest.raises(CheckpointError):
        parsed(whole[:length])


def test_of_a_large_file_no_more_is_read_than_its_header() -> None:
    whole = file_of([setting("n", 4, struct.pack("<I", 7))], ONE)

    class Mapped:
        """A file of terabytes, of which it is told how far it was read."""

        furthest = 0

        def __len__(self) -> int:
            return 1 << 40

        def __getitem__(self, part: slice) -> bytes:
            self.furthest = max(self.furthest, part.stop)
            return whole[part]

    mapped = Mapped()
    assert parse_header(mapped, 1 << 40, "m.gguf").settings == {"n": 7}
    assert mapped.furthest <= len(whole)
