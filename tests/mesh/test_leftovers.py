"""What a node has open and nobody counts on is closed, and nothing else."""

from __future__ import annotations

import random
from types import SimpleNamespace

from mesh_requests import all_ready, requests_of, until

from zse.mesh.duties import Duty
from zse.mesh.leftovers import Leftovers
from zse.mesh.messages import NodeState, StageState

LAYERS = [(0, 2), (2, 3), (3, 7)]


def told(name, epoch, *stages):
    asked = []
    state = NodeState(epoch, [StageState(*layers, False, 0) for layers in stages])
    return SimpleNamespace(name=name, state=state, asked=asked, ask=asked.append)


def closed_by(peers, duties, epoch, times=3):
    leftovers = Leftovers(SimpleNamespace(alive=lambda: peers))
    for _ in range(times):
        leftovers.close(duties, epoch)
    return {(p.name, (ask.first_layer, ask.end_layer)) for p in peers for ask in p.asked}


def test_exactly_what_no_duty_names_is_asked_to_be_closed_and_once():
    rng = random.Random(3)
    names = ["a", "b", "c", "d"]
    for _ in range(200):
        duties = tuple(
            Duty(
                first_layer=first,
                end_layer=end,
                node=rng.choice(names),
                standby=rng.choice(["", *names]),
            )
            for first, end in LAYERS
        )
        held = {(who, duty.layers) for duty in duties for who in (duty.node, duty.standby)}
        opened = {name: rng.sample(LAYERS, rng.randrange(4)) for name in names}
        peers = [told(name, rng.choice([4, 5]), *opened[name]) for name in names]
        current = {peer.name for peer in peers if peer.state.epoch == 5}
        expected = {(name, key) for name in current for key in opened[name]} - held
        assert closed_by(peers, duties, 5) == expected
        assert sum(len(peer.asked) for peer in peers) == len(expected)


def test_losses_and_returns_leave_no_node_with_more_than_its_duties(make_mesh, alone):
    requests = requests_of(22, count=2)
    mesh = make_mesh(3)
    mesh.join()
    for number in range(2):
        until(lambda: all_ready(mesh))  # answers came sooner than standbys got what they wrote
        mesh.nodes.pop("n2").close()
        until(lambda: "n2" not in {d.node for d in mesh.front.duties} and all_ready(mesh))
        mesh.add("n2")
        until(lambda: "n2" in {d.node for d in mesh.front.duties} and all_ready(mesh))
        for prompt, params in requests:
            mesh.answers.ask(prompt, **params)
        texts = list(mesh.answers.run().values())
        assert texts[len(requests) * number :] == list(alone(requests).values())
    until(lambda: is_tidy(mesh))


def is_tidy(mesh):
    duties = mesh.front.duties
    held = {(who, duty.layers) for duty in duties for who in (duty.node, duty.standby)}
    hosts = {(name, key) for name, node in mesh.nodes.items() for key in node._worker._hosts}
    return hosts == held
