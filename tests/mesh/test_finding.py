"""Where nodes are found: lists, services, and this network."""

from __future__ import annotations

import time

import pytest
from mesh_requests import until

from zse.errors import UsageError
from zse.mesh.finding import (
    Discovery,
    addresses_of_service,
    checked_address,
    checked_name,
    finder_of,
    mesh_id,
    secret_of,
)
from zse.server_options import MeshOptions

SECRET = b"a secret of sixteen"


def test_a_list_is_taken_as_it_is():
    with finder_of("a:1, [::1]:22 ,", SECRET) as finder:
        assert list(finder.addresses()) == ["a:1", "[::1]:22"]
        assert not finder.has_tokens


def test_a_service_is_all_its_addresses():
    assert addresses_of_service("localhost:7700")[0] in ("127.0.0.1:7700", "[::1]:7700")
    assert addresses_of_service("no-such-service.invalid:7700") == []


@pytest.mark.parametrize("wrong", ["", "host", "host:", ":7700", "host:0", "host:65536", "host:-1"])
def test_what_is_no_address_is_refused(wrong):
    with pytest.raises(UsageError, match="no address"):
        checked_address(wrong)


@pytest.mark.parametrize("wrong", ["", "a/b", "a b", "x" * 65, "ä"])
def test_what_is_no_name_is_refused(wrong):
    with pytest.raises(UsageError, match="no name"):
        checked_name(wrong)


def test_a_short_secret_is_none():
    with pytest.raises(UsageError, match="expected 16"):
        secret_of(MeshOptions(mesh_secret="short"))
    assert secret_of(MeshOptions(mesh_secret="x" * 16)) == b"x" * 16


def test_a_node_is_found_by_a_token_which_goes_with_it_and_strangers_are_not():
    """Zenoh itself, over loopback: one node listens, the other and a stranger join it."""
    port = 17447
    with Discovery(SECRET, ("a", "10.0.0.1:7700"), listen=f"127.0.0.1:{port}") as first:
        joined = [f"127.0.0.1:{port}"]
        stranger = Discovery(b"another secret, as long", ("x", "10.0.0.9:1"), join=joined)
        second = Discovery(SECRET, ("b", "10.0.0.2:7700"), join=joined)
        until(lambda: first.addresses() == second.addresses() == ["10.0.0.1:7700", "10.0.0.2:7700"])
        until(lambda: stranger.addresses() == ["10.0.0.9:1"])
        second.close()
        until(lambda: first.addresses() == ["10.0.0.1:7700"])
        stranger.close()
        time.sleep(0)
    assert mesh_id(SECRET) != mesh_id(b"another secret, as long")
