"""Nodes that are not there are called again and again, each for itself."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from mesh_requests import until

from zse import __version__
from zse.errors import MeshError
from zse.mesh.finding import Finder
from zse.mesh.messages import Done, Facts, Order
from zse.mesh.node import Node, NodeSetup
from zse.mesh.peers import Peers
from zse.mesh.rejoining import Rejoining


class Called:
    """Stands for ``Peers``: what is called, and how that ends."""

    def __init__(self) -> None:
        self.there: list[SimpleNamespace] = []
        self.calls: list[str] = []
        self.given_up: list[str] = []
        self.is_over = threading.Event()
        self.has_joined = threading.Event()

    def alive(self) -> list[SimpleNamespace]:
        return list(self.there)

    def connect(self, address: str, seconds: float) -> str:
        self.calls.append(address)
        if address == "silent":
            self.is_over.wait(60)
            raise MeshError("silent cannot be reached: timed out")
        self.there.append(SimpleNamespace(address=address))
        self.has_joined.set()
        return address

    def give_up(self, name: str, reason: str) -> None:
        self.given_up.append(name)


@pytest.fixture
def called():
    return Called()


def search(called, *addresses):
    rejoining = Rejoining(called, Finder(lambda: addresses), set)
    stop = threading.Event()
    thread = rejoining.thread(stop)
    thread.start()
    return rejoining, stop, thread


def test_who_is_silent_keeps_nobody_from_one_that_is_back_and_is_called_once_at_a_time(called):
    rejoining, stop, thread = search(called, "silent", "back")
    assert called.has_joined.wait(60)
    stop.wait(0.2)
    assert sorted(called.calls) == ["back", "silent"]
    stop.set()
    thread.join(60)
    called.is_over.set()
    until(lambda: rejoining.problems)
    assert rejoining.problems == {"silent": "silent cannot be reached: timed out"}
    assert called.given_up == []


def test_a_node_that_answers_when_the_front_has_left_is_left_alone(called):
    rejoining, stop, thread = search(called)
    stop.set()
    thread.join(60)
    rejoining._call("late", stop)
    assert called.given_up == ["late"]


def test_a_node_answers_while_the_code_that_computes_is_still_imported():
    setup = NodeSetup(name="n", secret=b"a secret of the tests")
    facts = Facts("n", 1 << 30, 1e9, 1, __version__, "a test")
    node = Node(setup, lambda: facts, lambda _: None)
    accepts, works = node._threads
    accepts.start()
    peers = Peers(b"a secret of the tests", lambda _: None, lambda *_: None)
    peer = peers.by_name[peers.connect(node.address, 5.0)]
    before = peer.state_time
    peers.beat()
    order = peer.ask(Order(3, [], [], [], 0, []))
    until(lambda: peer.state_time > before)
    assert peer.state.epoch == 0
    assert not order.done()
    works.start()
    assert order.result(60)
    assert node._worker.state.epoch == 3
    assert peer.answer(Order(3, [], [], [], 0, []), Done) == Done()
    peers.close()
    node.close()
