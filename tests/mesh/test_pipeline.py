from __future__ import annotations

from itertools import count

import pytest
from mesh_requests import all_ready, requests_of, until

from zse.engine.drafting.speculator import Speculator
from zse.engine.drafting.suffix_drafter import SuffixDrafter
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


def speculator():
    """Every step takes as long for it, so that guesses pay however busy this machine is."""
    return Speculator(SuffixDrafter(), count().__next__)


@pytest.mark.parametrize("lost", ["", "n1"])
def test_guesses_are_checked_by_all_stages_in_one_step_and_change_no_token(make_mesh, alone, lost):
    requests = [([5, 6, 7, 8] * 6, {"max_tokens": 60})]
    mesh = make_mesh(3)
    answers = mesh.join(begin_speculation=speculator)
    for prompt, params in requests:
        answers.ask(prompt, **params)
    answers.run(steps=12)
    until(lambda: all_ready(mesh))
    if lost:
        mesh.nodes.pop(lost).close()
    assert answers.run() == alone(requests)
    assert answers.core.stats().speculation.accepted_tokens > 0
    assert mesh.front._flight.submitted < 60  # else each token took a step


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
