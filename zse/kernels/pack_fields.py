"""Checks what a pack says of one kernel: where it lies, and the facts that a launch needs."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from zse.kernels.pack_errors import BadPackField

ELF_MAGIC = b"\x7fELF"
ARGUMENT_TYPES = frozenset(
    {f"*{kind}" for kind in ("fp32", "fp16", "bf16", "i8", "u8", "i32", "i64")}
    | {"i32", "i64", "fp32"}
)
ROW_KEYS = frozenset({"code_bytes", "facts_bytes", "key", "offset_bytes", "sha256"})
FACT_KEYS = frozenset(
    {
        "aligned",
        "arguments",
        "constants",
        "cooperative",
        "entry",
        "global_scratch_align",
        "global_scratch_bytes",
        "num_ctas",
        "num_stages",
        "num_warps",
        "profile_scratch_bytes",
        "programmatic",
        "registers",
        "shared_bytes",
        "stack_bytes",
        "trailing_pointers",
    }
)
ALIGN = 256
MAX_FACTS_BYTES = 65536
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


def align_up(length_bytes: int) -> int:
    """Return the next multiple of 256."""
    return -(-length_bytes // ALIGN) * ALIGN


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """Where a kernel lies: its facts, then zeros to a multiple of 256, then its code."""

    key: str
    offset_bytes: int
    """From the first byte after the header's padding."""
    facts_bytes: int
    code_bytes: int
    sha256: str
    """Of everything from the first byte of the facts to the last of the code."""

    @property
    def code_offset(self) -> int:
        """Where the code starts, from where the kernel does."""
        return align_up(self.facts_bytes)

    @property
    def length_bytes(self) -> int:
        """Bytes of the facts, the zeros and the code."""
        return align_up(self.facts_bytes) + self.code_bytes


def is_plain_text(value: object) -> bool:
    """Whether a value is text that does nothing to the terminal that it is shown on."""
    return isinstance(value, str) and value.isprintable()


def read_row(value: object) -> Row:
    """Check a kernel's key, place and digest.

    Raises:
        BadPackField: One of them is wrong.
    """
    if not isinstance(value, dict) or value.keys() != ROW_KEYS:
        found = sorted(value) if isinstance(value, dict) else type(value).__name__
        raise BadPackField(f"an entry has the fields {found!s:.400}, expected {sorted(ROW_KEYS)}")
    key, offset, digest = value["key"], value["offset_bytes"], value["sha256"]
    facts, code = value["facts_bytes"], value["code_bytes"]
    if not isinstance(key, str) or not _KEY.match(key):
        raise BadPackField(f"an entry has the key {key!r:.80}")
    if type(offset) is not int or not 0 <= offset < _PLACE_LIMIT:
        raise BadPackField(f"{key}: offset_bytes is {offset!r:.40}")
    if type(facts) is not int or not 0 < facts <= MAX_FACTS_BYTES:
        raise BadPackField(f"{key}: facts_bytes is {facts!r:.40}")
    if type(code) is not int or not 0 < code < _PLACE_LIMIT:
        raise BadPackField(f"{key}: code_bytes is {code!r:.40}")
    if not isinstance(digest, str) or not _SHA256.match(digest):
        raise BadPackField(f"{key}: sha256 is {digest!r:.80}")
    return Row(key=key, offset_bytes=offset, facts_bytes=facts, code_bytes=code, sha256=digest)


def read_facts(key: str, raw: bytes) -> dict[str, Any]:
    """Check a kernel's facts; return them as ``PackEntry`` takes them.

    Raises:
        BadPackField: They are not JSON, or a field is missing, of the wrong type or out of range.
    """
    try:
        record = json.loads(raw.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise BadPackField(f"{key}: the facts are not JSON: {error}") from None
    if not isinstance(record, dict) or record.keys() != FACT_KEYS:
        found = sorted(record) if isinstance(record, dict) else type(record).__name__
        raise BadPackField(f"{key}: the facts are {found!s:.400}, expected {sorted(FACT_KEYS)}")
    details: dict[str, Any] = {}
    for name, (low, high) in _LIMITS.items():
        number = record[name]
        if type(number) is not int or not low <= number <= high:
            raise BadPackField(f"{key}: {name} is {number!r:.40}, not in {low} .. {high}")
        details[name] = number
    for name in ("programmatic", "cooperative"):
        if not isinstance(record[name], bool):
            raise BadPackField(f"{key}: {name} is {record[name]!r:.40}, not true or false")
        details[name] = record[name]
    if not isinstance(record["entry"], str) or not _FUNCTION.match(record["entry"]):
        raise BadPackField(f"{key}: entry is {record['entry']!r:.80}")
    details["entry"] = record["entry"]
    details["arguments"] = _read_arguments(key, record)
    details["aligned"] = _read_aligned(key, record, {name for name, _ in details["arguments"]})
    details["constants"] = _read_constants(key, record)
    return details


def read_skipped(value: object) -> dict[str, str]:
    """Check the list of [key, reason] that an architecture leaves out.

    Raises:
        BadPackField: It is not such a list of printable text.
    """
    if not isinstance(value, list):
        raise BadPackField("skipped is not a list")
    skipped = {}
    for item in value:
        if not _is_text_pair(item):
            raise BadPackField(f"skipped holds {item!r:.80}, not [key, reason]")
        skipped[item[0]] = item[1]
    return skipped


def _read_arguments(key: str, record: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    pairs = _list(key, record, "arguments")
    for pair in pairs:
        if not _is_text_pair(pair) or pair[1] not in ARGUMENT_TYPES:
            raise BadPackField(f"{key}: an argument is {pair!r:.80}, not [name, type]")
    if len({name for name, _ in pairs}) != len(pairs):
        raise BadPackField(f"{key}: two arguments have one name")
    return tuple((name, kind) for name, kind in pairs)


def _read_aligned(key: str, record: dict[str, Any], names: set[str]) -> frozenset[str]:
    aligned = _list(key, record, "aligned")
    if not all(isinstance(name, str) and name in names for name in aligned):
        raise BadPackField(f"{key}: aligned names {aligned!r:.200}, arguments are {names}")
    return frozenset(aligned)


def _read_constants(
    key: str, record: dict[str, Any]
) -> tuple[tuple[str, int | float | bool | str], ...]:
    pairs = _list(key, record, "constants")
    for pair in pairs:
        if (
            not isinstance(pair, list)
            or len(pair) != 2
            or not isinstance(pair[0], str)
            or not isinstance(pair[1], int | float | str)
        ):
            raise BadPackField(f"{key}: a constant is {pair!r:.80}, not [name, value]")
    return tuple((name, value) for name, value in pairs)


def _list(key: str, record: dict[str, Any], name: str) -> list[Any]:
    value = record[name]
    if not isinstance(value, list):
        raise BadPackField(f"{key}: {name} is a {type(value).__name__}, not a list")
    return value


def _is_text_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(is_plain_text, value))
