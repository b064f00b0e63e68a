"""Checks a header against the size of its file, before anything is sliced.

Every check is a sort or a single pass, so a header with many entries costs O(n log n).
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING

from zse.format.errors import (
    DuplicateName,
    EmptyGroup,
    GroupGap,
    MisalignedGroup,
    MisalignedSection,
    MisalignedTensor,
    OverlappingRegions,
    OverlappingTensors,
    TensorOutsideGroup,
    TrailingBytes,
    TruncatedGroup,
    TruncatedSection,
    TruncatedTensor,
)
from zse.format.spec import (
    HEADER_SLACK,
    PAGE,
    REGION_ALIGN,
    TENSOR_ALIGN,
    Group,
    Region,
    TensorEntry,
    TensorPart,
    ZSEHeader,
    align_up,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zse.errors import FormatError


def validate(
    header: ZSEHeader, *, header_end_bytes: int, file_size_bytes: int
) -> dict[str, tuple[TensorEntry, ...]]:
    """Check names, alignment, bounds, overlap and order.

    Args:
        header: A parsed header.
        header_end_bytes: Offset of the first byte after the header's JSON.
        file_size_bytes: Size of the file that the header came from.

    Returns:
        The tensors of each group, by group name.

    Raises:
        FormatError: A subclass that names the broken rule.
    """
    _check_unique("tensor", (tensor.name for tensor in header.tensors))
    _check_unique("group", (group.name for group in header.groups))
    _check_unique("section", (section.name for section in header.sections))
    _check_alignment(header)
    _check_bounds(header, file_size_bytes)
    _check_parts(header)
    _check_regions(header, header_end_bytes)
    members = _tensors_by_group(header)
    _check_file_end(header, header_end_bytes, file_size_bytes)
    return members


def _check_unique(kind: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DuplicateName(f"the {kind} name {name[:80]!r} stands twice")
        seen.add(name)


def _check_alignment(header: ZSEHeader) -> None:
    for section in header.sections:
        if section.offset_bytes % PAGE:
            raise MisalignedSection(
                f"section {section.name}: offset {section.offset_bytes} is not a multiple of {PAGE}"
            )
    for tensor, part in _all_parts(header):
        if part.offset_bytes % TENSOR_ALIGN:
            raise MisalignedTensor(
                f"tensor {tensor.name}, part {part.role}: offset {part.offset_bytes} "
                f"is not a multiple of {TENSOR_ALIGN}"
            )
    for index, group in enumerate(header.groups):
        alignment = REGION_ALIGN if index == 0 else PAGE
        if group.offset_bytes % alignment:
            raise MisalignedGroup(
                f"group {group.name}: offset {group.offset_bytes} is not a multiple of {alignment}"
            )
        if group.length_bytes % PAGE:
            raise MisalignedGroup(
                f"group {group.name}: length {group.length_bytes} is not a multiple of {PAGE}"
            )


def _check_bounds(header: ZSEHeader, file_size_bytes: int) -> None:
    def check(error: type[FormatError], what: str, end_bytes: int) -> None:
        if end_bytes > file_size_bytes:
            raise error(f"{what} ends at byte {end_bytes}, but the file has {file_size_bytes}")

    for section in header.sections:
        check(TruncatedSection, f"section {section.name}", section.end_bytes)
    for tensor, part in _all_parts(header):
        check(TruncatedTensor, f"tensor {tensor.name}, part {part.role},", part.end_bytes)
    for group in header.groups:
        check(TruncatedGroup, f"group {group.name}", group.end_bytes)


def _check_regions(header: ZSEHeader, header_end_bytes: int) -> None:
    for before, after in pairwise(header.groups):
        if after.offset_bytes > before.end_bytes or after.offset_bytes < before.offset_bytes:
            raise GroupGap(
                f"group {after.name} starts at {after.offset_bytes}, expected {before.end_bytes}, "
                f"where group {before.name} ends"
            )
    regions: list[Region] = sorted(
        (*header.sections, *header.groups), key=lambda r: (r.offset_bytes, r.end_bytes)
    )
    end_bytes, owner = header_end_bytes, "the header"
    for region in regions:
        if region.length_bytes == 0:
            continue
        if region.offset_bytes < end_bytes:
            raise OverlappingRegions(
                f"{region.name} starts at {region.offset_bytes}, inside {owner}, "
                f"which ends at {end_bytes}"
            )
        end_bytes, owner = region.end_bytes, region.name


def _check_parts(header: ZSEHeader) -> None:
    spans = sorted(
        (part.offset_bytes, part.end_bytes, tensor.name, part.role)
        for tensor, part in _all_parts(header)
    )
    for before, after in pairwise(spans):
        if after[0] < before[1]:
            raise OverlappingTensors(
                f"tensor {after[2]}, part {after[3]}, starts at {after[0]}, inside "
                f"tensor {before[2]}, part {before[3]}, which ends at {before[1]}"
            )


def _tensors_by_group(header: ZSEHeader) -> dict[str, tuple[TensorEntry, ...]]:
    starts = [group.offset_bytes for group in header.groups]
    members: dict[str, list[TensorEntry]] = {group.name: [] for group in header.groups}
    for tensor in header.tensors:
        found = {_group_of(part, starts, header.groups) for part in tensor.parts}
        name = found.pop()
        if name is None or found:
            raise TensorOutsideGroup(f"tensor {tensor.name} does not lie inside one group")
        members[name].append(tensor)
    for group_name, tensors in members.items():
        if not tensors:
            raise EmptyGroup(f"group {group_name} holds no tensor")
    return {group_name: tuple(tensors) for group_name, tensors in members.items()}


def _group_of(part: TensorPart, starts: list[int], groups: tuple[Group, ...]) -> str | None:
    index = bisect_right(starts, part.offset_bytes) - 1
    if index < 0 or part.end_bytes > groups[index].end_bytes:
        return None
    return groups[index].name


def _check_file_end(header: ZSEHeader, header_end_bytes: int, file_size_bytes: int) -> None:
    # Without sections and groups, only the padding after the header is left.
    ends = [region.end_bytes for region in (*header.sections, *header.groups)]
    end_bytes = align_up(max(ends, default=header_end_bytes + HEADER_SLACK), PAGE)
    if file_size_bytes > end_bytes:
        raise TrailingBytes(
            f"the file has {file_size_bytes} bytes, but everything listed ends at {end_bytes}"
        )


def _all_parts(header: ZSEHeader) -> Iterable[tuple[TensorEntry, TensorPart]]:
    return ((tensor, part) for tensor in header.tensors for part in tensor.parts)
