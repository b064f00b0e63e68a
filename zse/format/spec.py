"""The .zse file, version 1: constants, types and arithmetic. No I/O; SPEC.md is the prose.

The header is plain JSON rather than a packed table: it is read once, costs a few milliseconds for
the largest models, and anyone can look at it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from zse.format.errors import (
    BadDigest,
    BadGroupSize,
    BadHeaderField,
    BadShape,
    LengthMismatch,
    OffsetOverflow,
    PartsMismatch,
    UnknownDType,
    UnknownNameError,
    UnknownScheme,
    UnsafeSectionName,
    UnsafeTensorName,
    UnsupportedVersion,
)
from zse.format.header_json import Fields, dump_canonical, parse_object

if TYPE_CHECKING:
    from collections.abc import Mapping

MAGIC = b"ZSE\0"
VERSION = 1
PREFIX_BYTES = 64
"""Magic (4), version u32 (4), header length u64 (8), header SHA-256 (32), zero (16)."""
PAGE = 4096
TENSOR_ALIGN = 256
REGION_ALIGN = 2 * 1024 * 1024
MAX_HEADER = 64 * 1024 * 1024
HEADER_SLACK = 2048
"""Zero bytes kept after the header, so that sections can be added at the end later."""
MAX_RANK = 8
MAX_NAME_BYTES = 255
GROUP_SIZES = (128, 64, 32)

_INT63_MAX = 2**63 - 1
_TENSOR_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*\Z")
_SECTION_PIECE = re.compile(r"[A-Za-z0-9_.\-]+\Z")
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


class Scheme(StrEnum):
    """How a tensor's numbers are stored."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"
    INT4 = "int4"
    NF4 = "nf4"

    @property
    def is_plain(self) -> bool:
        """Whether the tensor is stored as it is, in one ``data`` part."""
        return self in _PLAIN


class DType(StrEnum):
    """Element type of one part, little-endian."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    U8 = "u8"
    I8 = "i8"
    I32 = "i32"

    @property
    def size_bytes(self) -> int:
        """Bytes of one element."""
        return _DTYPE_BYTES[self]


_DTYPE_BYTES = {
    DType.F32: 4,
    DType.F16: 2,
    DType.BF16: 2,
    DType.U8: 1,
    DType.I8: 1,
    DType.I32: 4,
}
_PLAIN = {Scheme.FP32: DType.F32, Scheme.FP16: DType.F16, Scheme.BF16: DType.BF16}


def align_up(offset_bytes: int, alignment: int) -> int:
    """Return the smallest multiple of ``alignment`` that is not below ``offset_bytes``."""
    return -(-offset_bytes // alignment) * alignment


def bytes_of_shape(dtype: DType, shape: tuple[int, ...]) -> int:
    """Return the bytes that a dense row-major array takes."""
    return math.prod(shape) * dtype.size_bytes


def parts_for(
    scheme: Scheme, shape: tuple[int, ...], group_size: int = 0
) -> tuple[tuple[str, DType, tuple[int, ...]], ...]:
    """Return ``(role, dtype, shape)`` of each part of a tensor, in file order.

    Args:
        scheme: How the tensor is stored.
        shape: Logical shape; quantized tensors are matrices [N, K].
        group_size: Elements along K that share a scale: 128, 64 or 32; 0 for other schemes.

    Raises:
        BadShape: The shape has no meaning for the scheme.
        BadGroupSize: The group size is not allowed or does not divide K.
    """
    if not 1 <= len(shape) <= MAX_RANK or any(size < 1 for size in shape):
        raise BadShape(f"shape {list(shape)}: wanted 1 to {MAX_RANK} dimensions, each at least 1")
    if math.prod(shape) > _INT63_MAX // 8:
        raise BadShape(f"shape {list(shape)} holds more than 2**60 elements")
    grouped = scheme in (Scheme.INT4, Scheme.NF4)
    if not grouped and group_size != 0:
        raise BadGroupSize(f"scheme {scheme} has no groups, but group_size is {group_size}")
    if scheme in _PLAIN:
        return (("data", _PLAIN[scheme], shape),)
    if len(shape) != 2:
        raise BadShape(f"scheme {scheme} stores matrices, but the shape is {list(shape)}")
    rows, columns = shape
    if not grouped:
        return (("qweight", DType.I8, (rows, columns)), ("scale", DType.F32, (rows,)))
    if group_size not in GROUP_SIZES or columns % group_size:
        raise BadGroupSize(
            f"group_size {group_size} for rows of {columns}: "
            f"wanted one of {list(GROUP_SIZES)} that divides the row"
        )
    packed = ("qweight", DType.U8, (rows, columns // 2))
    if scheme is Scheme.INT4:
        return (packed, ("scale_zero", DType.I32, (rows, columns // group_size)))
    return (packed, ("absmax", DType.F16, (rows, columns // group_size)))


def check_tensor_name(name: str) -> None:
    """Raise UnsafeTensorName unless ``name`` is letters, digits, ``.``, ``_`` and ``-``."""
    if len(name) > MAX_NAME_BYTES or not _TENSOR_NAME.match(name):
        raise UnsafeTensorName(f"the name {name[:80]!r} is not letters, digits, '.', '_' and '-'")


def check_section_name(name: str) -> None:
    """Raise UnsafeSectionName unless ``name`` is a plain relative path without ``.`` or ``..``."""
    pieces = name.split("/")
    safe = all(_SECTION_PIECE.match(piece) and piece not in (".", "..") for piece in pieces)
    if len(name) > MAX_NAME_BYTES or not safe:
        raise UnsafeSectionName(
            f"the section name {name[:80]!r} is not a plain relative path",
            hint="The file may be hostile: do not unpack it.",
        )


def _check_digest(digest: str, where: str) -> str:
    if not _DIGEST.match(digest):
        raise BadDigest(f"{where}: {digest[:80]!r} is not 64 lowercase hexadecimal digits")
    return digest


def _check_end(offset_bytes: int, length_bytes: int, where: str) -> None:
    if offset_bytes + length_bytes > _INT63_MAX:
        raise OffsetOverflow(f"{where}: offset {offset_bytes} + length {length_bytes} > 2**63-1")


@dataclass(frozen=True, kw_only=True)
class TensorPart:
    """One dense row-major array of a tensor. Its offset counts from the start of the file."""

    role: str
    dtype: DType
    shape: tuple[int, ...]
    offset_bytes: int
    length_bytes: int

    @property
    def end_bytes(self) -> int:
        """Offset of the first byte after the part."""
        return self.offset_bytes + self.length_bytes

    def to_json(self) -> dict[str, Any]:
        """Return the header's form."""
        return {
            "role": self.role,
            "dtype": self.dtype.value,
            "shape": list(self.shape),
            "offset": self.offset_bytes,
            "length": self.length_bytes,
        }

    @classmethod
    def from_json(cls, value: object, where: str) -> TensorPart:
        """Read the header's form; ``where`` names the place in errors."""
        fields = Fields(value, where, _PART_KEYS)
        try:
            dtype = DType(fields.text("dtype"))
        except ValueError:
            raise UnknownDType(f"{where}: unknown dtype {fields.text('dtype')[:40]!r}") from None
        part = cls(
            role=fields.text("role"),
            dtype=dtype,
            shape=fields.counts("shape"),
            offset_bytes=fields.count("offset"),
            length_bytes=fields.count("length"),
        )
        _check_end(part.offset_bytes, part.length_bytes, where)
        return part


