"""Where a model lies in memory that does not hold it: resident layers, slots, and what stays.

Addresses of a layer never change while the plan stands: captured graphs hold them. Each resident
layer is a block of its own, so that one can be given up without moving the others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.format.spec import PAGE
from zse.stream.fit import stays
from zse.stream.placement import Run, members, one_piece
from zse.stream.plan import plan_reads
from zse.units import align_up

if TYPE_CHECKING:
    from zse.device.gpu import Block, Gpu
    from zse.format.spec import Group, TensorEntry, ZSEHeader
    from zse.stream.fit import WindowPlan
    from zse.stream.plan import ReadPlan

_ALIGNMENT = 256


class WindowBlocks:
    """The memory of a plan, as blocks; it stands for one whose first address is the lowest.

    Raises:
        DeviceError: The memory is not free.
    """

    def __init__(self, gpu: Gpu, plan: WindowPlan, layer_bytes: dict[str, int]) -> None:
        self._gpu = gpu
        self._blocks: list[Block] = []
        try:
            self.ends = self._allocate(plan.ends_bytes)
            self.slots = [self._allocate(plan.slot_bytes) for _ in range(plan.slots)]
            self.layers = {name: self._allocate(layer_bytes[name]) for name in plan.resident}
        except BaseException:
            self.free()
            raise

    def _allocate(self, length_bytes: int) -> Block:
        self._blocks.append(self._gpu.allocate(max(align_up(length_bytes, PAGE), PAGE)))
        return self._blocks[-1]

    @property
    def address(self) -> int:
        return min(block.address for block in self._blocks)

    @property
    def length_bytes(self) -> int:
        """Of all blocks together, which do not lie side by side."""
        return sum(block.length_bytes for block in self._blocks)

    def give_up(self, name: str) -> None:
        """Free the block of a resident layer."""
        block = self.layers.pop(name)
        self._blocks.remove(block)
        block.free()

    def free(self) -> None:
        while self._blocks:
            self._blocks.pop().free()


class WindowPlacement:
    """Where tensors lie by a plan; see ``zse.stream.placement.Placement``.

    ``runs`` is what is loaded once: resident layers, the vectors of all layers, and what is no
    layer. ``streamed_reads`` is what passes for every step.
    """

    def __init__(self, header: ZSEHeader, plan: WindowPlan, blocks: WindowBlocks) -> None:
        self.header = header
        self.plan = plan
        self.origin_bytes = blocks.address
        self.length_bytes = blocks.length_bytes
        self._slot_of = {name: index % plan.slots for index, name in enumerate(plan.streamed)}
        self._starts = {name: blocks.slots[slot].address for name, slot in self._slot_of.items()}
        self._starts.update({name: block.address for name, block in blocks.layers.items()})
        self._vectors: dict[str, dict[str, int]] = {}
        self._group_of: dict[str, Group] = {}
        self._entries: dict[str, list[TensorEntry]] = {}
        address = blocks.ends.address
        for group, entries in members(header):
            self._entries[group.name] = entries
            self._group_of.update({entry.name: group for entry in entries})
            if group.name not in self._starts:
                self._starts[group.name] = address
                address += align_up(group.length_bytes, PAGE)
                continue
            for entry in filter(stays, entries):
                places = self._vectors[entry.name] = {}
                for part in entry.parts:
                    places[part.role] = address
                    address += align_up(part.length_bytes, _ALIGNMENT)
            address = align_up(address, _ALIGNMENT)

    def held(self, entry: TensorEntry) -> TensorEntry:
        """Return a tensor by addresses: ``origin_bytes`` is the lowest of them."""
        places = self._vectors.get(entry.name)
        if places is not None:
            parts = tuple(replace(part, offset_bytes=places[part.role]) for part in entry.parts)
            return replace(entry, parts=parts)
        group = self._group_of[entry.name]
        shift = self._starts[group.name] - group.offset_bytes
        parts = tuple(replace(part, offset_bytes=part.offset_bytes + shift) for part in entry.parts)
        return replace(entry, parts=parts)

    def runs(self, group: Group) -> tuple[Run, ...]:
        whole = one_piece(
            group.offset_bytes, group.length_bytes, self._starts[group.name] - self.origin_bytes
        )
        vectors = tuple(
            one_piece(
                part.offset_bytes,
                part.length_bytes,
                self._vectors[entry.name][part.role] - self.origin_bytes,
            )
            for entry in self._entries[group.name]
            if entry.name in self._vectors
            for part in entry.parts
        )
        return vectors if group.name in self._slot_of else (whole, *vectors)

    def slot_of(self, name: str) -> int:
        """Return the slot of a layer that streams, by the name of its group."""
        return self._slot_of[name]

    def streamed_reads(self, chunk_bytes: int) -> ReadPlan:
        """Plan what passes for a step: the layers that stream, whole, to their slots."""
        return plan_reads(_Streamed(self), groups=self.plan.streamed, chunk_bytes=chunk_bytes)

    def address_of(self, name: str) -> int:
        """Return where a group begins."""
        return self._starts[name]


class _Streamed:
    """The layers that stream, as a placement in which they are read whole."""

    def __init__(self, placement: WindowPlacement) -> None:
        self._placement = placement
        self.header = placement.header
        self.origin_bytes = placement.origin_bytes
        self.length_bytes = placement.length_bytes
        self.held = placement.held

    def runs(self, group: Group) -> tuple[Run, ...]:
        address = self._placement.address_of(group.name) - self.origin_bytes
        return (one_piece(group.offset_bytes, group.length_bytes, address),)
