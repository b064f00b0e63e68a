"""Connections of a node to its neighbours last as long as the order that names them."""

from __future__ import annotations

import pytest
from mesh_requests import until

from zse.errors import MeshError
from zse.mesh.frames import Frame, Kind
from zse.mesh.messages import Place
from zse.mesh.outgoing import Outgoing
from zse.mesh.worker import Worker

PLACE = Place(0, 1, "b", "address of b")


@pytest.fixture
def outgoing():
    def nobody(_purpose, address, _seconds):
        raise MeshError(f"{address} cannot be reached")

    made = Outgoing(nobody)
    yield made
    made.close()


class Stale:
    """A connection that was made before its wire was cut."""

    is_ended = False
    has_unread = False
    last_sign = last_moved = float("-inf")
    backlog_bytes = 0

    def end(self, _reason):
        self.is_ended = True

    def look(self, _now):
        pass

    def send(self, _frame):
        pass

    def drop(self, _is_void):
        pass


def test_a_node_that_comes_back_sends_on_new_connections(outgoing):
    outgoing.keep([PLACE], 1)
    stale = outgoing._ways["rows", PLACE.address] = Stale()
    assert outgoing.silent(0.25) == ["b"]
    Worker("a", outgoing, lambda _: None).forget_front()
    assert stale.is_ended
    assert outgoing.silent(0.25) == []
    outgoing.keep([PLACE], 2)
    outgoing.send("rows", PLACE, Frame(kind=Kind.STEP, epoch=2))
    assert outgoing._ways["rows", PLACE.address] is not stale
    assert outgoing.silent(10.0) == []
    until(lambda: outgoing._ways["rows", PLACE.address].is_ended)  # nobody is there


def test_an_order_that_still_names_a_neighbour_keeps_its_connection(outgoing):
    outgoing.keep([PLACE], 1)
    way = outgoing._ways["rows", PLACE.address] = Stale()
    outgoing.keep([PLACE], 2)
    assert not way.is_ended
    outgoing.keep([], 3)
    assert way.is_ended
