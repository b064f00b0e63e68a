"""A server's file for its replicas: whom it answers, what it sends, and that requests do not wait."""

from __future__ import annotations

import errno
import json
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from range_server import serving
from started_server import StartedServer

from zse.format.reader import ZSEReader
from zse.quantize.locate import locate_model
from zse.serve.sharing import Sharing
from zse.settings import load_settings, subprocess_environment
from zse.stream.peers.opening import identity_of
from zse.stream.peers.peer import PATH
from zse.stream.peers.proof import signed_request

SECRET = b"what all replicas know"


@pytest.fixture
def file():
    return Path(locate_model("tiny", load_settings()))


@pytest.fixture
def sharing(file):
    with ZSEReader(file) as reader:
        found = Sharing(
            reader.share_file(),
            identity_of(reader.header),
            host="127.0.0.1",
            port=0,
            secret=SECRET,
            most_connections=2,
        )
    yield found
    found.close()


def say(sharing, data: bytes) -> bytes:
    """Send bytes and return what comes until the connection ends; when nobody else is served."""
    while sharing._open:
        time.sleep(0.005)
    with socket.create_connection(("127.0.0.1", sharing.port), timeout=60) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        found = b""
        while more := connection.recv(1 << 16):
            found += more
        return found


def request(sharing, first=0, end=100, *, path="", **changes):
    target = path or sharing._path
    headers = {**signed_request(SECRET, target, first, end), **changes}
    lines = [f"GET {target} HTTP/1.1", "Host: x", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def test_a_range_comes_as_it_lies_in_the_file(sharing, file):
    found = say(sharing, request(sharing, 1000, 51000))
    head, _, body = found.partition(b"\r\n\r\n")
    assert b"206" in head
    assert body == file.read_bytes()[1000:51000]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"401"),
        (b"POST / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /../etc/passwd HTTP/1.1\r\n\r\n", b"401"),
        (b"GET / HTTP/1.1\r\nx-zse-time: 1\r\n\r\n", b"401"),
        (b"\x16\x03\x01" + bytes(50) + b"\r\n\r\n", b"400"),
        (b"GET /\xff HTTP/1.1\r\n\r\n", b"400"),
        (bytes(9000), b""),
        (b"", b""),
        (b"GET / HTTP/1.1\r\n\r\nmore", b""),
    ],
)
def test_whoever_proves_nothing_gets_nothing(sharing, data, status):
    found = say(sharing, data)
    assert found.split(b" ")[1:2] == ([status] if status else [])
    assert found.count(b"\r\n\r\n") == bool(status)
    assert say(sharing, request(sharing)).split(b" ")[1] == b"206", "the next one is answered"


def test_a_request_that_was_overheard_is_of_no_use(sharing):
    asked = request(sharing)
    assert say(sharing, asked).split(b" ")[1] == b"206"
    assert say(sharing, asked).split(b" ")[1] == b"401"
    other = request(sharing).replace(b"bytes=0-99", b"bytes=0-9999")
    assert say(sharing, other).split(b" ")[1] == b"401"


def test_another_file_and_no_range_are_not_there(sharing):
    assert say(sharing, request(sharing, path=PATH + "0" * 64)).split(b" ")[1] == b"404"
    assert say(sharing, request(sharing, 5, 5)).split(b" ")[1] == b"416"
    assert say(sharing, request(sharing, 0, 1 << 50)).split(b" ")[1] == b"416"


def test_more_connections_than_allowed_are_told_to_come_again(sharing):
    held = [socket.create_connection(("127.0.0.1", sharing.port)) for _ in range(2)]
    for connection in held:
        connection.sendall(request(sharing))
        assert connection.recv(4096).startswith(b"HTTP/1.1 206")
    with socket.create_connection(("127.0.0.1", sharing.port), timeout=60) as third:
        third.sendall(request(sharing))
        assert third.recv(4096).startswith(b"HTTP/1.1 503")
    for connection in held:
        connection.close()


def test_who_sends_a_byte_now_and_then_holds_no_place(sharing, monkeypatch):
    monkeypatch.setattr("zse.serve.sharing._FIRST_SECONDS", 0.3)
    with socket.create_connection(("127.0.0.1", sharing.port), timeout=0.05) as connection:
        for _ in range(1200):
            try:
                connection.sendall(b"x")
                if connection.recv(1) == b"":
                    return
            except TimeoutError:
                pass
            except ConnectionError:
                return
    pytest.fail("it was let go on")


def test_strangers_that_come_again_and_again_take_no_place_of_a_replica(sharing):
    """Eight times as many as there are places, silent or with a proof of nothing, all the time."""
    strangers = []
    for number in range(16):
        strangers.append(socket.create_connection(("127.0.0.1", sharing.port)))
        if number % 2:
            strangers[-1].sendall(b"GET / HTTP/1.1\r\n")
    for _ in range(4):
        with socket.create_connection(("127.0.0.1", sharing.port), timeout=60) as replica:
            replica.sendall(request(sharing))
            assert replica.recv(4096).startswith(b"HTTP/1.1 206")
        while sharing._open:
            time.sleep(0.005)
        strangers.append(socket.create_connection(("127.0.0.1", sharing.port)))
    for stranger in strangers:
        stranger.close()


