"""Checks a header against the size of its file, before anything is sliced.

Every check is a sort or a single pass, so a header with many entries costs O(n log n).
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING

from zse.format.container import check_aligned, check_end, check_inside, check_unique
from zse.format.errors import Rule
from zse.format.spec import (
    HEADER_SLACK,
    PAGE,
    REGION_ALIGN,
    TENSOR_ALIGN,
    Group,
    TensorEntry,
    TensorPart,
    ZSEHeader,
)
from zse.units import align_up

if TYPE_CHECKING:
    from collections.abc import Iterable


def validate(
    header: ZSEHeader, *, header_end_bytes: int, file_size_bytes: int
) -> dict[str, tuple[TensorEntry, ...]]:
    """Check names, alignment, bounds, overlap and order.

    Args:
        header_end_bytes: Offset of the first byte after the header's JSON.

    Returns:
        The tensors of each group, by group name.

    Raises:
        FormatError: Its ``rule`` says what is broken.
    """
    check_unique("tensor", (tensor.name for tensor in header.tensors))
    check_unique("group", (group.name for group in header.groups))
    check_unique("section", (section.name for section in header.sections))
    _check_alignment(header)
    _check_bounds(header, file_size_bytes)
    _check_parts(header)
    _check_regions(header, header_end_bytes)
    members = _tensors_by_group(header)
    # Without sections and groups, only the padding after the header is left.
    ends = [region.end_bytes for region in header.regions] or [header_end_bytes + HEADER_SLACK]
    check_end(align_up(max(ends), PAGE), file_size_bytes)
    return members


def _check_alignment(header: ZSEHeader) -> None:
    for section in header.sections:
        check_aligned(Rule.MISALIGNED_SECTION, section.where, section.offset_bytes, PAGE)
    for tensor, part in _all_parts(header):
        where = f"tensor {tensor.name}, part {part.role}"
        check_aligned(Rule.MISALIGNED_TENSOR, where, part.offset_bytes, TENSOR_ALIGN)
    for index, group in enumerate(header.groups):
        alignment = PAGE if index else REGION_ALIGN
        check_aligned(Rule.MISALIGNED_GROUP, group.where, group.offset_bytes, alignment)
        if group.length_bytes % PAGE:
            raise Rule.MISALIGNED_GROUP(
                f"{group.where}: length {group.length_bytes} is not a multiple of {PAGE}"
            )


def _check_bounds(header: ZSEHeader, size_bytes: int) -> None:
    for section in header.sections:
        check_inside(Rule.TRUNCATED_SECTION, section.where, section.end_bytes, size_bytes)
    for tensor, part in _all_parts(header):
        where = f"tensor {tensor.name}, part {part.role},"
        check_inside(Rule.TRUNCATED_TENSOR, where, part.end_bytes, size_bytes)
    for group in header.groups:
        check_inside(Rule.TRUNCATED_GROUP, group.where, group.end_bytes, size_bytes)


def _check_regions(header: ZSEHeader, header_end_bytes: int) -> None:
    for before, after in pairwise(header.groups):
        if after.offset_bytes > before.end_bytes or after.offset_bytes < before.offset_bytes:
            raise Rule.GROUP_GAP(
                f"group {after.name} starts at {after.offset_bytes}, expected {before.end_bytes}, "
                f"where group {before.name} ends"
            )
    end_bytes, owner = header_end_bytes, "the header"
    for region in sorted(header.regions, key=lambda r: (r.offset_bytes, r.end_bytes)):
        if region.length_bytes == 0:
            continue
        if region.offset_bytes < end_bytes:
            raise Rule.OVERLAPPING_REGIONS(
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
            raise Rule.OVERLAPPING_TENSORS(
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
            raise Rule.TENSOR_OUTSIDE_GROUP(f"tensor {tensor.name} does not lie inside one group")
        members[name].append(tensor)
    for group_name, tensors in members.items():
        if not tensors:
            raise Rule.EMPTY_GROUP(f"group {group_name} holds no tensor")
    return {group_name: tuple(tensors) for group_name, tensors in members.items()}


def _group_of(part: TensorPart, starts: list[int], groups: tuple[Group, ...]) -> str | None:
    index = bisect_right(starts, part.offset_bytes) - 1
    if index < 0 or part.end_bytes > groups[index].end_bytes:
        return None
    return groups[index].name


def _all_parts(header: ZSEHeader) -> Iterable[tuple[TensorEntry, TensorPart]]:
    return ((tensor, part) for tensor in header.tensors for part in tensor.parts)
