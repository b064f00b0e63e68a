"""The .zse file, version 1: constants, types and arithmetic. No I/O; SPEC.md is the prose.

The header is plain JSON rather than a packed table: it is read once, costs a few milliseconds for
the largest models, and anyone can look at it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import field, replace
from dataclasses import fields as fields_of
from hashlib import sha256
from typing import Any, Self

from zse.format.container import Container
from zse.format.errors import Misuse, Rule
from zse.format.header_json import INT63_MAX, Fields, dump_canonical, parse_object
from zse.format.names import SPARE_PREFIXES, check_digest, check_section_name, check_tensor_name
from zse.format.schemes import DType, Scheme, bytes_of_shape, parts_for
from zse.records import record

VERSION = 1
CONTAINER = Container(magic=b"ZSE\0", version=VERSION, max_header_bytes=64 * 1024 * 1024)
PAGE = 4096
TENSOR_ALIGN = 256
REGION_ALIGN = 2 * 1024 * 1024
HEADER_SLACK = 2048
"""Zero bytes kept after the header, so that sections can be added at the end later."""


def _keys(cls: type) -> frozenset[str]:
    """Return the keys of a record in the header: its fields' names, without the unit."""
    return frozenset(entry.name.removesuffix("_bytes") for entry in fields_of(cls))