_PART_KEYS = frozenset({"role", "dtype", "shape", "offset", "length"})


@dataclass(frozen=True, kw_only=True)
class TensorEntry:
    """One tensor: its logical shape, its scheme and where its parts lie."""

    name: str
    scheme: Scheme
    shape: tuple[int, ...]
    group_size: int
    parts: tuple[TensorPart, ...]

    @property
    def length_bytes(self) -> int:
        """Bytes of all parts, without the padding between them."""
        return sum(part.length_bytes for part in self.parts)

    def part(self, role: str) -> TensorPart:
        """Return the part with this role.

        Raises:
            UnknownNameError: The scheme has no such part.
        """
        for part in self.parts:
            if part.role == role:
                return part
        roles = [part.role for part in self.parts]
        raise UnknownNameError(f"tensor {self.name} ({self.scheme}) has parts {roles}, not {role}")

    def to_json(self) -> dict[str, Any]:
        """Return the header's form."""
        return {
            "name": self.name,
            "scheme": self.scheme.value,
            "shape": list(self.shape),
            "group_size": self.group_size,
            "parts": [part.to_json() for part in self.parts],
        }

    @classmethod
    def from_json(cls, value: object) -> TensorEntry:
        """Read the header's form and check that the parts are what the scheme prescribes."""
        fields = Fields(value, "a tensor entry", _TENSOR_KEYS)
        name = fields.text("name")
        check_tensor_name(name)
        try:
            scheme = Scheme(fields.text("scheme"))
        except ValueError:
            unknown = fields.text("scheme")[:40]
            raise UnknownScheme(f"tensor {name}: unknown scheme {unknown!r}") from None
        where = f"tensor {name}"
        entry = cls(
            name=name,
            scheme=scheme,
            shape=fields.counts("shape"),
            group_size=fields.count("group_size"),
            parts=tuple(TensorPart.from_json(part, where) for part in fields.items("parts")),
        )
        entry._check_parts()
        return entry

    def _check_parts(self) -> None:
        wanted = parts_for(self.scheme, self.shape, self.group_size)
        found = tuple((part.role, part.dtype, part.shape) for part in self.parts)
        if found != wanted:
            raise PartsMismatch(
                f"tensor {self.name} ({self.scheme}): found parts {_describe(found)}, "
                f"expected {_describe(wanted)}"
            )
        for part in self.parts:
            length = bytes_of_shape(part.dtype, part.shape)
            if part.length_bytes != length:
                raise LengthMismatch(
                    f"tensor {self.name}, part {part.role}: length {part.length_bytes}, "
                    f"but {part.dtype} {list(part.shape)} takes {length} bytes"
                )


