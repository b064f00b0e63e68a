"""A model behind an address is opened from replicas: for a device, or into the cache for a CPU."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.stream.peers.conftest import SECRET, answering
from tests.stream.peers.test_striped import loaded, misbehaving
from zse.errors import StoreError, UsageError
from zse.server_options import PeerOptions
from zse.settings import load_settings
from zse.store.cache_items import find_items, is_item_used, shrink
from zse.store.location import parse_location
from zse.stream.opening import source_of
from zse.stream.peers import opening
from zse.stream.peers.keeping import KeepingSource
from zse.stream.peers.opening import open_shared, peer_urls
from zse.stream.peers.striped import StripedSource


@pytest.fixture
def settings(tmp_path):
    def make(*ports, **options):
        given = {"peers": tuple(f"http://127.0.0.1:{port}" for port in ports), **options}
        peering = PeerOptions(secret=SECRET.decode(), **given)
        found = load_settings()
        serve = replace(found.serve, peering=peering)
        return replace(found, serve=serve, cache_dir=tmp_path / "cache")

    return make


def origin_bytes(cluster):
    """Bytes that the origin was asked for, as its requests say."""
    spans = [one.removeprefix("bytes=").split("-") for one in cluster.origin.requests if one]
    size = len(cluster.data)
    return sum(min(int(last), size - 1) + 1 - int(first) for first, last in spans)


def test_a_cpus_file_comes_from_replicas_into_the_cache(cluster, settings, monkeypatch):
    monkeypatch.setattr("zse.store.http.ranged.PREFIX_BYTES", 1024)
    shared = cluster.share()
    location = parse_location(cluster.url)
    with open_shared(location, settings(shared.port), is_streamed=False) as reader:
        reader.verify()
        assert reader.path.read_bytes() == cluster.data
    assert shared.num_bytes > 700_000, "all but the zeros before the weights"
    before = shared.num_bytes
    with open_shared(location, settings(shared.port), is_streamed=False) as reader:
        reader.verify()
    assert shared.num_bytes == before, "what is in the cache is not fetched again"


@pytest.mark.parametrize("how", ["lies", "dies"])
def test_a_bad_replica_leaves_no_bad_file(cluster, settings, how):
    good = cluster.share()
    with answering(misbehaving(cluster, how)) as port:
        found = settings(port, good.port)
        with open_shared(parse_location(cluster.url), found, is_streamed=False) as reader:
            reader.verify()
            assert reader.path.read_bytes() == cluster.data


def test_an_origin_that_is_damaged_is_an_error_and_leaves_nothing(cluster, settings):
    damaged = bytearray(cluster.data)
    damaged[-100] ^= 1
    cluster.origin.data = bytes(damaged)
    found = settings()
    with pytest.raises(Exception, match="SHA-256"):
        open_shared(parse_location(cluster.url), found, is_streamed=False)
    assert not list((found.cache_dir / "models").glob("*.zse"))
    assert not list((found.cache_dir / "models").glob(".*.part"))


def test_a_device_is_fed_from_replicas_and_sections_are_held_to_their_digests(cluster, settings):
    good = cluster.share()
    with answering(misbehaving(cluster, "lies")) as port:
        found = settings(port, good.port)
        with open_shared(parse_location(cluster.url), found, is_streamed=True) as reader:
            assert bytes(reader.section("large.bin")) in cluster.data
            assert isinstance(reader.source, StripedSource)
            assert loaded(cluster, reader.source)


def test_an_origin_that_is_gone_is_an_error_though_replicas_are_there(cluster, settings):
    shared = cluster.share()
    location = parse_location(cluster.url + "x")
    with pytest.raises((StoreError, Exception), match="does not exist"):
        open_shared(location, settings(shared.port), is_streamed=True)


def test_a_name_is_looked_up_and_says_where_replicas_are(monkeypatch):
    asked = []

    def look_up(host, port, **_):
        asked.append((host, port))
        if host == "own":
            return [(0, 0, 0, "", ("10.0.0.9", 0))]
        if host == "absent":
            raise socket.gaierror(-2, "unknown")
        hosts = ["10.0.0.1", "10.0.0.2", "10.0.0.1", "10.0.0.9", "fd00::1"]
        return [(0, 0, 0, "", (each, port)) for each in hosts]

    monkeypatch.setattr(opening.socket, "getaddrinfo", look_up)
    monkeypatch.setattr(opening.socket, "gethostname", lambda: "own")
    found = peer_urls(PeerOptions(peers_from="zse-peers"))
    assert sorted(found) == [
        "http://10.0.0.1:8001",
        "http://10.0.0.2:8001",
        "http://[fd00::1]:8001",
    ]
    assert asked[0] == ("zse-peers", 8001)
    assert peer_urls(PeerOptions(peers_from="zse-peers:9"))[0].endswith(":9")
    assert peer_urls(PeerOptions(peers_from="absent")) == []
    for name in (":1", "a:b", "a:0", "a:70000"):
        with pytest.raises(UsageError):
            peer_urls(PeerOptions(peers_from=name))


def test_of_many_replicas_a_few_are_asked_and_not_the_same_by_all():
    many = tuple(f"http://10.0.0.{number}:1" for number in range(1, 60))
    chosen = {frozenset(peer_urls(PeerOptions(peers=many))) for _ in range(20)}
    assert {len(each) for each in chosen} == {8}
    assert len(chosen) > 10


def test_what_a_device_is_fed_stays_in_a_file_that_can_be_shared(cluster, settings):
    found = settings(cluster.share().port, share_weights=True)
    with open_shared(parse_location(cluster.url), found, is_streamed=True) as reader:
        assert isinstance(reader.source, KeepingSource)
        assert loaded(cluster, reader.source)
        file = reader.source.finish(reader.header)
        assert file.path.read_bytes() == cluster.data
        file.close()
    assert file.path.exists(), "its name is the cache's now"
    assert [one.name for one in file.path.parent.glob(".*.part")] == []


def test_what_a_killed_replica_leaves_is_counted_and_goes_when_the_cache_is_cleaned(
    cluster, settings
):
    found = settings(share_weights=True)
    with open_shared(parse_location(cluster.url), found, is_streamed=True):
        (item,) = find_items(found.cache_dir)
        assert not item.is_whole
        assert item.size_bytes == len(cluster.data)
        assert is_item_used(found.cache_dir, item)
        assert shrink(found.cache_dir, 0) == []
        (part,) = (found.cache_dir / "models").glob(".*.part")
        left = part.read_bytes()
    part.write_bytes(left)  # as a process that was killed leaves it
    (item,) = find_items(found.cache_dir)
    assert not is_item_used(found.cache_dir, item)
    assert shrink(found.cache_dir, 0) == [item]
    assert not part.exists()


def test_a_file_that_is_complete_takes_its_name_on_a_disk_without_room_for_another(
    cluster, settings, monkeypatch
):
    found = settings(share_weights=True)
    with open_shared(parse_location(cluster.url), found, is_streamed=True) as reader:
        assert loaded(cluster, reader.source)
        full = SimpleNamespace(free=0)
        monkeypatch.setattr("zse.store.cache.shutil.disk_usage", lambda _path: full)
        file = reader.source.finish(reader.header)
        assert file.path.read_bytes() == cluster.data
        file.close()


def test_a_disk_that_takes_no_file_of_that_size_keeps_no_weights_and_no_descriptor(
    cluster, settings, monkeypatch
):
    def full(descriptor, _length):
        opened.append(descriptor)
        raise OSError(28, "No space left on device")

    opened = []
    found = settings(share_weights=True)
    monkeypatch.setattr("zse.stream.peers.keeping.os.ftruncate", full)
    with open_shared(parse_location(cluster.url), found, is_streamed=True) as reader:
        assert not isinstance(reader.source, KeepingSource)
    assert list((found.cache_dir / "models").iterdir()) == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


def test_the_first_replica_keeps_what_the_origin_brought(cluster, settings):
    found = settings(share_weights=True)
    with open_shared(parse_location(cluster.url), found, is_streamed=True) as reader:
        assert reader.source.kind == "http"
        assert loaded(cluster, reader.source)
        before = origin_bytes(cluster)
        file = reader.source.finish(reader.header)
        assert origin_bytes(cluster) - before < 400_000, "the weights were there, sections were not"
        assert file.path.read_bytes() == cluster.data
        file.close()


def test_a_load_that_ends_leaves_what_was_kept_to_be_shared(cluster, settings):
    found = settings(share_weights=True)
    with open_shared(parse_location(cluster.url), found, is_streamed=True) as reader:
        lent = source_of(reader)
        assert lent.kind == "http"
        assert loaded(cluster, lent)
        lent.close()  # as a device's load does when its bytes are there
        file = reader.source.finish(reader.header)
        assert file.path.read_bytes() == cluster.data
        file.close()


def test_a_file_that_another_server_of_this_machine_has_kept_is_not_read_again(cluster, settings):
    """A replica whose device was fed from the other's, not through here, has kept nothing."""
    found = settings(share_weights=True)
    with open_shared(parse_location(cluster.url), found, is_streamed=True) as reader:
        reader.source.finish(reader.header).close()
    before = origin_bytes(cluster)
    with open_shared(parse_location(cluster.url), found, is_streamed=True) as reader:
        file = reader.source.finish(reader.header)
        assert file.path.read_bytes() == cluster.data
        file.close()
    assert origin_bytes(cluster) - before < 300_000, "the first pages, which have the header"


def test_replicas_of_this_host_have_no_addresses():
    assert peer_urls(PeerOptions(peers_from="host")) == []


def test_a_full_disk_shares_nothing_and_feeds_the_device(cluster, settings, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    found = settings(cluster.share().port, share_weights=True)
    with open_shared(parse_location(cluster.url), found, is_streamed=True) as reader:
        monkeypatch.setattr("zse.stream.peers.keeping.os.pwrite", full)
        assert loaded(cluster, reader.source)
        assert reader.source.finish(reader.header) is None
    assert list((found.cache_dir / "models").iterdir()) == []
