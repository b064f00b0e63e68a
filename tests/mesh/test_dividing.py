"""What nodes compute at first, where some have several devices that may share a layer."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from zse import __version__
from zse.engine.opening import open_file
from zse.errors import UsageError
from zse.mesh.dividing import divide, num_blocks_of
from zse.mesh.duties import Duty
from zse.mesh.finding import Finder
from zse.mesh.joining import MeshSetup
from zse.mesh.messages import Facts, Look
from zse.models.runner import spec_of
from zse.option import with_values
from zse.options import load_options
from zse.settings import load_settings

SLOW, FAST = 1e7, 1e12


@pytest.fixture(scope="module")
def tiny():
    """The built-in model: 4 layers of 4 heads, 2 of keys and values."""
    options = load_options(device="cpu", block_size=8, max_sequences=1)
    with open_file("tiny", options, load_settings()) as reader:
        spec = spec_of(reader)
        yield reader, spec, with_values(options, {"max_context": spec.max_position})


def node(name, shares=(1,), rate=SLOW, sums_seconds=0.0):
    facts = Facts(name, 1 << 30, rate, 1, __version__, "a test", shares, sums_seconds)
    return SimpleNamespace(
        name=name, facts=facts, address=name, answer=lambda *_: Look(True, 1e-4, 1e9)
    )


def divided(tiny, *nodes, split="auto"):
    setup = MeshSetup(secret=b"", finder=Finder(list), split=split)
    duties, _ = divide(*tiny, setup, list(nodes))
    return [(duty.node, duty.end_layer, duty.devices) for duty in duties]


def test_devices_share_layers_where_that_is_faster(tiny):
    assert divided(tiny, node("a", (1, 2))) == [("a", 4, 2)]
    dear = node("a", (1, 2), FAST, sums_seconds=0.01)
    assert divided(tiny, dear) == [("a", 4, 1)]
    assert divided(tiny, node("a", (2,), FAST, sums_seconds=0.01)) == [("a", 4, 2)]


@pytest.mark.parametrize("split", ["even", "memory"])
def test_a_split_without_a_plan_uses_all_devices_of_each_node(tiny, split):
    found = divided(tiny, node("a", (1, 2)), node("b"), split=split)
    assert [devices for *_, devices in found] == [2, 1]


def test_numbers_of_devices_that_the_model_cannot_be_divided_by_are_not_planned_with(tiny):
    assert divided(tiny, node("a", (1, 3)), split="even") == [("a", 4, 1)]
    assert divided(tiny, node("a", (1, 2, 3, 6))) == [("a", 4, 2)]
    with pytest.raises(UsageError, match="4 heads"):
        divided(tiny, node("a", (3,)))


def test_devices_that_share_layers_have_room_for_more_blocks(tiny):
    reader, spec, options = tiny
    options = with_values(options, {"max_sequences": 64})

    def blocks(devices):
        small = node("a", (1, 2))
        small.facts.memory_bytes = 1 << 20
        duties = (Duty(first_layer=0, end_layer=4, node="a", devices=devices),)
        return num_blocks_of(reader, spec, options, duties, [small])

    assert blocks(2) == 2 * blocks(1)
