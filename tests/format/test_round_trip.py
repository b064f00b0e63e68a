"""Any plan that the writer accepts comes back from the reader as it was."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from zse.format import Scheme, ZSEReader, ZSEWriter
from zse.format.layout import PlannedTensor
from zse.format.schemes import PACKED_COLUMNS, bytes_of_shape, group_sizes, parts_for
from zse.format.spec import ZSEHeader

NAME = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,40}", fullmatch=True)
SECTION_NAME = st.lists(
    st.from_regex(r"[A-Za-z0-9_\-][A-Za-z0-9_.\-]{0,20}", fullmatch=True), min_size=1, max_size=3
).map("/".join)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def planned_tensors(draw: st.DrawFn) -> PlannedTensor:
    scheme = draw(st.sampled_from(list(Scheme)))
    group_size = 0
    if scheme.is_plain:
        shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    elif scheme is Scheme.INT8:
        shape = (draw(st.integers(1, 9)), draw(st.integers(1, 70)))
    else:
        group_size = draw(st.sampled_from(group_sizes(scheme)))
        shape = (draw(st.integers(1, 5)), max(group_size, PACKED_COLUMNS) * draw(st.integers(1, 3)))
    return PlannedTensor(name=draw(NAME), scheme=scheme, shape=shape, group_size=group_size)


GROUPS = st.lists(
    st.tuples(NAME, st.lists(planned_tensors(), min_size=1, max_size=3)), max_size=3
).filter(
    lambda groups: (
        _unique([n for n, _ in groups]) and _unique([t.name for _, ts in groups for t in ts])
    )
)
SECTIONS = st.dictionaries(SECTION_NAME, st.binary(max_size=5000), max_size=3)


def _unique(names: list[str]) -> bool:
    return len(set(names)) == len(names)


def contents(tensor: PlannedTensor) -> dict[str, bytes]:
    return {
        role: _bytes_like(tensor.name, bytes_of_shape(dtype, shape))
        for role, dtype, shape in parts_for(tensor.scheme, tensor.shape, tensor.group_size)
    }


def _bytes_like(name: str, length: int) -> bytes:
    return (name.encode() * length)[:length].translate(_SAFE)


# Bytes below 0x40 make no exponent of all ones, so every float is finite.
_SAFE = bytes(byte & 0x3F for byte in range(256))


@settings(max_examples=40, deadline=None)
@given(
    groups=GROUPS,
    sections=SECTIONS,
    model_config=st.dictionaries(TEXT, JSON, max_size=4),
    provenance=st.dictionaries(TEXT, JSON, max_size=4),
)
def test_what_is_written_is_what_is_read(
    groups: list[tuple[str, list[PlannedTensor]]],
    sections: dict[str, bytes],
    model_config: dict[str, Any],
    provenance: dict[str, Any],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.zse"
        writer = ZSEWriter(path, architecture="x", model_config=model_config, provenance=provenance)
        with writer:
            for name, data in sections.items():
                writer.add_section(name, data)
            writer.plan(groups)
            for _, tensors in groups:
                for tensor in tensors:
                    for role, data in contents(tensor).items():
                        writer.write_part(tensor.name, role, data)
        with ZSEReader(path) as reader:
            reader.verify()
            assert reader.header.model_config == model_config
            assert reader.header.provenance == provenance
            assert {name: bytes(reader.section(name)) for name in sections} == sections
            for name, tensors in groups:
                assert [entry.name for entry in reader.tensors_of(name)] == [
                    t.name for t in tensors
                ]
                for tensor in tensors:
                    entry = reader.entry(tensor.name)
                    assert (entry.scheme, entry.shape) == (tensor.scheme, tensor.shape)
                    for role, data in contents(tensor).items():
                        assert reader.part(tensor.name, role) == data
            assert ZSEHeader.from_bytes(reader.header.to_bytes()) == reader.header