def _as_json(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    names = [entry.name for entry in fields_of(value)]
    return {name.removesuffix("_bytes"): getattr(value, name) for name in names}


def _check_end(run: TensorPart | Region, where: str) -> None:
    if run.end_bytes > INT63_MAX:
        raise Rule.OFFSET_OVERFLOW(
            f"{where}: offset {run.offset_bytes} + length {run.length_bytes} > 2**63-1"
        )


@record
class TensorPart:
    """One dense row-major array of a tensor. Its offset counts from the start of the file."""

    role: str
    dtype: DType
    shape: tuple[int, ...]
    offset_bytes: int
    length_bytes: int

    @property
    def end_bytes(self) -> int:
        return self.offset_bytes + self.length_bytes

    @classmethod
    def from_json(cls, value: object, where: str) -> TensorPart:
        """Read the header's form; ``where`` names the place in errors."""
        fields = Fields(value, where, _PART_KEYS)
        try:
            dtype = DType(fields.text("dtype"))
        except ValueError:
            raise Rule.UNKNOWN_DTYPE(
                f"{where}: unknown dtype {fields.text('dtype')[:40]!r}"
            ) from None
        part = cls(
            role=fields.text("role"),
            dtype=dtype,
            shape=fields.counts("shape"),
            offset_bytes=fields.count("offset"),
            length_bytes=fields.count("length"),
        )
        _check_end(part, where)
        return part


_PART_KEYS = _keys(TensorPart)


@record
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
            UsageError: The scheme has no such part.
        """
        for part in self.parts:
            if part.role == role:
                return part
        roles = [part.role for part in self.parts]
        raise Misuse.UNKNOWN_NAME(
            f"tensor {self.name} ({self.scheme}) has parts {roles}, not {role}"
        )

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
            raise Rule.UNKNOWN_SCHEME(f"tensor {name}: unknown scheme {unknown!r}") from None
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
            raise Rule.PARTS_MISMATCH(
                f"tensor {self.name} ({self.scheme}): found parts {_describe(found)}, "
                f"expected {_describe(wanted)}"
            )
        for part in self.parts:
            length = bytes_of_shape(part.dtype, part.shape)
            if part.length_bytes != length:
                raise Rule.LENGTH_MISMATCH(
                    f"tensor {self.name}, part {part.role}: length {part.length_bytes}, "
                    f"but {part.dtype} {list(part.shape)} takes {length} bytes"
                )


TensorInfo = TensorEntry
_TENSOR_KEYS = _keys(TensorEntry)


def _describe(parts: tuple[tuple[str, DType, tuple[int, ...]], ...]) -> str:
    return ", ".join(f"{role[:40]} {dtype} {list(shape)}" for role, dtype, shape in parts) or "none"


@record
class Region:
    """A named, hashed run of bytes of the file."""

    name: str
    offset_bytes: int
    length_bytes: int
    sha256: str
    check_name = staticmethod(check_tensor_name)

    @property
    def end_bytes(self) -> int:
        return self.offset_bytes + self.length_bytes

    @property
    def where(self) -> str:
        return f"{type(self).__name__.lower()} {self.name}"

    @classmethod
    def from_json(cls, value: object) -> Self:
        kind = cls.__name__.lower()
        fields = Fields(value, f"a {kind}", _REGION_KEYS)
        where = f"{kind} {fields.text('name')[:80]}"
        region = cls(
            name=fields.text("name"),
            offset_bytes=fields.count("offset"),
            length_bytes=fields.count("length"),
            sha256=check_digest(fields.text("sha256"), where),
        )
        _check_end(region, where)
        cls.check_name(region.name)
        return region


_REGION_KEYS = _keys(Region)


@record
class Group(Region):
    """Tensors that are loaded together: the embedding, one layer, or the end of the model."""

    @property
    def is_spare(self) -> bool:
        """Whether steps do without it: it is a head that guesses further tokens."""
        return self.name.startswith(SPARE_PREFIXES)


@record
class Section(Region):
    """A metadata file carried inside the model file, as it was."""

    check_name = staticmethod(check_section_name)

    @classmethod
    def of(cls, name: str, offset_bytes: int, data: bytes) -> Section:
        """Return the section that has these bytes."""
        digest = sha256(data).hexdigest()
        return cls(name=name, offset_bytes=offset_bytes, length_bytes=len(data), sha256=digest)


@record
class ZSEHeader:
    """Everything the file says about itself. Tensors and groups stand in file order."""

    architecture: str
    model_config: Mapping[str, Any]
    tensors: tuple[TensorEntry, ...]
    groups: tuple[Group, ...]
    sections: tuple[Section, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    format_version: int = VERSION

    @property
    def regions(self) -> tuple[Region, ...]:
        """What the file holds besides the header; nothing else is in it but padding."""
        return (*self.sections, *self.groups)

    def loaded(self) -> ZSEHeader:
        """Return the header without spare groups and their tensors: what a start reads."""
        spare = [group for group in self.groups if group.is_spare]
        if not spare:
            return self
        return replace(
            self,
            groups=tuple(group for group in self.groups if not group.is_spare),
            tensors=tuple(
                tensor
                for tensor in self.tensors
                if not any(
                    group.offset_bytes <= tensor.parts[0].offset_bytes < group.end_bytes
                    for group in spare
                )
            ),
        )

    def bytes_by_scheme(self) -> Counter[Scheme]:
        """Return how many bytes of tensors are stored in each scheme."""
        sizes: Counter[Scheme] = Counter()
        for tensor in self.tensors:
            sizes[tensor.scheme] += tensor.length_bytes
        return sizes

    @property
    def main_scheme(self) -> str:
        """The scheme that most bytes of tensors are stored in; empty without tensors."""
        return "".join(scheme.value for scheme, _ in self.bytes_by_scheme().most_common(1))

    def to_bytes(self) -> bytes:
        """Return the canonical JSON: the same header is always the same bytes."""
        return dump_canonical(self, default=_as_json)

    @classmethod
    def from_bytes(cls, raw: bytes) -> ZSEHeader:
        """Parse a header. Offsets are checked against a file by ``validate``, not here."""
        fields = Fields(parse_object(raw), "the header", _HEADER_KEYS)
        version = fields.count("format_version")
        if version != VERSION:
            raise Rule.UNSUPPORTED_VERSION(f"the header says version {version}, expected {VERSION}")
        if not fields.text("architecture"):
            raise Rule.BAD_HEADER_FIELD("the header: architecture is empty")
        return cls(
            format_version=version,
            architecture=fields.text("architecture"),
            model_config=fields.record("model_config"),
            tensors=tuple(TensorEntry.from_json(item) for item in fields.items("tensors")),
            groups=tuple(Group.from_json(item) for item in fields.items("groups")),
            sections=tuple(Section.from_json(item) for item in fields.items("sections")),
            provenance=fields.record("provenance"),
        )


_HEADER_KEYS = _keys(ZSEHeader)
