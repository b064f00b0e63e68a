from __future__ import annotations

import random
import time

import pytest

from zse.mesh.membership import Standing


def requests_of(seed, count=6):
    rng = random.Random(seed)
    found = []
    for number in range(count):
        prompt = [rng.randrange(3, 1500) for _ in range(rng.randint(1, 40))]
        params = {"max_tokens": rng.randint(8, 30)}
        if number % 2:
            params |= {"temperature": 0.9, "seed": number, "top_p": 0.95, "repetition_penalty": 1.1}
        if number == 3:
            params |= {"logit_bias": {5: 2.0}, "frequency_penalty": 0.4}
        found.append((prompt, params))
    return found


def test_four_nodes_write_what_one_process_does(make_mesh, alone):
    requests = requests_of(1)
    mesh = make_mesh(4)
    answers = mesh.join()
    for prompt, params in requests:
        answers.ask(prompt, **params)
    assert answers.run() == alone(requests)
    assert [duty.node for duty in mesh.front.duties] == ["n0", "n1", "n2", "n3"]


def until(condition, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.005)


def all_ready(mesh):
    front = mesh.front
    return len(front._ready()) == len(front.duties)


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
