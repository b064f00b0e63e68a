"""A file comes from replicas, whatever some of them do, and from the origin where nobody else helps."""

from __future__ import annotations

import random
import threading
import time

import pytest
from host_gpu import HostGpu
from loads import start_load

from tests.stream.peers.conftest import SECRET, answering
from zse.errors import LoadCancelledError, UsageError
from zse.stream.options import LoaderOptions
from zse.stream.peers import peer as peers
from zse.stream.peers import striped
from zse.stream.peers.peer import PeerBusyError, PeerError, check_url
from zse.stream.peers.proof import NONCE_HEADER, PROOF_HEADER, answer_proof
from zse.stream.placement import WholeFile

VERIFIED = LoaderOptions(threads=4, chunk_bytes=64 << 10, is_verified=True)


def loaded(cluster, source):
    """Load the weights as a GPU gets them, and say whether they are right."""
    gpu, whole = HostGpu(), WholeFile(cluster.header)
    address = gpu.memory(whole.length_bytes)
    running = start_load(gpu, source, whole, address, VERIFIED)
    running.wait()
    start = whole.origin_bytes
    assert running.num_bytes() == (whole.length_bytes, whole.length_bytes)
    return gpu.bytes_of(address) == cluster.data[start : start + whole.length_bytes]


def test_bytes_come_from_replicas_and_none_from_the_origin(cluster):
    shared = [cluster.share() for _ in range(3)]
    source = cluster.source(*(one.port for one in shared))
    before = len(cluster.origin.requests)
    assert loaded(cluster, source)
    assert source.origin_bytes == 0
    assert len(cluster.origin.requests) == before
    assert sum(one.num_bytes > 0 for one in shared) >= 2


def test_without_replicas_all_comes_from_the_origin(cluster):
    source = cluster.source()
    assert cluster.read(source) == cluster.data
    assert source.peer_bytes == 0


def told(nonce, content_range, status=206, length=0, secret=SECRET):
    proof = answer_proof(secret, nonce, status, content_range)
    lines = [f"HTTP/1.1 {status} OK", f"Content-Range: {content_range}"]
    lines += [f"Content-Length: {length}", f"{PROOF_HEADER}: {proof}"]
    return "\r\n".join([*lines, "", ""]).encode()


def wanted(connection):
    """Read a request; return its nonce and its range."""
    head = b""
    while b"\r\n\r\n" not in head:
        more = connection.recv(4096)
        if not more:
            raise OSError
        head += more
    lines = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:] if line)
    first, last = lines["range"].removeprefix("bytes=").split("-")
    return lines[NONCE_HEADER], int(first), int(last)


