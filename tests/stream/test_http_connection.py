"""Single connections: what is read from a socket, and what is no answer of an HTTP server."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from zse.errors import UsageError
from zse.stream import http_connection
from zse.stream.http_connection import HttpConnection

if TYPE_CHECKING:
    from collections.abc import Iterator

BODY = bytes(range(256)) * 40


class Peer:
    """Takes one connection and answers each request with the next of ``answers``."""

    def __init__(self, *answers: bytes) -> None:
        self.requests: list[bytes] = []
        self._answers = answers
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.may_close = threading.Event()
        self.may_close.set()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        connection, _ = self._listener.accept()
        with connection, suppress(OSError):  # the client hangs up when it has seen enough
            for answer in self._answers:
                request = b""
                while not request.endswith(b"\r\n\r\n"):
                    request += connection.recv(4096)
                self.requests.append(request)
                connection.sendall(answer)
            self.may_close.wait(10)

    def close(self) -> None:
        self.may_close.set()
        self._thread.join()
        self._listener.close()


@contextmanager
def connected(*answers: bytes, is_held: bool = False) -> Iterator[tuple[HttpConnection, Peer]]:
    peer = Peer(*answers)
    if is_held:
        peer.may_close.clear()
    found = HttpConnection("127.0.0.1", peer.port, host_header="bucket.example:80", tls=None)
    try:
        yield found, peer
    finally:
        found.close()
        peer.close()


def answer(*headers: str, body: bytes = b"", status: str = "206 Partial Content") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "\r\n"]).encode() + body


def test_a_body_is_read_into_the_views_it_is_given() -> None:
    sent = answer(f"content-length: {len(BODY)}", "X-Name:  a value ", body=BODY)
    with connected(sent) as (connection, peer):
        found = connection.get("/key", {"Range": "bytes=0-"})
        assert (found.status, found.reason, found.length) == (206, "Partial Content", len(BODY))
        assert (found.getheader("x-name"), found.getheader("None", "other")) == ("a value", "other")
        target = memoryview(bytearray(len(BODY)))
        filled = 0
        while filled < len(BODY):
            filled += found.readinto(target[filled : filled + 3000])
        assert target == BODY
        assert found.readinto(target) == 0
        assert not found.will_close
    lines = peer.requests[0].decode().split("\r\n")
    assert lines[0] == "GET /key HTTP/1.1"
    assert {"Host: bucket.example:80", "Range: bytes=0-"} <= set(lines)


def test_a_connection_answers_again_after_a_body() -> None:
    one, two = (answer("Content-Length: 3", body=body) for body in (b"one", b"two"))
    with connected(one, two) as (connection, _):
        assert [connection.get("/", {}).read() for _ in range(2)] == [b"one", b"two"]


def test_an_answer_that_announces_another_is_passed_over() -> None:
    sent = answer(status="100 Continue") + answer("Content-Length: 2", body=b"ok")
    with connected(sent) as (connection, _):
        assert connection.get("/", {}).read() == b"ok"


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    with connected(answer(body=BODY)) as (connection, _):
        found = connection.get("/", {})
        assert found.will_close
        assert found.read() == BODY


@pytest.mark.parametrize(
    "sent",
    [
        answer("Content-Length: 1", "Connection: Close", body=b"1"),
        answer("Content-Length: 1", body=b"1").replace(b"HTTP/1.1", b"HTTP/1.0"),
    ],
)
def test_a_server_that_will_close_is_believed(sent: bytes) -> None:
    with connected(sent) as (connection, _):
        assert connection.get("/", {}).will_close


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"SSH-2.0-server\r\n\r\n", "no answer of an HTTP server"),
        (b"HTTP/1.1 many\r\n\r\n", "no answer of an HTTP server"),
        (answer("Transfer-Encoding: chunked"), "does not say how long"),
        (b"HTTP/1.1 206 OK\r\nContent", "closed the connection"),
        (b"", "closed the connection"),
        (b"HTTP/1.1 206 OK\r\n" + b"x: y\r\n" * 20_000, "no end of its headers"),
    ],
)
def test_what_is_no_answer_is_refused(sent: bytes, said: str) -> None:
    with connected(sent) as (connection, _), pytest.raises(ConnectionError, match=said):
        connection.get("/", {})


def test_a_body_that_is_cut_is_shorter_than_promised() -> None:
    with connected(answer("Content-Length: 10", body=b"123")) as (connection, _):
        found = connection.get("/", {})
        assert found.read() == b"123"
        assert found.length == 7


def test_a_server_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "TIMEOUT_SECONDS", 1)
    with (
        connected(answer("Content-Length: 10"), is_held=True) as (connection, _),
        pytest.raises(TimeoutError, match="nothing came for 1 seconds"),
    ):
        connection.get("/", {}).read()


def test_a_read_that_waits_ends_when_the_connection_is_cut() -> None:
    with connected(answer("Content-Length: 10"), is_held=True) as (connection, _):
        found = connection.get("/", {})
        timer = threading.Timer(0.05, connection.cut)
        timer.start()
        assert found.read() == b""
        timer.join()


def test_a_header_with_a_line_break_is_not_sent() -> None:
    with connected() as (connection, _), pytest.raises(UsageError, match="line break"):
        connection.get("/", {"Authorization": "key\r\nX-Other: 1"})
