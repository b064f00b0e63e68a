"""Hostile .zse files: each is the small golden file with one rule broken.

Run as a program, it opens every one of them under a memory limit and prints, as JSON, the rule
that each was found to break.
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
from zse.format.errors import Rule  # noqa: E402
from zse.format.reader import ZSEReader  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

HEADROOM_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Attack:
    """A file that breaks one rule, and the rule that its error must name."""

    name: str
    rule: Rule
    build: Callable[[bytes], bytes]


def _prefix_attacks() -> list[tuple[str, Rule, Callable[[bytes], bytes]]]:
    return [
        ("empty file", Rule.TRUNCATED_HEADER, lambda _: b""),
        ("cut inside the magic", Rule.TRUNCATED_HEADER, lambda data: data[:3]),
        ("cut inside the prefix", Rule.TRUNCATED_HEADER, lambda data: data[:63]),
        ("cut after the prefix", Rule.TRUNCATED_HEADER, lambda data: data[:64]),
        ("cut inside the header", Rule.TRUNCATED_HEADER, lambda data: data[:500]),
        ("another format's magic", Rule.BAD_MAGIC, patched(0, b"GGUF")),
        ("a pickle", Rule.BAD_MAGIC, lambda _: b"\x80\x04\x95" + b"." * 100),
        ("version 0", Rule.UNSUPPORTED_VERSION, patched(4, struct.pack("<I", 0))),
        ("version 2", Rule.UNSUPPORTED_VERSION, patched(4, struct.pack("<I", 2))),
        ("version 2**32-1", Rule.UNSUPPORTED_VERSION, patched(4, b"\xff" * 4)),
        ("header length 2**64-1", Rule.HEADER_TOO_LARGE, patched(8, b"\xff" * 8)),
        ("header length 1 TiB", Rule.HEADER_TOO_LARGE, patched(8, struct.pack("<Q", 1 << 40))),
        (
            "header length over the file",
            Rule.TRUNCATED_HEADER,
            patched(8, struct.pack("<Q", 1 << 26)),
        ),
        ("header length 0", Rule.HEADER_CHECKSUM_MISMATCH, patched(8, bytes(8))),
        ("reserved bytes set", Rule.RESERVED_BYTES_SET, patched(63, b"\1")),
        ("wrong header digest", Rule.HEADER_CHECKSUM_MISMATCH, patched(16, bytes(32))),
        ("a header byte changed", Rule.HEADER_CHECKSUM_MISMATCH, patched(100, b"\x7f")),
    ]


def _document_attacks() -> list[tuple[str, Rule, Callable[[bytes], bytes]]]:
    def source(content: bytes) -> Callable[[bytes], bytes]:
        return raw_header(lambda raw: raw.replace(b'"made for tests"', content, 1))

    return [
        ("bad UTF-8", Rule.BAD_HEADER_ENCODING, source(b'"\xff\xfe"')),
        ("UTF-8 of a surrogate", Rule.BAD_HEADER_ENCODING, source(b'"\xed\xa0\x80"')),
        ("escaped lone surrogate", Rule.BAD_HEADER_ENCODING, source(b'"\\ud800"')),
        ("31 levels too deep", Rule.HEADER_TOO_DEEP, deep(31)),
        ("5000 levels deep", Rule.HEADER_TOO_DEEP, deep(5000)),
        ("two million levels, open", Rule.HEADER_TOO_DEEP, raw_header(lambda _: b"[" * 2_000_000)),
        (
            "depth behind an open quote",
            Rule.BAD_HEADER_JSON,
            raw_header(lambda _: b'"\\"' + b"[" * 99),
        ),
        (
            "four million empty lists",
            Rule.HEADER_TOO_COMPLEX,
            source(b"[" + b"[]," * 4_500_000 + b"1]"),
        ),
        ("not JSON", Rule.BAD_HEADER_JSON, raw_header(lambda raw: raw[:-1])),
        ("two documents", Rule.BAD_HEADER_JSON, raw_header(lambda raw: raw + raw)),
        ("a list", Rule.BAD_HEADER_JSON, raw_header(lambda raw: b"[" + raw + b"]")),
        ("NaN", Rule.BAD_HEADER_JSON, source(b"NaN")),
        ("1e999", Rule.BAD_HEADER_JSON, source(b"1e999")),
        ("a number of 100,000 digits", Rule.BAD_HEADER_JSON, source(b"9" * 100_000)),
        ("duplicate key", Rule.DUPLICATE_KEY, raw_header(lambda raw: b'{"groups":[],' + raw[1:])),
        ("missing field", Rule.BAD_HEADER_FIELD, edited(lambda h: h.pop("groups"))),
        ("unknown field", Rule.BAD_HEADER_FIELD, put("run", "rm")),
        ("tensors are an object", Rule.BAD_HEADER_FIELD, put("tensors", {})),
        ("a tensor is null", Rule.BAD_HEADER_FIELD, put("tensors/0", None)),
        ("offset is a float", Rule.BAD_HEADER_FIELD, put("tensors/0/parts/0/offset", 2097152.0)),
        ("offset is true", Rule.BAD_HEADER_FIELD, put("tensors/0/parts/0/offset", True)),
        ("offset is text", Rule.BAD_HEADER_FIELD, put("sections/0/offset", "4096")),
        ("no architecture", Rule.BAD_HEADER_FIELD, put("architecture", "")),
        ("header version 2", Rule.UNSUPPORTED_VERSION, put("format_version", 2)),
        ("unknown scheme", Rule.UNKNOWN_SCHEME, put("tensors/0/scheme", "int5")),
        ("unknown dtype", Rule.UNKNOWN_DTYPE, put("tensors/0/parts/0/dtype", "object")),
        ("digest in capitals", Rule.BAD_DIGEST, put("groups/0/sha256", "AB" * 32)),
        ("digest too short", Rule.BAD_DIGEST, put("sections/0/sha256", "ab")),
    ]


def _tensor_attacks() -> list[tuple[str, Rule, Callable[[bytes], bytes]]]:
    return [
        ("dimension 0", Rule.BAD_SHAPE, put("tensors/0/shape", [0, 128])),
        ("no dimension", Rule.BAD_SHAPE, put("tensors/0/shape", [])),
        ("100,000 dimensions", Rule.BAD_SHAPE, put("tensors/0/shape", [2] * 100_000)),
        ("2**80 elements", Rule.BAD_SHAPE, put("tensors/0/shape", [2**40, 2**40])),
        ("int8 vector", Rule.BAD_SHAPE, put("tensors/7/shape", [128])),
        ("group size 48", Rule.BAD_GROUP_SIZE, put("tensors/2/group_size", 48)),
        ("group size 0", Rule.BAD_GROUP_SIZE, put("tensors/2/group_size", 0)),
        ("group size over the row", Rule.BAD_GROUP_SIZE, put("tensors/3/shape", [5, 32])),
        ("group size of a plain tensor", Rule.BAD_GROUP_SIZE, put("tensors/0/group_size", 64)),
        ("no parts", Rule.PARTS_MISMATCH, put("tensors/2/parts", [])),
        ("role changed", Rule.PARTS_MISMATCH, put("tensors/2/parts/1/role", "scale")),
        ("shape of a part grown", Rule.PARTS_MISMATCH, put("tensors/0/parts/0/shape", [12, 2**30])),
        ("shape grown", Rule.PARTS_MISMATCH, put("tensors/0/shape", [2**30, 2**29])),
        ("length too short", Rule.LENGTH_MISMATCH, add("tensors/0/parts/0/length", -1)),
        ("length 2**62", Rule.LENGTH_MISMATCH, put("tensors/0/parts/0/length", 2**62)),
        ("duplicate tensor", Rule.DUPLICATE_NAME, put("tensors/1/name", "embed.weight")),
        ("duplicate section", Rule.DUPLICATE_NAME, put("sections/1/name", "config.json")),
        ("duplicate group", Rule.DUPLICATE_NAME, edited(group_twice)),
        ("tensor name with a slash", Rule.UNSAFE_TENSOR_NAME, put("tensors/0/name", "../embed")),
        ("tensor name with an escape", Rule.UNSAFE_TENSOR_NAME, put("tensors/0/name", "a\x1b[2J")),
        ("empty tensor name", Rule.UNSAFE_TENSOR_NAME, put("tensors/0/name", "")),
        ("group name with a newline", Rule.UNSAFE_TENSOR_NAME, put("groups/0/name", "embed\n")),
    ]


def _section_attacks() -> list[tuple[str, Rule, Callable[[bytes], bytes]]]:
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
        (f"section name {words}", Rule.UNSAFE_SECTION_NAME, put("sections/0/name", name))
        for words, name in names.items()
    ]


def _place_attacks() -> list[tuple[str, Rule, Callable[[bytes], bytes]]]:
    part = "tensors/0/parts/0/"
    return [
        ("negative offset", Rule.NEGATIVE_OFFSET, put(part + "offset", -4096)),
        ("negative length", Rule.NEGATIVE_OFFSET, put(part + "length", -1)),
        ("negative section offset", Rule.NEGATIVE_OFFSET, put("sections/0/offset", -1)),
        ("negative dimension", Rule.NEGATIVE_OFFSET, put("tensors/0/shape", [-1, 128])),
        ("offset 2**64", Rule.OFFSET_OVERFLOW, put(part + "offset", 2**64)),
        ("offset plus length over 2**63", Rule.OFFSET_OVERFLOW, put(part + "offset", 2**63 - 256)),
        ("group length over 2**63", Rule.OFFSET_OVERFLOW, put("groups/0/length", 2**63 - 1)),
        ("offset beyond the file", Rule.TRUNCATED_TENSOR, put(part + "offset", 2**50)),
        ("group of 1 TiB", Rule.TRUNCATED_GROUP, put("groups/2/length", 2**40)),
        ("section of 1 TiB", Rule.TRUNCATED_SECTION, put("sections/2/length", 2**40)),
        ("misaligned tensor", Rule.MISALIGNED_TENSOR, add(part + "offset", 128)),
        ("misaligned section", Rule.MISALIGNED_SECTION, add("sections/1/offset", 64)),
        ("misaligned group", Rule.MISALIGNED_GROUP, add("groups/1/offset", 256)),
        ("group of half a page", Rule.MISALIGNED_GROUP, add("groups/2/length", -2048)),
        ("first group not at 2 MiB", Rule.MISALIGNED_GROUP, add("groups/0/offset", -4096)),
        ("cut at section 0", Rule.TRUNCATED_SECTION, cut_at(lambda h: h["sections"][0]["offset"])),
        (
            "cut at section 1",
            Rule.TRUNCATED_SECTION,
            cut_at(lambda h: h["sections"][1]["offset"] + 9),
        ),
        (
            "cut before the tensors",
            Rule.TRUNCATED_TENSOR,
            cut_at(lambda h: h["groups"][0]["offset"]),
        ),
        ("cut at group 1", Rule.TRUNCATED_TENSOR, cut_at(lambda h: h["groups"][1]["offset"] + 1)),
        ("cut at group 2", Rule.TRUNCATED_TENSOR, cut_at(lambda h: h["groups"][2]["offset"])),
        ("last byte missing", Rule.TRUNCATED_GROUP, lambda data: data[:-1]),
        ("bytes after the end", Rule.TRAILING_BYTES, lambda data: data + b"\0"),
        ("overlapping tensors", Rule.OVERLAPPING_TENSORS, edited(copy_offset(1, 2))),
        ("overlapping tail", Rule.OVERLAPPING_TENSORS, add("tensors/7/parts/0/offset", -256)),
        (
            "20,000 tensors in one place",
            Rule.OVERLAPPING_TENSORS,
            edited(many_tensors_in_one_place),
        ),
        ("section over the header", Rule.OVERLAPPING_REGIONS, put("sections/0/offset", 0)),
        ("section over a section", Rule.OVERLAPPING_REGIONS, edited(section_over_section)),
        ("section over the tensors", Rule.OVERLAPPING_REGIONS, put("sections/0/offset", 2097152)),
        ("gap between groups", Rule.GROUP_GAP, add("groups/1/offset", 4096)),
        ("groups in another order", Rule.MISALIGNED_GROUP, edited(lambda h: h["groups"].reverse())),
        ("tensor among the sections", Rule.TENSOR_OUTSIDE_GROUP, edited(tensor_into_sections)),
        ("parts in two groups", Rule.TENSOR_OUTSIDE_GROUP, edited(parts_in_two_groups)),
        ("empty group", Rule.EMPTY_GROUP, edited(empty_group)),
    ]


def _content_attacks() -> list[tuple[str, Rule, Callable[[bytes], bytes]]]:
    half_nan = struct.pack("<H", 0x7E00)
    return [
        ("a tensor byte changed", Rule.CHECKSUM_MISMATCH, patched(2097152 + 7, b"\xaa")),
        (
            "a section byte changed",
            Rule.CHECKSUM_MISMATCH,
            lambda d: d.replace(b"model_type", b"Model_type", 2),
        ),
        ("wrong group digest", Rule.CHECKSUM_MISMATCH, put("groups/1/sha256", "0" * 64)),
        ("wrong section digest", Rule.CHECKSUM_MISMATCH, put("sections/0/sha256", "0" * 64)),
        ("bytes hidden after the header", Rule.NON_ZERO_PADDING, patched(8191, b"x")),
        ("bytes hidden before the tensors", Rule.NON_ZERO_PADDING, patched(2097151, b"x")),
        (
            "NaN scale of int8",
            Rule.NON_FINITE_SCALE,
            resealed(7, 1, struct.pack("<f", float("nan"))),
        ),
        (
            "infinite scale of int8",
            Rule.NON_FINITE_SCALE,
            resealed(7, 1, struct.pack("<f", float("-inf"))),
        ),
        ("NaN scale of int4", Rule.NON_FINITE_SCALE, resealed(2, 1, half_nan)),
        ("NaN zero point of int4", Rule.NON_FINITE_SCALE, resealed(2, 1, b"\0\0" + half_nan)),
        (
            "infinite absmax of nf4",
            Rule.NON_FINITE_SCALE,
            resealed(3, 1, struct.pack("<H", 0x7C00)),
        ),
        ("NaN exponent of mxfp4", Rule.NON_FINITE_SCALE, resealed(4, 1, b"\xff")),
        ("exponent of mxfp4 whose values overflow", Rule.NON_FINITE_SCALE, resealed(4, 1, b"\xfd")),
    ]


ATTACKS = [
    Attack(name=name, rule=rule, build=build)
    for name, rule, build in (
        *_prefix_attacks(),
        *_document_attacks(),
        *_tensor_attacks(),
        *_section_attacks(),
        *_place_attacks(),
        *_content_attacks(),
    )
]


def outcome_of(path: Path) -> str:
    """Open, verify and list a file; return the rule that it broke."""
    try:
        with ZSEReader(path) as reader:
            reader.verify()
    except FormatError as error:
        return str(error.rule)
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
