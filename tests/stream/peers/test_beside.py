"""What a start does with replicas of its host: whom it asks, and what memory it takes."""

from __future__ import annotations

import secrets

import pytest
from stub_libcuda import gpu, stub

from tests.stream.conftest import write_model
from zse.device.cuda.errors import OutOfDeviceMemoryError
from zse.engine.opening import _peer_memory
from zse.format.reader import ZSEReader
from zse.server_options import PeerOptions
from zse.stream.peers.beside import PeerMemory
from zse.stream.peers.lending import Lendable, Lender
from zse.stream.placement import WholeFile

__all__ = ["gpu", "stub"]
SECRET = secrets.token_hex(16)


@pytest.fixture
def placement(tmp_path):
    with ZSEReader(write_model(tmp_path / "model.zse", [3, 4])) as reader:
        return WholeFile(reader.header)


def test_only_who_shares_or_knows_of_replicas_has_to_do_with_them():
    assert _peer_memory(None) is None
    assert _peer_memory(PeerOptions()) is None
    assert _peer_memory(PeerOptions(peers_from="host", share_memory="off")) is None
    assert _peer_memory(PeerOptions(peers_from="host")) is not None
    assert _peer_memory(PeerOptions(share_weights=True)) is not None


def test_nobody_is_asked_where_no_replicas_are_named(placement, caplog):
    assert not PeerMemory(PeerOptions(share_weights=True, secret=SECRET)).look(placement)
    assert caplog.text == ""


def test_without_a_secret_nobody_is_asked_and_the_start_goes_on(placement, caplog):
    assert not PeerMemory(PeerOptions(peers_from="host")).look(placement)
    assert "the peers' secret has 0 bytes" in caplog.text


def test_a_start_without_replicas_on_its_host_begins_no_copy(gpu, placement):
    memory = PeerMemory(PeerOptions(peers=("http://127.0.0.1:1",), secret=SECRET))
    assert not memory.look(placement)
    assert memory.begin_load(gpu, None, 0, None) is None
    memory.close()


def test_who_was_found_and_is_not_needed_is_let_go(placement):
    def export():
        raise OSError("nobody waits for it")

    lendable = Lendable(
        header=placement.header, origin_bytes=placement.origin_bytes, length_bytes=1, export=export
    )
    secret = secrets.token_hex(16)
    lender = Lender(lendable, secret.encode())
    memory = PeerMemory(PeerOptions(peers_from="host", secret=secret))
    try:
        assert memory.look(placement)
        memory.close()
        memory.close()
    finally:
        lender.close()
    assert lender.num_loans == 0


def test_memory_can_be_mapped_by_others_only_where_weights_are_shared(gpu):
    shared = PeerMemory(PeerOptions(share_weights=True)).allocate(gpu, 100)
    own = PeerMemory(PeerOptions(peers_from="host")).allocate(gpu, 100)
    assert hasattr(shared, "export")
    assert not hasattr(own, "export")


def test_a_driver_that_shares_nothing_gives_memory_all_the_same(gpu, monkeypatch, caplog):
    monkeypatch.setenv("ZSE_STUB_FAIL", "cuMemCreate:801")
    block = PeerMemory(PeerOptions(share_weights=True)).allocate(gpu, 100)
    assert block.length_bytes == 100
    assert "not lent to replicas on this host" in caplog.text
    monkeypatch.setenv("ZSE_STUB_FAIL", "cuMemCreate:2")
    with pytest.raises(OutOfDeviceMemoryError):
        PeerMemory(PeerOptions(share_weights=True)).allocate(gpu, 100)
