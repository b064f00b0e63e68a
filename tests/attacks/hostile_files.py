"""Hostile .zse files: each is the small golden file with one rule broken.

Run as a program, it opens every one of them under a memory limit and prints, as JSON, the error
class that each ended in.
"""

from __future__ import annotations

import json
import os
import resource
import struct
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "golden"), str(Path(__file__).parent)]

import small_file  # noqa: E402
from header_edits import (  # noqa: E402
    add,
    copy_offset,
    cut_at,
    deep,
    edited,
    empty_group,
    group_twice,
    many_tensors_in_one_place,
    parts_in_two_groups,
    patched,
    put,
    raw_header,
    resealed,
    section_over_section,
    tensor_into_sections,
)

from zse.errors import FormatError  # noqa: E402
from zse.format import errors as rules  # noqa: E402
from zse.format.reader import ZSEReader  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

HEADROOM_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Attack:
    """A file that breaks one rule, and the error class that must name it."""

    name: str
    error: type[FormatError]
    build: Callable[[bytes], bytes]


def _prefix_attacks() -> list[tuple[str, type[FormatError], Callable[[bytes], bytes]]]:
    return [
        ("empty file", rules.TruncatedHeader, lambda _: b""),
        ("cut inside the magic", rules.TruncatedHeader, lambda data: data[:3]),
        ("cut inside the prefix", rules.TruncatedHeader, lambda data: data[:63]),
        ("cut after the prefix", rules.TruncatedHeader, lambda data: data[:64]),
        ("cut inside the header", rules.TruncatedHeader, lambda data: data[:500]),
        ("another format's magic", rules.BadMagic, patched(0, b"GGUF")),
        ("a pickle", rules.BadMagic, lambda _: b"\x80\x04\x95" + b"." * 100),
        ("version 0", rules.UnsupportedVersion, patched(4, struct.pack("<I", 0))),
        ("version 2", rules.UnsupportedVersion, patched(4, struct.pack("<I", 2))),
        ("version 2**32-1", rules.UnsupportedVersion, patched(4, b"\xff" * 4)),
        ("header length 2**64-1", rules.HeaderTooLarge, patched(8, b"\xff" * 8)),
        ("header length 1 TiB", rules.HeaderTooLarge, patched(8, struct.pack("<Q", 1 << 40))),
        (
            "header length over the file",
            rules.TruncatedHeader,
            patched(8, struct.pack("<Q", 1 << 26)),
        ),
        ("header length 0", rules.HeaderChecksumMismatch, patched(8, bytes(8))),
        ("reserved bytes set", rules.ReservedBytesSet, patched(63, b"\1")),
        ("wrong header digest", rules.HeaderChecksumMismatch, patched(16, bytes(32))),
        ("a header byte changed", rules.HeaderChecksumMismatch, patched(100, b"\x7f")),
    ]


def _document_attacks() -> list[tuple[str, type[FormatError], Callable[[bytes], bytes]]]:
    def source(content: bytes) -> Callable[[bytes], bytes]:
        return raw_header(lambda raw: raw.replace(b'"made for tests"', content, 1))

    return [
        ("bad UTF-8", rules.BadHeaderEncoding, source(b'"\xff\xfe"')),
        ("UTF-8 of a surrogate", rules.BadHeaderEncoding, source(b'"\xed\xa0\x80"')),
        ("escaped lone surrogate", rules.BadHeaderEncoding, source(b'"\\ud800"')),
        ("31 levels too deep", rules.HeaderTooDeep, deep(31)),
        ("5000 levels deep", rules.HeaderTooDeep, deep(5000)),
        ("two million levels, open", rules.HeaderTooDeep, raw_header(lambda _: b"[" * 2_000_000)),
        (
            "depth behind an open quote",
            rules.BadHeaderJSON,
            raw_header(lambda _: b'"\\"' + b"[" * 99),
        ),
        (
            "four million empty lists",
            rules.HeaderTooComplex,
            source(b"[" + b"[]," * 4_500_000 + b"1]"),
        ),
        ("not JSON", rules.BadHeaderJSON, raw_header(lambda raw: raw[:-1])),
        ("two documents", rules.BadHeaderJSON, raw_header(lambda raw: raw + raw)),
        ("a list", rules.BadHeaderJSON, raw_header(lambda raw: b"[" + raw + b"]")),
        ("NaN", rules.BadHeaderJSON, source(b"NaN")),
        ("1e999", rules.BadHeaderJSON, source(b"1e999")),
        ("a number of 100,000 digits", rules.BadHeaderJSON, source(b"9" * 100_000)),
        ("duplicate key", rules.DuplicateKey, raw_header(lambda raw: b'{"groups":[],' + raw[1:])),
        ("missing field", rules.BadHeaderField, edited(lambda h: h.pop("groups"))),
        ("unknown field", rules.BadHeaderField, put("run", "rm")),
        ("tensors are an object", rules.BadHeaderField, put("tensors", {})),
        ("a tensor is null", rules.BadHeaderField, put("tensors/0", None)),
        ("offset is a float", rules.BadHeaderField, put("tensors/0/parts/0/offset", 2097152.0)),
        ("offset is true", rules.BadHeaderField, put("tensors/0/parts/0/offset", True)),
        ("offset is text", rules.BadHeaderField, put("sections/0/offset", "4096")),
        ("no architecture", rules.BadHeaderField, put("architecture", "")),
        ("header version 2", rules.UnsupportedVersion, put("format_version", 2)),
        ("unknown scheme", rules.UnknownScheme, put("tensors/0/scheme", "int3")),
        ("unknown dtype", rules.UnknownDType, put("tensors/0/parts/0/dtype", "object")),
        ("digest in capitals", rules.BadDigest, put("groups/0/sha256", "AB" * 32)),
        ("digest too short", rules.BadDigest, put("sections/0/sha256", "ab")),
    ]


