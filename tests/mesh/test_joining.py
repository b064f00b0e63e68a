"""Who is there at a front's start and cannot compute is left out, where enough others can."""

from __future__ import annotations

import errno

import pytest
from mesh_requests import all_ready, requests_of, until

from zse.errors import MeshError, ZSEError


def full(_ask):
    raise MeshError("the disk is full")


@pytest.mark.parametrize("split", ["even", "auto"])
def test_a_node_that_cannot_open_its_layers_is_left_out_and_named(make_mesh, alone, split):
    requests = requests_of(21, count=2)
    mesh = make_mesh(3)
    mesh.nodes["n1"]._open_stage = full
    mesh.join(least=2, split=split)
    assert {duty.node for duty in mesh.front.duties} <= {"n0", "n2"}
    assert "the disk is full" in mesh.front.describe()["problems"]["n1"]
    for prompt, params in requests:
        mesh.answers.ask(prompt, **params)
    assert mesh.answers.run() == alone(requests)


def test_too_few_that_can_is_an_error_of_the_one_that_cannot(make_mesh):
    mesh = make_mesh(3)
    mesh.nodes["n1"]._open_stage = full
    with pytest.raises(MeshError, match="n1: the disk is full"):
        mesh.join(least=3)


def test_nodes_that_all_cannot_are_an_error_too(make_mesh):
    mesh = make_mesh(2)
    for node in mesh.nodes.values():
        node._open_stage = full
    with pytest.raises(MeshError, match=r"n\d: the disk is full"):
        mesh.join(least=1)


@pytest.mark.parametrize("split", ["even", "memory", "auto"])
def test_nodes_that_do_not_reach_each_other_are_named_before_a_token_is_asked_for(make_mesh, split):
    mesh = make_mesh(2)
    first, other = mesh.nodes["n0"], mesh.nodes["n1"].address
    call = first._call

    def blocked(purpose, address, seconds):
        if address == other:
            raise MeshError(f"{address} cannot be reached: {errno.errorcode[errno.EHOSTUNREACH]}")
        return call(purpose, address, seconds)

    first._call = blocked
    with pytest.raises(ZSEError, match=f"node n0 does not reach n1 at {other}") as caught:
        mesh.join(split=split)
    assert "--advertise" in caught.value.hint


def test_a_stage_that_was_opened_for_a_plan_that_was_given_up_is_closed(make_mesh):
    mesh = make_mesh(3)
    mesh.nodes["n2"]._open_stage = full
    mesh.join(least=2)
    until(lambda: all_ready(mesh))
    held = {(who, d.layers) for d in mesh.front.duties for who in (d.node, d.standby)}
    until(lambda: stages_of(mesh) == held)


def stages_of(mesh):
    return {(name, key) for name, node in mesh.nodes.items() for key in node._worker._hosts}


def test_more_nodes_than_layers_leave_some_free_to_take_the_place_of_who_is_lost(make_mesh, alone):
    requests = requests_of(23, count=2)
    mesh = make_mesh(5)
    mesh.join()
    assert [duty.node for duty in mesh.front.duties] == ["n0", "n1", "n2", "n3"]
    until(lambda: all_ready(mesh))
    mesh.nodes.pop("n2").close()
    until(lambda: "n4" in {duty.node for duty in mesh.front.duties})
    for prompt, params in requests:
        mesh.answers.ask(prompt, **params)
    assert mesh.answers.run() == alone(requests)
