"""Nodes whose layers several processes share: the same text, whichever of them is killed."""

from __future__ import annotations

import os
import signal

import pytest
from mesh_requests import all_ready, requests_of, until

from zse.mesh.devices import NodeDevices
from zse.mesh.shared_stage import SharedStage

TWO = NodeDevices(names=("cpu", "cpu"), shares=(2,))
EXACT = {"exact_activations": True}


def stages_of(node):
    return [host.part for host in node._worker._hosts.values()]


def computing(node):
    """Return the stage that a node computes, which is not the one that it stands by for."""
    return next(host.part for host in node._worker._hosts.values() if host.is_primary)


@pytest.fixture
def shared(make_mesh):
    mesh = make_mesh(2, devices=TWO)
    mesh.join(load=EXACT)
    return mesh


def test_a_killed_rank_and_a_lost_node_of_two_cost_no_token(shared, alone):
    requests = requests_of(7)
    mesh, answers = shared, shared.answers
    for prompt, params in requests:
        answers.ask(prompt, **params)
    answers.run(steps=10)
    until(lambda: all_ready(mesh))
    assert all(isinstance(stage, SharedStage) for stage in stages_of(mesh.nodes["n1"]))
    answers.run(steps=3)
    os.kill(computing(mesh.nodes["n1"])._group._processes[0].pid, signal.SIGKILL)
    answers.run(steps=4)
    until(lambda: mesh.front.num_failovers == 1)
    until(lambda: {duty.node for duty in mesh.front.duties} == {"n0", "n1"} and all_ready(mesh))
    answers.run(steps=3)  # its ranks were started again, and it computes a stage
    mesh.nodes.pop("n0").close()
    assert answers.run() == alone(requests, **EXACT)
    assert mesh.front.num_failovers >= 2
    assert {duty.node for duty in mesh.front.duties} == {"n1"}
