"""What a kernel pack says: whom it is for, where its kernels lie, what a launch needs of each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zse.format.container import (
    PREFIX_BYTES,
    Container,
    check_aligned,
    check_end,
    check_inside,
    check_unique,
    checked_header,
)
from zse.format.errors import Rule
from zse.format.header_json import Fields, parse_object
from zse.format.names import check_digest
from zse.kernels.targets import TARGETS, Target
from zse.records import record
from zse.units import align_up

if TYPE_CHECKING:
    from collections.abc import Mapping

CONTAINER = Container(magic=b"ZKP\0", version=1, max_header_bytes=8 * 1024 * 1024)
ALIGN = 256
ELF_MAGIC = b"\x7fELF"
ARGUMENT_TYPES = frozenset(
    {f"*{kind}" for kind in ("fp32", "fp16", "bf16", "i8", "u8", "u16", "i32", "i64")}
    | {"i32", "i64", "fp32"}
)
_HEADER_KEYS = frozenset({"entries", "provenance", "skipped", "target"})
_PROVENANCE_KEYS = frozenset({"ptxas", "sources", "triton", "zse"})
_ROW_KEYS = frozenset({"code_bytes", "facts_bytes", "key", "offset_bytes", "sha256"})
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
_FACT_KEYS = frozenset(
    {*_LIMITS, "aligned", "arguments", "constants", "cooperative", "entry", "programmatic"}
)
_MAX_FACTS_BYTES = 65536
_FUNCTION = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]{0,255}\Z")
_KEY = re.compile(r"[\x21-\x7e]{1,512}\Z")


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
        return align_up(self.facts_bytes, ALIGN)

    @property
    def length_bytes(self) -> int:
        return self.code_offset + self.code_bytes


@record
class PackHeader:
    """What the header says, checked."""

    target: Target
    provenance: Mapping[str, str]
    rows: Mapping[str, Row]
    skipped: Mapping[str, str]
    raw: bytes
    """The JSON as it lies in the pack."""

    @property
    def end_bytes(self) -> int:
        """Where the first kernel may lie: offsets count from here."""
        return align_up(PREFIX_BYTES + len(self.raw), ALIGN)


def read_header(view: memoryview) -> PackHeader:
    """Check the prefix, the header and the places of kernels in a whole pack.

    Raises:
        FormatError: Its ``rule`` says what is broken.
    """
    length, digest = CONTAINER.parse_prefix(bytes(view[:PREFIX_BYTES]), len(view))
    raw = checked_header(bytes(view[PREFIX_BYTES : PREFIX_BYTES + length]), digest)
    fields = Fields(parse_object(raw), "the header", _HEADER_KEYS)
    target = TARGETS.get(fields.text("target"))
    if target is None:
        raise Rule.UNKNOWN_TARGET(f"it is for the architecture {fields.text('target')!r:.40}")
    provenance = Fields(fields.record("provenance"), "provenance", _PROVENANCE_KEYS)
    rows = [_read_row(entry) for entry in fields.items("entries")]
    check_unique("kernel", (row.key for row in rows))
    header = PackHeader(
        target=target,
        provenance={key: _printable(provenance.text(key)) for key in _PROVENANCE_KEYS},
        rows={row.key: row for row in rows},
        skipped=dict(_pairs(fields, "skipped")),
        raw=raw,
    )
    _check_places(header, len(view))
    return header


def _check_places(header: PackHeader, size_bytes: int) -> None:
    end = header.end_bytes
    check_inside(Rule.TRUNCATED_HEADER, "the header", end, size_bytes)
    for row in header.rows.values():
        check_aligned(Rule.MISALIGNED_KERNEL, row.key, row.offset_bytes, ALIGN)
        start = header.end_bytes + row.offset_bytes
        if start < end:
            raise Rule.OVERLAPPING_KERNELS(
                f"{row.key} starts at {start}, before byte {end} where the kernel before it ends"
            )
        end = align_up(start + row.length_bytes, ALIGN)
        check_inside(Rule.TRUNCATED_KERNEL, row.key, end, size_bytes)
    check_end(end, size_bytes)


def _read_row(value: object) -> Row:
    fields = Fields(value, "an entry", _ROW_KEYS)
    key = fields.text("key")
    if not _KEY.match(key):
        raise Rule.BAD_HEADER_FIELD(f"an entry has the key {key!r:.80}")
    return Row(
        key=key,
        offset_bytes=fields.count("offset_bytes"),
        facts_bytes=fields.count("facts_bytes", 1, _MAX_FACTS_BYTES),
        code_bytes=fields.count("code_bytes", 1),
        sha256=check_digest(fields.text("sha256"), key),
    )


def read_facts(key: str, raw: bytes) -> dict[str, Any]:
    """Check a kernel's facts; return them as ``PackEntry`` takes them.

    Raises:
        FormatError: They are not JSON, or a field is missing, of the wrong type or out of range.
    """
    fields = Fields(parse_object(raw, f"the description of {key}"), key, _FACT_KEYS)
    entry, aligned = fields.text("entry"), fields.items("aligned")
    arguments = tuple(_pairs(fields, "arguments"))
    types = dict(arguments)
    if not _FUNCTION.match(entry):
        raise Rule.BAD_HEADER_FIELD(f"{key}: entry is {entry!r:.80}")
    if len(types) != len(arguments) or not ARGUMENT_TYPES.issuperset(types.values()):
        raise Rule.BAD_HEADER_FIELD(f"{key}: the arguments are {arguments!r:.200}")
    if not all(isinstance(name, str) and name in types for name in aligned):
        raise Rule.BAD_HEADER_FIELD(
            f"{key}: aligned names {aligned!r:.200}, arguments are {arguments}"
        )
    return {
        **{name: fields.count(name, *limits) for name, limits in _LIMITS.items()},
        "programmatic": fields.flag("programmatic"),
        "cooperative": fields.flag("cooperative"),
        "entry": entry,
        "arguments": arguments,
        "aligned": frozenset(aligned),
        "constants": tuple(_pairs(fields, "constants", int | float | str)),
    }


def _pairs(fields: Fields, key: str, kind: Any = str) -> list[tuple[str, Any]]:
    """Return a list field of ``[text, value]``; the texts can be shown on a terminal."""
    pairs = fields.items(key)
    for pair in pairs:
        is_pair = isinstance(pair, list) and len(pair) == 2
        if not is_pair or not isinstance(pair[0], str) or not isinstance(pair[1], kind):
            raise Rule.BAD_HEADER_FIELD(f"{key} holds {pair!r:.80}, not a pair of the right types")
    _printable("".join(text for pair in pairs for text in pair if isinstance(text, str)))
    return [(name, value) for name, value in pairs]


def _printable(text: str) -> str:
    if not text.isprintable():
        raise Rule.BAD_HEADER_FIELD(f"{text!r:.80} is not printable text")
    return text
