"""Replicas that find each other on a network; Zenoh itself, over loopback."""

from __future__ import annotations

import socket

import pytest
from mesh_requests import until

from zse.errors import UsageError
from zse.server_options import PeerOptions
from zse.stream.neighbours import Neighbours
from zse.stream.peers import network
from zse.stream.peers.network import announced, is_network, replicas_on_network
from zse.stream.peers.opening import peer_urls

SECRET = b"a secret of sixteen"


@pytest.fixture
def scout():
    """Where members of any group meet, as at a node of a mesh with --scout."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with Neighbours("zse/mesh/others", listen=address):
        yield f"scout:{address}"


def test_a_replica_that_shares_is_found_by_those_with_its_secret_until_it_leaves(scout):
    with announced(scout, SECRET, "10.0.0.1", 8001), announced(scout, SECRET, "fd00::1", 8002):
        both = ["http://10.0.0.1:8001", "http://[fd00::1]:8002"]
        until(lambda: replicas_on_network(scout, SECRET) == both)
        until(lambda: sorted(peer_urls(PeerOptions(peers_from=scout), SECRET)) == both)
        assert replicas_on_network(scout, b"another secret, as long") == []
    until(lambda: replicas_on_network(scout, SECRET) == [])


def test_a_replica_that_listens_everywhere_tells_an_address_of_this_machine(scout, monkeypatch):
    monkeypatch.setattr(network, "_own_host", lambda: "10.9.8.7")
    with announced(scout, SECRET, "0.0.0.0", 8001):
        until(lambda: replicas_on_network(scout, SECRET) == ["http://10.9.8.7:8001"])


def test_a_machine_has_an_address():
    assert socket.inet_aton(network._own_host())


@pytest.mark.parametrize("where", ["scout:", "scout:host", "scout:host:0", "scout::7", "scout:a:b"])
def test_a_scout_without_an_address_is_refused(where):
    assert is_network(where)
    with pytest.raises(UsageError, match="names no scout"):
        replicas_on_network(where, SECRET)


def test_names_of_services_are_not_looked_for_on_the_network():
    assert is_network("auto")
    assert not is_network("zse-peers:8001")
    assert not is_network("")