TensorInfo = TensorEntry
_TENSOR_KEYS = frozenset({"name", "scheme", "shape", "group_size", "parts"})


def _describe(parts: tuple[tuple[str, DType, tuple[int, ...]], ...]) -> str:
    return ", ".join(f"{role[:40]} {dtype} {list(shape)}" for role, dtype, shape in parts) or "none"


@dataclass(frozen=True, kw_only=True)
class Region:
    """A named, hashed run of bytes of the file."""

    name: str
    offset_bytes: int
    length_bytes: int
    sha256: str

    @property
    def end_bytes(self) -> int:
        """Offset of the first byte after the region."""
        return self.offset_bytes + self.length_bytes

    def to_json(self) -> dict[str, Any]:
        """Return the header's form."""
        return {
            "name": self.name,
            "offset": self.offset_bytes,
            "length": self.length_bytes,
            "sha256": self.sha256,
        }


_REGION_KEYS = frozenset({"name", "offset", "length", "sha256"})


def _region_fields(value: object, kind: str) -> dict[str, Any]:
    fields = Fields(value, f"a {kind}", _REGION_KEYS)
    where = f"{kind} {fields.text('name')[:80]}"
    offset, length = fields.count("offset"), fields.count("length")
    _check_end(offset, length, where)
    return {
        "name": fields.text("name"),
        "offset_bytes": offset,
        "length_bytes": length,
        "sha256": _check_digest(fields.text("sha256"), where),
    }


@dataclass(frozen=True, kw_only=True)
class Group(Region):
    """Tensors that are loaded together: the embedding, one layer, or the end of the model."""

    @classmethod
    def from_json(cls, value: object) -> Group:
        """Read the header's form."""
        group = cls(**_region_fields(value, "group"))
        check_tensor_name(group.name)
        return group


@dataclass(frozen=True, kw_only=True)
class Section(Region):
    """A metadata file carried inside the model file, as it was."""

    @classmethod
    def from_json(cls, value: object) -> Section:
        """Read the header's form."""
        section = cls(**_region_fields(value, "section"))
        check_section_name(section.name)
        return section


_HEADER_KEYS = frozenset(
    {
        "format_version",
        "architecture",
        "model_config",
        "tensors",
        "groups",
        "sections",
        "provenance",
    }
)


@dataclass(frozen=True, kw_only=True)
class ZSEHeader:
    """Everything the file says about itself. Tensors and groups stand in file order."""

    architecture: str
    model_config: Mapping[str, Any]
    tensors: tuple[TensorEntry, ...]
    groups: tuple[Group, ...]
    sections: tuple[Section, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    format_version: int = VERSION

    def to_bytes(self) -> bytes:
        """Return the canonical JSON: the same header is always the same bytes."""
        return dump_canonical(
            {
                "format_version": self.format_version,
                "architecture": self.architecture,
                "model_config": dict(self.model_config),
                "tensors": [tensor.to_json() for tensor in self.tensors],
                "groups": [group.to_json() for group in self.groups],
                "sections": [section.to_json() for section in self.sections],
                "provenance": dict(self.provenance),
            }
        )

    @classmethod
    def from_bytes(cls, raw: bytes) -> ZSEHeader:
        """Parse a header. Offsets are checked against a file by ``validate``, not here.

        Raises:
            FormatError: A subclass that names the broken rule.
        """
        fields = Fields(parse_object(raw), "the header", _HEADER_KEYS)
        version = fields.count("format_version")
        if version != VERSION:
            raise UnsupportedVersion(f"the header says version {version}, expected {VERSION}")
        if not fields.text("architecture"):
            raise BadHeaderField("the header: architecture is empty")
        return cls(
            format_version=version,
            architecture=fields.text("architecture"),
            model_config=fields.record("model_config"),
            tensors=tuple(TensorEntry.from_json(item) for item in fields.items("tensors")),
            groups=tuple(Group.from_json(item) for item in fields.items("groups")),
            sections=tuple(Section.from_json(item) for item in fields.items("sections")),
            provenance=fields.record("provenance"),
        )