def test_the_oldest_unproven_connection_of_an_address_goes_when_it_has_too_many(sharing):
    waiting = [socket.create_connection(("127.0.0.1", sharing.port)) for _ in range(40)]
    waiting[0].settimeout(60)
    assert waiting[0].recv(1) == b"", "it was turned out"
    assert len(sharing._pending._pending) <= 16
    waiting[-1].settimeout(60)
    waiting[-1].sendall(request(sharing))
    assert waiting[-1].recv(4096).startswith(b"HTTP/1.1 206")
    for connection in waiting:
        connection.close()


def test_a_moment_without_descriptors_does_not_end_it(file, monkeypatch):
    monkeypatch.setattr("zse.serve.sharing.bind_socket", lambda *_: FullAtFirst())
    with ZSEReader(file) as reader:
        found = Sharing(
            reader.share_file(), "0" * 64, host="127.0.0.1", port=0, secret=SECRET
        )  # fmt: skip
    try:
        assert say(found, request(found, 0, 10)).split(b" ")[1] == b"206"
    finally:
        found.close()


class FullAtFirst(socket.socket):
    """Listens, and cannot take the first connection at once."""

    def __init__(self):
        super().__init__()
        self.bind(("127.0.0.1", 0))
        self._is_full = True

    def accept(self):
        if self._is_full:
            self._is_full = False
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


class Replicas:
    """An origin, and servers on this machine that take the model from each other."""

    def __init__(self, origin, folder: Path) -> None:
        self.origin = origin
        self.folder = folder
        (folder / "secret").write_bytes(SECRET)
        self.servers: list[StartedServer] = []

    def start(self, name: str, *flags: str) -> StartedServer:
        command = [sys.executable, "-m", "zse.serve", f"{self.origin.url}/tiny.zse"]
        command += ["--port", "0", "--device", "cpu", "--threads", "1"]
        command += ["--peer-secret-file", str(self.folder / "secret"), *flags]
        environment = {"ZSE_CACHE_DIR": str(self.folder / name)}
        server = StartedServer(command, environment)
        self.servers.append(server)
        return server

    def close(self) -> None:
        for server in self.servers:
            server.stop()


@pytest.fixture
def replicas(tmp_path, file):
    with serving("/tiny.zse", file.read_bytes()) as origin:
        found = Replicas(origin, tmp_path)
        yield found
        found.close()


def logged(server, message, key):
    """Return what a line of the log says; sharing begins a moment behind the model's readiness."""
    for _ in range(3000):
        lines = [json.loads(line) for line in list(server.log) if line.startswith("{")]
        for line in lines:
            if line["message"] == message:
                return line[key]
        time.sleep(0.02)
    raise AssertionError(f"no line says {message!r}: {server.log}")


def answer(server):
    body = {"model": "default", "prompt": "The", "max_tokens": 4, "temperature": 0}
    reply = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
    return reply.raise_for_status().json()["choices"][0]["text"]


@pytest.mark.slow
def test_a_second_server_takes_the_model_from_the_first(replicas, file):
    first = replicas.start("first", "--share-weights", "--share-port", "0")
    port = logged(first, "weights are shared", "port")
    for name in ("second", "third", "fourth"):
        second = replicas.start(name, "--peer", f"http://127.0.0.1:{port}")
        if "is asked no more" not in "".join(second.log):
            break  # else a busy machine has kept the first one silent for seconds
    assert logged(second, "the model came from replicas", "peer_bytes") > file.stat().st_size / 2, (
        "all but zeros"
    )
    assert logged(second, "the model came from replicas", "origin_bytes") < 1 << 20
    assert answer(first) == answer(second)
    (copy,) = (replicas.folder / name / "models").glob("*.zse")
    assert copy.read_bytes() == file.read_bytes()


@pytest.mark.nightly
def test_one_becomes_eight_and_the_origin_is_read_once(replicas, file):
    """Each replica's wire is limited, so that the first one alone would take eight times as long."""
    share = ["--share-weights", "--share-port", "0", "--share-gbit", "0.2"]
    first = replicas.start("0", *share)
    ports = [logged(first, "weights are shared", "port")]

    def start(number):
        peers = [word for port in ports for word in ("--peer", f"http://127.0.0.1:{port}")]
        return replicas.start(str(number), *share, *peers)

    for names in ([1], [2, 3], [4, 5, 6, 7]):
        with ThreadPoolExecutor(len(names)) as pool:
            started = list(pool.map(start, names))
        ports += [logged(server, "weights are shared", "port") for server in started]
        for server in started:
            taken = logged(server, "the model came from replicas", "origin_bytes")
            assert taken < file.stat().st_size / 8
    assert len({answer(server) for server in replicas.servers}) == 1


@pytest.mark.slow
def test_sharing_without_a_secret_is_refused_at_the_start(file):
    command = [sys.executable, "-m", "zse.serve", str(file), "--share-weights", "--port", "0"]
    ended = subprocess.run(
        command, check=False, capture_output=True, text=True, env=subprocess_environment()
    )
    assert ended.returncode == 2
    assert "the peers' secret has 0 bytes" in ended.stderr