def _tensor_attacks() -> list[tuple[str, type[FormatError], Callable[[bytes], bytes]]]:
    return [
        ("dimension 0", rules.BadShape, put("tensors/0/shape", [0, 128])),
        ("no dimension", rules.BadShape, put("tensors/0/shape", [])),
        ("100,000 dimensions", rules.BadShape, put("tensors/0/shape", [2] * 100_000)),
        ("2**80 elements", rules.BadShape, put("tensors/0/shape", [2**40, 2**40])),
        ("int8 vector", rules.BadShape, put("tensors/5/shape", [128])),
        ("group size 48", rules.BadGroupSize, put("tensors/2/group_size", 48)),
        ("group size 0", rules.BadGroupSize, put("tensors/2/group_size", 0)),
        ("group size over the row", rules.BadGroupSize, put("tensors/3/shape", [5, 32])),
        ("group size of a plain tensor", rules.BadGroupSize, put("tensors/0/group_size", 64)),
        ("no parts", rules.PartsMismatch, put("tensors/2/parts", [])),
        ("role changed", rules.PartsMismatch, put("tensors/2/parts/1/role", "scale")),
        ("shape of a part grown", rules.PartsMismatch, put("tensors/0/parts/0/shape", [12, 2**30])),
        ("shape grown", rules.PartsMismatch, put("tensors/0/shape", [2**30, 2**29])),
        ("length too short", rules.LengthMismatch, add("tensors/0/parts/0/length", -1)),
        ("length 2**62", rules.LengthMismatch, put("tensors/0/parts/0/length", 2**62)),
        ("duplicate tensor", rules.DuplicateName, put("tensors/1/name", "embed.weight")),
        ("duplicate section", rules.DuplicateName, put("sections/1/name", "config.json")),
        ("duplicate group", rules.DuplicateName, edited(group_twice)),
        ("tensor name with a slash", rules.UnsafeTensorName, put("tensors/0/name", "../embed")),
        ("tensor name with an escape", rules.UnsafeTensorName, put("tensors/0/name", "a\x1b[2J")),
        ("empty tensor name", rules.UnsafeTensorName, put("tensors/0/name", "")),
        ("group name with a newline", rules.UnsafeTensorName, put("groups/0/name", "embed\n")),
    ]


def _section_attacks() -> list[tuple[str, type[FormatError], Callable[[bytes], bytes]]]:
    names = {
        "climbing": "../../etc/passwd",
        "climbing in the middle": "kernels/../../x",
        "absolute": "/etc/passwd",
        "with a backslash": "..\\x",
        "with a drive": "C:x",
        "with a zero byte": "config.json\0.txt",
        "with a newline at its end": "config.json\n",
        "of a dot": ".",
        "empty": "",
        "with an empty piece": "a//b",
        "of 300 letters": "a" * 300,
    }
    return [
        (f"section name {words}", rules.UnsafeSectionName, put("sections/0/name", name))
        for words, name in names.items()
    ]


