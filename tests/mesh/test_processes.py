"""Nodes that are processes, and what happens to them: killed, stopped, and back again."""

from __future__ import annotations

import signal

import pytest
from forked_nodes import ForkedNodes
from mesh_requests import all_ready, requests_of, until

from zse.mesh.membership import Standing

SECRET = "a secret of processes"


@pytest.fixture
def processes(make_mesh):
    """A mesh without nodes of its own, joined to four processes."""
    with ForkedNodes(4, SECRET) as nodes:
        mesh = make_mesh(0)
        mesh.forked = nodes
        mesh.join_processes()
        yield mesh


def test_a_node_is_killed_in_mid_answer_and_another_stops_and_comes_back(processes, alone):
    requests = requests_of(3)
    mesh, answers = processes, processes.answers
    for prompt, params in requests:
        answers.ask(prompt, **params)
    answers.run(steps=12)
    until(lambda: all_ready(mesh))
    answers.run(steps=4)
    mesh.forked.signal("n2", signal.SIGKILL)
    answers.run(steps=8)
    assert mesh.front.membership.members["n2"].standing is Standing.DEAD
    until(lambda: all_ready(mesh))
    mesh.forked.signal("n1", signal.SIGSTOP)
    expected = alone(requests)
    assert answers.run() == expected
    assert {duty.node for duty in mesh.front.duties} <= {"n0", "n3"}
    mesh.forked.signal("n1", signal.SIGCONT)  # what it goes on to send is of an older epoch
    until(lambda: "n1" in {duty.node for duty in mesh.front.duties}, seconds=10)
    for prompt, params in requests:
        answers.ask(prompt, **params)
    texts = answers.run()
    assert list(texts.values())[len(requests) :] == list(expected.values())
