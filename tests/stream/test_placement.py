"""Placements of whole groups: every byte lands where the placement says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from placed_bytes import fill, held_bytes, make_file

from zse.stream.placement import ModelTable, SomeGroups, WholeFile
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


def test_some_groups_lie_one_behind_the_other_and_nothing_else_does() -> None:
    file = make_file()
    names = [group.name for group in file.header.groups][::2]
    some = SomeGroups(file.header, names)
    block = fill(plan_reads(some), file.data, some.length_bytes)
    assert some.length_bytes < WholeFile(file.header).length_bytes
    assert [group.name for group in some.header.groups] == names
    assert 0 < len(some.header.tensors) < len(file.header.tensors)
    for entry in some.header.tensors:
        assert held_bytes(some, entry, block) == [file.part(part) for part in entry.parts]


def test_models_of_a_table_lie_beside_each_other() -> None:
    files = {"a": make_file(seed=1), "b": make_file(layers=5, scheme="int8", seed=2)}
    table = ModelTable({"a": WholeFile(files["a"].header), "b": WholeFile(files["b"].header)})
    block = bytearray(table.length_bytes)
    for name, file in files.items():
        fill(plan_reads(table.of(name)), file.data, table.length_bytes, block)
    for name, file in files.items():
        for entry in file.header.tensors:
            expected = [file.part(part) for part in entry.parts]
            assert held_bytes(table.of(name), entry, block) == expected
    with pytest.raises(KeyError):
        table.of("c")