def _place_attacks() -> list[tuple[str, type[FormatError], Callable[[bytes], bytes]]]:
    part = "tensors/0/parts/0/"
    return [
        ("negative offset", rules.NegativeOffset, put(part + "offset", -4096)),
        ("negative length", rules.NegativeOffset, put(part + "length", -1)),
        ("negative section offset", rules.NegativeOffset, put("sections/0/offset", -1)),
        ("negative dimension", rules.NegativeOffset, put("tensors/0/shape", [-1, 128])),
        ("offset 2**64", rules.OffsetOverflow, put(part + "offset", 2**64)),
        ("offset plus length over 2**63", rules.OffsetOverflow, put(part + "offset", 2**63 - 256)),
        ("group length over 2**63", rules.OffsetOverflow, put("groups/0/length", 2**63 - 1)),
        ("offset beyond the file", rules.TruncatedTensor, put(part + "offset", 2**50)),
        ("group of 1 TiB", rules.TruncatedGroup, put("groups/2/length", 2**40)),
        ("section of 1 TiB", rules.TruncatedSection, put("sections/2/length", 2**40)),
        ("misaligned tensor", rules.MisalignedTensor, add(part + "offset", 128)),
        ("misaligned section", rules.MisalignedSection, add("sections/1/offset", 64)),
        ("misaligned group", rules.MisalignedGroup, add("groups/1/offset", 256)),
        ("group of half a page", rules.MisalignedGroup, add("groups/2/length", -2048)),
        ("first group not at 2 MiB", rules.MisalignedGroup, add("groups/0/offset", -4096)),
        ("cut at section 0", rules.TruncatedSection, cut_at(lambda h: h["sections"][0]["offset"])),
        (
            "cut at section 1",
            rules.TruncatedSection,
            cut_at(lambda h: h["sections"][1]["offset"] + 9),
        ),
        (
            "cut before the tensors",
            rules.TruncatedTensor,
            cut_at(lambda h: h["groups"][0]["offset"]),
        ),
        ("cut at group 1", rules.TruncatedTensor, cut_at(lambda h: h["groups"][1]["offset"] + 1)),
        ("cut at group 2", rules.TruncatedTensor, cut_at(lambda h: h["groups"][2]["offset"])),
        ("last byte missing", rules.TruncatedGroup, lambda data: data[:-1]),
        ("bytes after the end", rules.TrailingBytes, lambda data: data + b"\0"),
        ("overlapping tensors", rules.OverlappingTensors, edited(copy_offset(1, 2))),
        ("overlapping tail", rules.OverlappingTensors, add("tensors/5/parts/0/offset", -256)),
        (
            "20,000 tensors in one place",
            rules.OverlappingTensors,
            edited(many_tensors_in_one_place),
        ),
        ("section over the header", rules.OverlappingRegions, put("sections/0/offset", 0)),
        ("section over a section", rules.OverlappingRegions, edited(section_over_section)),
        ("section over the tensors", rules.OverlappingRegions, put("sections/0/offset", 2097152)),
        ("gap between groups", rules.GroupGap, add("groups/1/offset", 4096)),
        ("groups in another order", rules.MisalignedGroup, edited(lambda h: h["groups"].reverse())),
        ("tensor among the sections", rules.TensorOutsideGroup, edited(tensor_into_sections)),
        ("parts in two groups", rules.TensorOutsideGroup, edited(parts_in_two_groups)),
        ("empty group", rules.EmptyGroup, edited(empty_group)),
    ]


def _content_attacks() -> list[tuple[str, type[FormatError], Callable[[bytes], bytes]]]:
    half_nan = struct.pack("<H", 0x7E00)
    return [
        ("a tensor byte changed", rules.ChecksumMismatch, patched(2097152 + 7, b"\xaa")),
        (
            "a section byte changed",
            rules.ChecksumMismatch,
            lambda d: d.replace(b"model_type", b"Model_type", 2),
        ),
        ("wrong group digest", rules.ChecksumMismatch, put("groups/1/sha256", "0" * 64)),
        ("wrong section digest", rules.ChecksumMismatch, put("sections/0/sha256", "0" * 64)),
        ("bytes hidden after the header", rules.NonZeroPadding, patched(8191, b"x")),
        ("bytes hidden before the tensors", rules.NonZeroPadding, patched(2097151, b"x")),
        (
            "NaN scale of int8",
            rules.NonFiniteScale,
            resealed(5, 1, struct.pack("<f", float("nan"))),
        ),
        (
            "infinite scale of int8",
            rules.NonFiniteScale,
            resealed(5, 1, struct.pack("<f", float("-inf"))),
        ),
        ("NaN scale of int4", rules.NonFiniteScale, resealed(2, 1, half_nan)),
        ("NaN zero point of int4", rules.NonFiniteScale, resealed(2, 1, b"\0\0" + half_nan)),
        ("infinite absmax of nf4", rules.NonFiniteScale, resealed(3, 1, struct.pack("<H", 0x7C00))),
    ]


ATTACKS = [
    Attack(name=name, error=error, build=build)
    for name, error, build in (
        *_prefix_attacks(),
        *_document_attacks(),
        *_tensor_attacks(),
        *_section_attacks(),
        *_place_attacks(),
        *_content_attacks(),
    )
]


def outcome_of(path: Path) -> str:
    """Open, verify and list a file; return the class that it ended in."""
    try:
        with ZSEReader(path) as reader:
            reader.verify()
    except FormatError as error:
        return type(error).__name__
    except Exception as error:  # noqa: BLE001
        return f"CRASH {type(error).__name__}: {error}"
    return "accepted"


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + HEADROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main() -> None:
    """Print the outcome of every attack as JSON, all under one memory limit."""
    _limit_memory()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "attack.zse"
        small_file.write(path)
        data = path.read_bytes()
        outcomes = {"the good file": outcome_of(path)}
        for attack in ATTACKS:
            path.write_bytes(attack.build(data))
            outcomes[attack.name] = outcome_of(path)
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
