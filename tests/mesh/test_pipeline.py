from __future__ import annotations

import pytest
from mesh_requests import all_ready, requests_of, until

from zse.mesh.membership import Standing


def test_four_nodes_write_what_one_process_does(make_mesh, alone):
    requests = requests_of(1)
    mesh = make_mesh(4)
    answers = mesh.join()
    for prompt, params in requests:
        answers.ask(prompt, **params)
    assert answers.run() == alone(requests)
    assert [duty.node for duty in mesh.front.duties] == ["n0", "n1", "n2", "n3"]


@pytest.mark.parametrize("lost", ["n0", "n1", "n3"])
def test_a_node_that_is_gone_costs_no_token(make_mesh, alone, lost):
    requests = requests_of(2)
    mesh = make_mesh(4)
    answers = mesh.join()
    for prompt, params in requests:
        answers.ask(prompt, **params)
    answers.run(steps=12)
    until(lambda: all_ready(mesh))
    answers.run(steps=10)
    mesh.nodes.pop(lost).close()
    assert answers.run() == alone(requests)
    assert mesh.front.num_failovers == 1
    assert mesh.front.membership.members[lost].standing is Standing.DEAD
    assert lost not in {duty.node for duty in mesh.front.duties}


def test_the_best_plan_of_measured_nodes_is_followed(make_mesh, alone):
    requests = requests_of(5, count=2)
    mesh = make_mesh(3)
    answers = mesh.join(split="auto")
    assert mesh.front.duties[0].first_layer == 0
    assert mesh.front.duties[-1].end_layer == 4
    for prompt, params in requests:
        answers.ask(prompt, **params)
    answers.run(steps=5)
    until(lambda: all_ready(mesh))
    mesh.nodes.pop(mesh.front.duties[0].node).close()
    assert answers.run() == alone(requests)
