"""Checks the description of one kernel in a pack's header, field by field."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from zse.kernels.pack_errors import BadPackField

ELF_MAGIC = b"\x7fELF"
ARGUMENT_TYPES = frozenset(
    {f"*{kind}" for kind in ("fp32", "fp16", "bf16", "i8", "u8", "i32", "i64")}
    | {"i32", "i64", "fp32"}
)
ENTRY_KEYS = frozenset(
    {
        "aligned",
        "arguments",
        "constants",
        "cooperative",
        "entry",
        "global_scratch_align",
        "global_scratch_bytes",
        "key",
        "length_bytes",
        "num_ctas",
        "num_stages",
        "num_warps",
        "offset_bytes",
        "profile_scratch_bytes",
        "programmatic",
        "registers",
        "sha256",
        "shared_bytes",
        "stack_bytes",
        "trailing_pointers",
    }
)
_LIMITS = {
    "global_scratch_align": (1, 4096),
    "global_scratch_bytes": (0, 2**30),
    "num_ctas": (1, 16),
    "num_stages": (1, 32),
    "num_warps": (1, 32),
    "profile_scratch_bytes": (0, 2**30),
    "registers": (0, 255),
    "shared_bytes": (0, 227 * 1024),
    "stack_bytes": (0, 2**20),
    "trailing_pointers": (0, 8),
}
_PLACE_LIMIT = 2**40
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_FUNCTION = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]{0,255}\Z")
_KEY = re.compile(r"[\x21-\x7e]{1,512}\Z")


@dataclass(frozen=True, kw_only=True)
class Row:
    """Where a kernel's code lies; its description is checked when the kernel is first used."""

    key: str
    offset_bytes: int
    """From the first byte after the header's padding."""
    length_bytes: int
    sha256: str
    record: dict[str, Any]


def read_row(value: object) -> Row:
    """Check a kernel's fields, key, place and digest.

    Raises:
        BadPackField: One of them is wrong.
    """
    if not isinstance(value, dict) or value.keys() != ENTRY_KEYS:
        found = sorted(value) if isinstance(value, dict) else type(value).__name__
        raise BadPackField(f"an entry has the fields {found!s:.400}, expected {sorted(ENTRY_KEYS)}")
    key, offset, length = value["key"], value["offset_bytes"], value["length_bytes"]
    if not isinstance(key, str) or not _KEY.match(key):
        raise BadPackField(f"an entry has the key {key!r:.80}")
    if type(offset) is not int or not 0 <= offset < _PLACE_LIMIT:
        raise BadPackField(f"{key}: offset_bytes is {offset!r:.40}")
    if type(length) is not int or not 0 < length < _PLACE_LIMIT:
        raise BadPackField(f"{key}: length_bytes is {length!r:.40}")
    if not isinstance(value["sha256"], str) or not _SHA256.match(value["sha256"]):
        raise BadPackField(f"{key}: sha256 is {value['sha256']!r:.80}")
    return Row(
        key=key,
        offset_bytes=offset,
        length_bytes=length,
        sha256=value["sha256"],
        record=value,
    )


def read_details(row: Row) -> dict[str, Any]:
    """Check the rest of a kernel's description; return it as ``PackEntry`` takes it.

    Raises:
        BadPackField: A field is of the wrong type or out of range.
    """
    record = row.record
    details: dict[str, Any] = {}
    for name, (low, high) in _LIMITS.items():
        number = record[name]
        if type(number) is not int or not low <= number <= high:
            raise BadPackField(f"{row.key}: {name} is {number!r:.40}, not in {low} .. {high}")
        details[name] = number
    for name in ("programmatic", "cooperative"):
        if not isinstance(record[name], bool):
            raise BadPackField(f"{row.key}: {name} is {record[name]!r:.40}, not true or false")
        details[name] = record[name]
    if not isinstance(record["entry"], str) or not _FUNCTION.match(record["entry"]):
        raise BadPackField(f"{row.key}: entry is {record['entry']!r:.80}")
    details["entry"] = record["entry"]
    details["arguments"] = _read_arguments(row)
    details["aligned"] = _read_aligned(row, {name for name, _ in details["arguments"]})
    details["constants"] = _read_constants(row)
    return details


def read_skipped(value: object) -> dict[str, str]:
    """Check the list of [key, reason] that an architecture leaves out.

    Raises:
        BadPackField: It is not such a list.
    """
    if not isinstance(value, list):
        raise BadPackField("skipped is not a list")
    skipped = {}
    for item in value:
        if not _is_text_pair(item):
            raise BadPackField(f"skipped holds {item!r:.80}, not [key, reason]")
        skipped[item[0]] = item[1]
    return skipped


def _read_arguments(row: Row) -> tuple[tuple[str, str], ...]:
    pairs = _list(row, "arguments")
    for pair in pairs:
        if not _is_text_pair(pair) or pair[1] not in ARGUMENT_TYPES:
            raise BadPackField(f"{row.key}: an argument is {pair!r:.80}, not [name, type]")
    if len({name for name, _ in pairs}) != len(pairs):
        raise BadPackField(f"{row.key}: two arguments have one name")
    return tuple((name, kind) for name, kind in pairs)


def _read_aligned(row: Row, names: set[str]) -> frozenset[str]:
    aligned = _list(row, "aligned")
    if not all(isinstance(name, str) and name in names for name in aligned):
        raise BadPackField(f"{row.key}: aligned names {aligned!r:.200}, arguments are {names}")
    return frozenset(aligned)


def _read_constants(row: Row) -> tuple[tuple[str, int | float | bool | str], ...]:
    pairs = _list(row, "constants")
    for pair in pairs:
        if (
            not isinstance(pair, list)
            or len(pair) != 2
            or not isinstance(pair[0], str)
            or not isinstance(pair[1], int | float | str)
        ):
            raise BadPackField(f"{row.key}: a constant is {pair!r:.80}, not [name, value]")
    return tuple((name, value) for name, value in pairs)


def _list(row: Row, name: str) -> list[Any]:
    value = row.record[name]
    if not isinstance(value, list):
        raise BadPackField(f"{row.key}: {name} is a {type(value).__name__}, not a list")
    return value


def _is_text_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(t, str) for t in value)
