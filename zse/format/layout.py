"""Decides where everything lies, before the first byte is written.

Offsets stand in the header and the header's length moves the offsets, so the layout is repeated
until it holds still. It only ever grows, and so it ends.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from zse.format.container import PREFIX_BYTES, check_unique
from zse.format.errors import Rule
from zse.format.names import check_tensor_name
from zse.format.schemes import Scheme, bytes_of_shape, parts_for
from zse.format.spec import (
    CONTAINER,
    HEADER_SLACK,
    PAGE,
    REGION_ALIGN,
    TENSOR_ALIGN,
    Group,
    Section,
    TensorEntry,
    TensorPart,
    ZSEHeader,
)
from zse.records import record
from zse.units import align_up

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

UNKNOWN_DIGEST = "0" * 64


@record
class PlannedTensor:
    """A tensor that will be written: its name, scheme, logical shape and group size."""

    name: str
    scheme: Scheme
    shape: tuple[int, ...]
    group_size: int = 0


@record
class PlannedFile:
    """What a file will hold, without offsets."""

    architecture: str
    model_config: Mapping[str, Any]
    provenance: Mapping[str, Any]
    sections: Sequence[tuple[str, bytes]] = ()
    groups: Sequence[tuple[str, Sequence[PlannedTensor]]] = ()


@record
class Layout:
    """Where everything lies. Group digests in ``header`` are zeros until the data is known."""

    header: ZSEHeader
    members: Mapping[str, tuple[TensorEntry, ...]] = field(repr=False)
    file_size_bytes: int


def plan_layout(planned: PlannedFile) -> Layout:
    """Lay a file out: header space, sections, then the tensor region.

    Raises:
        FormatError: Two tensors, groups or sections have one name. A group holds no tensor. The
            header would be over the limit. A name, shape or group size is not allowed.
    """
    _check_names(planned)
    header_space = PAGE
    while True:
        layout = _place(planned, header_space)
        length = len(layout.header.to_bytes())
        if length > CONTAINER.max_header_bytes:
            raise Rule.HEADER_TOO_LARGE(
                f"the header takes {length} bytes, the limit is {CONTAINER.max_header_bytes}"
            )
        needed = align_up(PREFIX_BYTES + length + HEADER_SLACK, PAGE)
        if needed <= header_space:
            return layout
        header_space = needed


def _check_names(planned: PlannedFile) -> None:
    tensors = [tensor.name for _, members in planned.groups for tensor in members]
    groups = [name for name, _ in planned.groups]
    check_unique("tensor", tensors)
    check_unique("group", groups)
    check_unique("section", (name for name, _ in planned.sections))
    for name in (*groups, *tensors):
        check_tensor_name(name)
    for name, members in planned.groups:
        if not members:
            raise Rule.EMPTY_GROUP(f"group {name} is planned without a tensor")


def _place(planned: PlannedFile, header_space: int) -> Layout:
    offset = header_space
    sections = []
    for name, data in planned.sections:
        sections.append(Section.of(name, offset, data))
        offset = align_up(offset + len(data), PAGE)
    if planned.groups:
        offset = align_up(offset, REGION_ALIGN)
    groups: list[Group] = []
    members: dict[str, tuple[TensorEntry, ...]] = {}
    for name, tensors in planned.groups:
        start = offset
        entries = []
        for tensor in tensors:
            entry = _place_tensor(tensor, align_up(offset, TENSOR_ALIGN))
            offset = entry.parts[-1].end_bytes
            entries.append(entry)
        offset = align_up(offset, PAGE)
        members[name] = tuple(entries)
        groups.append(
            Group(name=name, offset_bytes=start, length_bytes=offset - start, sha256=UNKNOWN_DIGEST)
        )
    header = ZSEHeader(
        architecture=planned.architecture,
        model_config=planned.model_config,
        provenance=planned.provenance,
        sections=tuple(sections),
        groups=tuple(groups),
        tensors=tuple(entry for entries in members.values() for entry in entries),
    )
    return Layout(header=header, members=members, file_size_bytes=offset)


def _place_tensor(tensor: PlannedTensor, offset_bytes: int) -> TensorEntry:
    parts = []
    for role, dtype, shape in parts_for(tensor.scheme, tensor.shape, tensor.group_size):
        offset_bytes = align_up(offset_bytes, TENSOR_ALIGN)
        length = bytes_of_shape(dtype, shape)
        parts.append(
            TensorPart(
                role=role, dtype=dtype, shape=shape, offset_bytes=offset_bytes, length_bytes=length
            )
        )
        offset_bytes += length
    return TensorEntry(
        name=tensor.name,
        scheme=tensor.scheme,
        shape=tensor.shape,
        group_size=tensor.group_size,
        parts=tuple(parts),
    )
