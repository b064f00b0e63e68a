"""Plans of windows: as much stays as fits, and what streams lies evenly apart."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from placed_bytes import fill, held_bytes, make_file

from zse.errors import DeviceError, UsageError
from zse.stream import fit
from zse.stream.fit import plan_streaming, plan_window
from zse.stream.plan import plan_reads
from zse.stream.window import WindowBlocks, WindowPlacement

HEADERS = {layers: make_file(layers=layers).header for layers in (3, 5, 8, 13)}


class FlatGpu:
    """Blocks far apart, in an order of its own."""

    def __init__(self) -> None:
        self.next = 1 << 20
        self.freed: list[object] = []

    def allocate(self, length_bytes):
        gpu = self

        class Block:
            address = gpu.next

            def free(self):
                gpu.freed.append(self)

        block = Block()
        block.length_bytes = length_bytes
        self.next += length_bytes + 8192
        return block


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(HEADERS)), st.integers(2, 4), st.floats(0.0, 1.2))
def test_a_plan_keeps_within_its_budget_and_holds_every_layer_once(layers, slots, share):
    header = HEADERS[layers]
    whole = sum(group.length_bytes + 4096 for group in header.groups)
    budget = int(share * whole)
    smallest = plan_window(header, 1 << 40, slots=slots, most_resident=1)
    if budget < smallest.ends_bytes + smallest.slots * smallest.slot_bytes:
        with pytest.raises(DeviceError, match="streaming needs at least"):
            plan_window(header, budget, slots=slots)
        return
    plan = plan_window(header, budget, slots=slots)
    assert plan.total_bytes <= budget
    names = {group.name for group in header.groups if group.name.startswith("layers.")}
    assert {*plan.resident, *plan.streamed} == names
    assert len(plan.resident) + len(plan.streamed) == layers
    if plan.streamed and plan.resident:
        assert len(plan.streamed) % plan.slots == 0
    more = plan_window(header, budget + 4096, slots=slots)
    assert len(more.resident) >= len(plan.resident)


def test_a_header_is_measured_once_however_many_plans_are_tried(monkeypatch):
    """With 80 layers, measuring it for each took most of a second of a start."""
    measured, members = [], fit.members
    monkeypatch.setattr(fit, "members", lambda header: measured.append(1) or members(header))
    header = HEADERS[13]
    whole = sum(group.length_bytes + 4096 for group in header.groups)
    assert len(plan_window(header, whole // 2).streamed) > 1
    assert len(measured) == 1


def test_layers_that_stream_lie_evenly_apart():
    header = HEADERS[13]
    plan = plan_window(header, 1 << 40, most_resident=9)
    places = [int(name.split(".")[1]) for name in plan.streamed]
    gaps = [after - before for before, after in itertools.pairwise(places)]
    assert len(places) == 4
    assert max(gaps) - min(gaps) <= 1


def test_a_bound_is_what_streams_over_what_the_link_moves():
    plan = plan_window(HEADERS[5], 1 << 40, most_resident=1)
    assert plan.steps_per_second(2.0 * plan.streamed_bytes) == 2.0
    assert plan_window(HEADERS[5], 1 << 40).steps_per_second(1.0) == float("inf")


@pytest.mark.parametrize("layers", [3, 5, 8])
@pytest.mark.parametrize("slots", [2, 4])
def test_where_all_could_stay_as_few_stream_as_there_are_slots(layers, slots):
    plan = plan_streaming(HEADERS[layers], 1 << 40, slots=slots)
    assert len(plan.streamed) == min(slots, layers)
    assert plan.slots == len(plan.streamed)
    small = plan_window(HEADERS[layers], 1 << 40, slots=slots, most_resident=1).total_bytes
    if plan_window(HEADERS[layers], small, slots=slots).streamed:
        assert plan_streaming(HEADERS[layers], small, slots=slots) == plan_window(
            HEADERS[layers], small, slots=slots
        )


def test_more_layers_than_fit_cannot_be_told_to_stay():
    header = HEADERS[8]
    budget = plan_window(header, 1 << 40, most_resident=2).total_bytes
    with pytest.raises(UsageError, match="8 layers are to stay"):
        plan_window(header, budget, most_resident=8)
    with pytest.raises(UsageError, match="1 slots"):
        plan_window(header, budget, slots=1)


@pytest.mark.parametrize("resident", [2, 4, 6])
def test_each_tensor_lies_where_it_is_said_to_when_its_layer_is_there(resident):
    file = make_file(layers=8)
    plan = plan_window(file.header, 1 << 40, most_resident=resident)
    gpu = FlatGpu()
    blocks = WindowBlocks(gpu, plan, {g.name: g.length_bytes for g in file.header.groups})
    placement = WindowPlacement(file.header, plan, blocks)
    memory = fill(plan_reads(placement), file.data, gpu.next)
    streamed = placement.streamed_reads(1 << 20)
    for name in plan.streamed:
        plan_of_one = next(group for group in streamed.groups if group.name == name)
        one = type("Plan", (), {"chunks": plan_of_one.chunks})
        fill(one, file.data, gpu.next, memory)
        for entry in file.header.tensors:
            is_streamed = any(entry.name.startswith(f"{other}.") for other in plan.streamed)
            if not is_streamed or entry.name.startswith(f"{name}.") or len(entry.shape) == 1:
                expected = [file.part(part) for part in entry.parts]
                assert held_bytes(placement, entry, memory) == expected
    given_up = plan.resident[0]
    blocks.give_up(given_up)
    assert len(gpu.freed) == 1
    less = WindowPlacement(file.header, plan.without(file.header, [given_up]), blocks)
    assert given_up in less.plan.streamed
    blocks.free()
    assert len(gpu.freed) == 1 + 1 + plan.slots + len(plan.resident) - 1


def test_memory_that_runs_out_half_way_is_given_back():
    class Short(FlatGpu):
        def allocate(self, length_bytes):
            if self.next > (1 << 20) + 30000:
                raise DeviceError("out of memory")
            return super().allocate(length_bytes)

    header = make_file(layers=8).header
    plan = plan_window(header, 1 << 40, most_resident=6)
    gpu = Short()
    with pytest.raises(DeviceError, match="out of memory"):
        WindowBlocks(gpu, plan, {group.name: group.length_bytes for group in header.groups})
    assert gpu.freed
