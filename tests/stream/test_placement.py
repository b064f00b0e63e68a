"""Placements of whole groups: every byte lands where the placement says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from placed_bytes import fill, held_bytes, make_file

from zse.errors import UsageError
from zse.stream.placement import LayerWindow, ModelTable, WholeFile
from zse.stream.plan import plan_reads


@settings(max_examples=40, deadline=None)
@given(chunk_pages=st.integers(1, 9))
def test_the_block_of_a_whole_file_mirrors_its_tensor_region(chunk_pages: int) -> None:
    file = make_file()
    whole = WholeFile(file.header)
    block = fill(plan_reads(whole, chunk_bytes=chunk_pages * 4096), file.data, whole.length_bytes)
    assert block == file.data[whole.origin_bytes : whole.origin_bytes + whole.length_bytes]
    for entry in file.header.tensors:
        assert held_bytes(whole, entry, block) == [file.part(part) for part in entry.parts]


def test_a_whole_file_is_planned_without_a_look_at_its_tensors() -> None:
    header = make_file().header
    bare = replace(header, tensors=())
    assert plan_reads(WholeFile(bare)) == plan_reads(WholeFile(header))
    assert all(group.sha256 for group in plan_reads(WholeFile(header)).groups)


@settings(max_examples=40, deadline=None)
@given(layers=st.integers(1, 7), slots=st.integers(1, 9))
def test_a_window_holds_the_last_layers_and_all_that_is_no_layer(layers: int, slots: int) -> None:
    file = make_file(layers=layers)
    window = LayerWindow(file.header, slots)
    block = fill(plan_reads(window, groups=["embed", "final"]), file.data, window.length_bytes)
    for layer in range(layers):
        plan = plan_reads(window, groups=[f"layers.{layer}"])
        fill(plan, file.data, window.length_bytes, block)
        gone = [f"layers.{index}." for index in range(layers) if not layer - slots < index <= layer]
        for entry in file.header.tensors:
            if not entry.name.startswith(tuple(gone)):
                expected = [file.part(part) for part in entry.parts]
                assert held_bytes(window, entry, block) == expected


def test_layers_a_window_apart_have_the_same_addresses_and_neighbours_share_nothing() -> None:
    file = make_file(layers=5)
    window = LayerWindow(file.header, 2)
    places = [
        [part.offset_bytes for part in window.held(entry).parts]
        for entry in file.header.tensors
        if entry.name.endswith("qkv.weight")
    ]
    assert places[0] == places[2] == places[4]
    assert places[1] == places[3]
    assert not set(places[0]) & set(places[1])
    assert window.length_bytes < WholeFile(file.header).length_bytes


def test_a_window_of_every_layer_takes_no_more_than_the_file() -> None:
    header = make_file(layers=4).header
    assert LayerWindow(header, 9).length_bytes == WholeFile(header).length_bytes


def test_a_window_without_a_layer_is_refused() -> None:
    with pytest.raises(UsageError, match="window of 0 layers"):
        LayerWindow(make_file().header, 0)


def test_models_of_a_table_lie_beside_each_other() -> None:
    files = {"a": make_file(seed=1), "b": make_file(layers=5, scheme="int8", seed=2)}
    table = ModelTable({"a": WholeFile(files["a"].header), "b": LayerWindow(files["b"].header, 5)})
    block = bytearray(table.length_bytes)
    for name, file in files.items():
        fill(plan_reads(table.of(name)), file.data, table.length_bytes, block)
    for name, file in files.items():
        for entry in file.header.tensors:
            expected = [file.part(part) for part in entry.parts]
            assert held_bytes(table.of(name), entry, block) == expected
    with pytest.raises(KeyError):
        table.of("c")