def misbehaving(cluster, how):
    """Return a server's part: it knows the secret, or says so, and brings something else."""

    def answer(connection):
        try:
            while True:
                nonce, first, last = wanted(connection)
                length = last + 1 - first
                range_told = f"bytes {first}-{last}/{len(cluster.data)}"
                body = bytearray(cluster.data[first : last + 1])
                if how == "lies":
                    body[length // 2] ^= 1
                    connection.sendall(told(nonce, range_told, length=length) + body)
                elif how == "stalls":
                    connection.sendall(told(nonce, range_told, length=length) + body[: length // 3])
                    time.sleep(120)
                elif how == "dies":
                    connection.sendall(told(nonce, range_told, length=length) + body[: length // 3])
                    connection.shutdown(2)
                    return
                elif how == "silent":
                    time.sleep(120)
                elif how == "stranger":
                    connection.sendall(told(nonce, range_told, length=length, secret=b"?") + body)
                elif how == "other range":
                    other = f"bytes 0-{length - 1}/{len(cluster.data)}"
                    connection.sendall(told(nonce, other, length=length) + body)
                elif how == "whole":
                    connection.sendall(told(nonce, "", status=200, length=length) + body)
                elif how == "redirect":
                    connection.sendall(
                        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n"
                        b"Content-Length: 0\r\n\r\n"
                    )
                else:
                    connection.sendall(random.Random(1).randbytes(500) + b"\r\n\r\n")
        except OSError:
            pass

    return answer


WAYS = [
    *("lies", "stalls", "dies", "silent", "stranger", "other range", "whole", "redirect", "noise")
]


@pytest.mark.parametrize("how", WAYS)
def test_a_bad_replica_is_dropped_and_its_ranges_come_from_others(
    cluster, how, caplog, monkeypatch
):
    good = cluster.share()
    with answering(misbehaving(cluster, how)) as port:
        for seconds in (0.5, 5.0, 50.0):  # on a busy machine the good one may be late, too
            monkeypatch.setattr(peers, "TIMEOUT_SECONDS", seconds)
            source = cluster.source(port, good.port)
            assert loaded(cluster, source)
            if source.num_peers:
                break
        assert source.num_peers == 1
        assert source.origin_bytes == 0
    assert "asked no more" in caplog.text


@pytest.mark.parametrize("how", ["lies", "dies", "noise"])
def test_where_all_replicas_are_bad_the_origin_brings_it(cluster, how):
    with answering(misbehaving(cluster, how)) as one, answering(misbehaving(cluster, how)) as two:
        source = cluster.source(one, two)
        assert loaded(cluster, source)
        assert source.num_peers == 0
        assert source.origin_bytes > 0


def test_nobody_there_is_nobody_to_wait_for(cluster):
    shared = cluster.share()
    port = shared.port
    shared.close()
    source = cluster.source(port)
    assert cluster.read(source) == cluster.data


def test_one_that_goes_in_the_middle_is_replaced(cluster):
    going, staying = cluster.share(most_bytes_a_second=2e6), cluster.share()
    source = cluster.source(going.port, staying.port)
    threading.Timer(0.1, going.close).start()
    assert loaded(cluster, source)


def test_a_trickle_is_no_source(cluster, monkeypatch):
    monkeypatch.setattr(peers, "_GRACE_SECONDS", 0.1)
    monkeypatch.setattr(peers, "_PIECE_BYTES", 4096)

    def trickle(connection):
        try:
            nonce, first, last = wanted(connection)
            range_told = f"bytes {first}-{last}/{len(cluster.data)}"
            connection.sendall(told(nonce, range_told, length=last + 1 - first))
            for start in range(first, last + 1, 512):
                connection.sendall(cluster.data[start : start + 512])
                time.sleep(0.05)
        except OSError:
            pass

    with answering(trickle) as port:
        source = cluster.source(port)
        assert cluster.read(source) == cluster.data
        assert source.num_peers == 0


def test_a_busy_replica_is_asked_again_and_not_for_ever(cluster, monkeypatch):
    shared = cluster.share(most_connections=1)
    holder = cluster.peer(shared.port)
    view = memoryview(bytearray(100))
    assert holder.read_into(0, view, len(cluster.data)) == 100  # its connection stays
    with pytest.raises(PeerBusyError):
        cluster.peer(shared.port).read_into(0, view, len(cluster.data))
    threading.Timer(0.3, holder.close).start()
    source = cluster.source(shared.port)
    assert cluster.read(source) == cluster.data
    assert source.origin_bytes == 0
    source.close()
    holder = cluster.peer(shared.port)
    while True:
        try:
            holder.read_into(0, view, len(cluster.data))
            break
        except PeerBusyError:
            time.sleep(0.02)
    monkeypatch.setattr(striped, "BUSY_SECONDS", 0.2)
    source = cluster.source(shared.port)
    assert cluster.read(source) == cluster.data
    assert source.origin_bytes == len(cluster.data)
    assert source.num_peers == 1, "who is busy is no liar"


def test_a_load_can_be_stopped_while_replicas_stall(cluster):
    with answering(misbehaving(cluster, "silent")) as port:
        source = cluster.source(port)
        threading.Timer(0.1, source.interrupt).start()
        with pytest.raises(LoadCancelledError):
            cluster.read(source)


def test_many_readers_share_a_replica_within_its_bounds(cluster):
    shared = cluster.share(most_connections=2)
    sources = [cluster.source(shared.port) for _ in range(6)]
    found = [b""] * len(sources)

    def read(index):
        found[index] = cluster.read(sources[index])
        sources[index].close()

    threads = [threading.Thread(target=read, args=(index,)) for index in range(len(sources))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [cluster.data] * len(sources)
    assert sum(source.origin_bytes for source in sources) == 0


@pytest.mark.parametrize(
    "url",
    [
        "https://a:1",
        "http://a",
        "http://a:1/path",
        "http://u:p@a:1",
        "a:1",
        "http://[",
        "ftp://a:1",
    ],
)
def test_what_is_no_address_of_a_replica_is_refused(url):
    with pytest.raises(UsageError):
        check_url(url)


def test_the_other_file_is_not_given(cluster):
    shared = cluster.share()
    other = cluster.peer(shared.port)
    other._path = other._path[:-1] + "x"
    with pytest.raises(PeerError, match="404"):
        other.read_into(0, memoryview(bytearray(10)), len(cluster.data))
    strange = cluster.peer(shared.port, secret=b"what strangers guess")
    with pytest.raises(PeerError):
        strange.read_into(0, memoryview(bytearray(10)), len(cluster.data))
    with pytest.raises(PeerError, match="416"):
        cluster.peer(shared.port).read_into(len(cluster.data), memoryview(bytearray(9)), 1)
