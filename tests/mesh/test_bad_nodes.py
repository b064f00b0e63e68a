"""Nodes that are wrong in their own way while others answer: each is named, none costs a token."""

from __future__ import annotations

import errno
import random
import time

import msgspec
import pytest
from mesh_requests import all_ready, requests_of, until
from slow_wire import SlowWire

from zse import __version__
from zse.errors import DiskFullError, MeshError
from zse.mesh import opening
from zse.mesh.handshake import Introduction
from zse.mesh.membership import Standing
from zse.mesh.opening import opener


@pytest.fixture
def pair(make_mesh):
    """A mesh of two nodes that stand by for each other."""
    mesh = make_mesh(2)
    mesh.join()
    until(lambda: all_ready(mesh))
    return mesh


@pytest.fixture
def wires(make_mesh):
    """Two nodes, each behind a wire that can be cut."""
    mesh = make_mesh(2)
    found = {name: SlowWire(node.address, 1e9) for name, node in mesh.nodes.items()}
    for name, node in mesh.nodes.items():
        node.address = found[name].address
    mesh.join()
    until(lambda: all_ready(mesh))
    yield mesh, found
    for wire in found.values():
        wire.close()


def ask_all(mesh, requests):
    for prompt, params in requests:
        mesh.answers.ask(prompt, **params)


def problems(mesh):
    return mesh.front.describe()["problems"]


def test_a_node_of_another_version_that_comes_later_is_named_and_given_nothing(pair, alone):
    requests = requests_of(11, count=2)
    late = pair.add("late", version="0.0.1")
    until(lambda: late.address in problems(pair))
    assert "node late runs zse 0.0.1, this is" in problems(pair)[late.address]
    ask_all(pair, requests)
    assert pair.answers.run() == alone(requests)
    assert "late" not in pair.front.peers.by_name
    late._own = Introduction("late", "node", __version__)
    until(lambda: "late" in pair.front.peers.by_name)
    until(lambda: late.address not in problems(pair))


def spoilt(node, change):
    opens = node._open_stage
    node._open_stage = lambda ask: change(opens, ask)
    return node


def lose(mesh, name):
    mesh.nodes.pop(name).close()
    until(lambda: mesh.front.membership.members[name].standing is Standing.DEAD)


def test_a_full_disk_on_one_node_leaves_the_others_to_stand_by_and_says_so(
    pair, alone, monkeypatch
):
    """It would have had to fetch the model: what the system says has words, and a name."""
    requests = requests_of(12, count=2)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    ask = pair.front._opens(pair.front.duties[0])
    opens = opener(pair.settings, threads=1)
    with monkeypatch.context() as patched:
        patched.setattr(opening, "open_file", full)
        with pytest.raises(DiskFullError, match="the disk is full"):
            opens(ask)
    spoilt(pair.add("full"), full)
    lose(pair, "n1")
    until(lambda: "full" in problems(pair))
    assert "No space left on device" in problems(pair)["full"]
    pair.add("sound")
    until(lambda: "sound" in {duty.node for duty in pair.front.duties})
    ask_all(pair, requests)
    assert pair.answers.run() == alone(requests)
    assert "full" not in {duty.node for duty in pair.front.duties}


def test_a_node_with_other_weights_that_comes_later_never_computes(pair, alone):
    requests = requests_of(13, count=2)
    node = pair.add("other")
    spoilt(node, lambda opens, ask: opens(msgspec.structs.replace(ask, digest="0" * 64)))
    lose(pair, "n1")
    until(lambda: "other" in problems(pair))
    assert "has other weights than the front's file" in problems(pair)["other"]
    ask_all(pair, requests)
    assert pair.answers.run() == alone(requests)
    assert {duty.node for duty in pair.front.duties} == {"n0"}


def test_a_processor_with_other_instructions_stands_by_for_nobody(pair):
    """It adds up in another order: a text that went over to it could go on as another one."""
    ask = pair.front._opens(pair.front.duties[0])
    assert " by " in ask.kind
    other = ask.kind.rpartition(" by ")[0] + " by Neon"
    with pytest.raises(MeshError, match=r"computes as .*, the one that it .* as .* by Neon"):
        pair.nodes["n1"]._open_stage(msgspec.structs.replace(ask, kind=other))


def test_clocks_that_jump_back_and_forth_lose_no_node_and_change_no_token(pair, alone, monkeypatch):
    requests = requests_of(14)
    rng, real = random.Random(4), time.time
    monkeypatch.setattr(time, "time", lambda: real() + rng.uniform(-1e9, 1e9))
    ask_all(pair, requests)
    assert pair.answers.run() == alone(requests)
    until(lambda: all_ready(pair))
    assert pair.front.num_failovers == 0


def test_a_partition_that_heals_brings_the_node_back_and_what_it_still_says_is_void(wires, alone):
    mesh, cut = wires
    requests = requests_of(15)
    ask_all(mesh, requests)
    mesh.answers.run(steps=8)
    until(lambda: all_ready(mesh))
    cut["n1"].is_cut = True
    expected = alone(requests)
    assert mesh.answers.run() == expected
    assert {duty.node for duty in mesh.front.duties} == {"n0"}
    assert mesh.front.membership.members["n1"].standing in (Standing.DEAD, Standing.CUT_OFF)
    cut["n1"].is_cut = False  # all that waited on the wire arrives now
    until(lambda: "n1" in {duty.node for duty in mesh.front.duties})
    ask_all(mesh, requests)
    assert list(mesh.answers.run().values())[len(requests) :] == list(expected.values())


def test_two_nodes_that_do_not_reach_each_other_cost_no_token_though_the_front_reaches_both(
    make_mesh, alone
):
    requests = requests_of(17)
    mesh = make_mesh(3)
    direct = mesh.nodes["n1"].address
    mesh.join()
    until(lambda: all_ready(mesh))
    wire = SlowWire(direct, 1e9)
    with mesh.front._lock:
        mesh.front.peers.by_name["n1"].address = wire.address  # for the other nodes alone
        mesh.front._give_order()
    ask_all(mesh, requests)
    mesh.answers.run(steps=6)
    until(lambda: all_ready(mesh))
    wire.is_cut = True
    assert mesh.answers.run() == alone(requests)
    assert mesh.front.num_failovers >= 1
    until(lambda: all_ready(mesh) and len({duty.node for duty in mesh.front.duties}) == 3)
    assert mesh.front.peers.by_name["n1"].address == direct
    wire.close()


def test_a_front_that_reaches_nobody_for_a_while_goes_on_when_the_wires_heal(wires, alone):
    """One node is given up, with the other nothing can be lost: it is waited for."""
    mesh, cut = wires
    requests = requests_of(16, count=3)
    ask_all(mesh, requests)
    mesh.answers.run(steps=4)
    until(lambda: all_ready(mesh))
    for wire in cut.values():
        wire.is_cut = True
    time.sleep(0.9)
    for wire in cut.values():
        wire.is_cut = False
    assert mesh.answers.run() == alone(requests)
