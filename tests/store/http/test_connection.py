"""Single connections: what is read from a socket, and what is no answer of an HTTP server."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from zse.errors import UsageError
from zse.store.http.connection import Connection, Server

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
            self.may_close.wait(60)

    def close(self) -> None:
        self.may_close.set()
        self._thread.join()
        self._listener.close()


@contextmanager
def connected(
    *answers: bytes, is_held: bool = False, timeout_seconds: float = 10.0
) -> Iterator[tuple[Connection, Peer]]:
    peer = Peer(*answers)
    if is_held:
        peer.may_close.clear()
    server = Server(
        host="127.0.0.1", port=peer.port, authority="bucket.example:80", is_encrypted=False
    )
    found = Connection(server, ssl.create_default_context, timeout_seconds=timeout_seconds)
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
        found = connection.ask("/key", {"Range": "bytes=0-"})
        assert (found.status, found.reason, found.length) == (206, "Partial Content", len(BODY))
        assert (found.header("x-name"), found.header("None")) == ("a value", "")
        target = memoryview(bytearray(len(BODY)))
        filled = 0
        while filled < len(BODY):
            filled += found.readinto(target[filled : filled + 3000])
        assert target == BODY
        assert found.readinto(target) == 0
        assert found.is_reusable
    lines = peer.requests[0].decode().split("\r\n")
    assert lines[0] == "GET /key HTTP/1.1"
    assert {"Host: bucket.example:80", "Range: bytes=0-"} <= set(lines)


def test_a_connection_answers_again_after_a_body() -> None:
    one, two = (answer("Content-Length: 3", body=body) for body in (b"one", b"two"))
    with connected(one, two) as (connection, _):
        assert [connection.ask("/", {}).read() for _ in range(2)] == [b"one", b"two"]


@pytest.mark.parametrize("status", ["100 Continue", "102 Processing", "103 Early Hints", "103"])
def test_an_answer_that_announces_another_is_passed_over(status: str) -> None:
    sent = answer("Link: </style>; rel=preload", status=status)
    sent += answer("Content-Length: 2", body=b"ok")
    with connected(sent) as (connection, _):
        assert connection.ask("/", {}).read() == b"ok"


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    with connected(answer(body=BODY)) as (connection, _):
        found = connection.ask("/", {})
        assert found.read() == BODY
        assert not found.is_reusable


@pytest.mark.parametrize(
    "sent",
    [
        answer("Content-Length: 1", "Connection: Close", body=b"1"),
        answer("Content-Length: 1", body=b"1").replace(b"HTTP/1.1", b"HTTP/1.0"),
    ],
)
def test_a_server_that_will_close_is_believed(sent: bytes) -> None:
    with connected(sent) as (connection, _):
        found = connection.ask("/", {})
        assert found.read() == b"1"
        assert not found.is_reusable


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"SSH-2.0-server\r\n\r\n", "no answer of an HTTP server"),
        (b"HTTP/1.1 many\r\n\r\n", "no answer of an HTTP server"),
        (b"HTTP/1.1 " + b"2" * 5000 + b" OK\r\n\r\n", "no answer of an HTTP server"),
        (b"HTTP/2 200 OK\r\n\r\n", "no answer of an HTTP server"),
        (answer("Transfer-Encoding: gzip, chunked"), "comes as 'gzip, chunked'"),
        (answer("Content-Length: 1", "Content-Length: 2", body=b"12"), "two lengths"),
        (answer(status="100 Continue") * 9, "announces an answer for ever"),
        (b"HTTP/1.1 206 OK\r\nContent", "closed the connection"),
        (b"", "closed the connection"),
        (b"HTTP/1.1 206 OK\r\n" + b"x: y\r\n" * 20_000, "no end of its headers"),
    ],
)
def test_what_is_no_answer_is_refused(sent: bytes, said: str) -> None:
    with connected(sent) as (connection, _), pytest.raises(ConnectionError, match=said):
        connection.ask("/", {})


CHUNKED = "Transfer-Encoding: chunked"


def test_a_body_in_chunks_is_put_together_and_leaves_the_connection_good() -> None:
    body = b"3\r\none\r\n4;name=value\r\ntwo!\r\n0\r\nTrailer: x\r\n\r\n"
    after = answer("Content-Length: 2", body=b"ok")
    with connected(answer(CHUNKED, body=body), after) as (connection, _):
        found = connection.ask("/", {})
        assert found.read() == b"onetwo!"
        assert found.is_reusable
        assert connection.ask("/", {}).read() == b"ok"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"many\r\n", "has no length"),
        (b"-1\r\n", "has no length"),
        (b"0\r\n" + b"x: y\r\n" * 100, "no end of its trailers"),
        (b"1" * 80_000, "no end of its headers"),
        (b"", "closed the connection"),
    ],
)
def test_chunks_that_are_none_are_refused(body: bytes, said: str) -> None:
    with connected(answer(CHUNKED, body=body)) as (connection, _):
        found = connection.ask("/", {})
        with pytest.raises(ConnectionError, match=said):
            found.read()


def test_an_answer_to_a_head_has_no_body() -> None:
    head, after = answer("Content-Length: 1000"), answer("Content-Length: 2", body=b"ok")
    with connected(head, after) as (connection, peer):
        found = connection.ask("/", {}, method="HEAD")
        assert (found.read(), found.header("content-length")) == (b"", "1000")
        assert connection.ask("/", {}).read() == b"ok"
    assert peer.requests[0].startswith(b"HEAD / HTTP/1.1\r\n")


def test_only_a_part_of_a_body_is_read_when_told_so() -> None:
    with connected(answer(f"Content-Length: {len(BODY)}", body=BODY)) as (connection, _):
        found = connection.ask("/", {})
        assert found.read(100) == BODY[:100]
        assert not found.is_reusable


@pytest.mark.parametrize("length", ["-1", "many", "9" * 5000, "1_0", "\xb2"])
def test_a_length_that_is_none_is_not_believed(length: str) -> None:
    sent = answer(f"Content-Length: {length}", body=BODY).decode("latin-1").encode("latin-1")
    with connected(sent) as (connection, _):
        found = connection.ask("/", {})
        assert found.length is None
        assert found.read() == BODY


def test_a_body_that_is_cut_is_shorter_than_promised() -> None:
    with connected(answer("Content-Length: 10", body=b"123")) as (connection, _):
        found = connection.ask("/", {})
        assert found.read() == b"123"
        assert found.length == 7


def test_a_server_that_says_nothing_is_given_up() -> None:
    silent = connected(answer("Content-Length: 10"), is_held=True, timeout_seconds=0.05)
    with silent as (connection, _), pytest.raises(TimeoutError, match="nothing came in time"):
        connection.ask("/", {}).read()


def test_a_read_that_waits_ends_when_the_connection_is_cut() -> None:
    with connected(answer("Content-Length: 10"), is_held=True) as (connection, _):
        found = connection.ask("/", {})
        timer = threading.Timer(0.05, connection.cut)
        timer.start()
        assert found.read() == b""
        timer.join()


def test_a_header_with_a_line_break_is_not_sent() -> None:
    with connected() as (connection, _), pytest.raises(UsageError, match="line break"):
        connection.ask("/", {"Authorization": "key\r\nX-Other: 1"})


def test_a_key_that_no_header_can_carry_is_refused_and_not_told() -> None:
    with connected() as (connection, _), pytest.raises(UsageError, match="Authorization") as caught:
        connection.ask("/", {"Authorization": "Bearer \u043a\u043b\u044e\u0447"})
    assert "\u043a" not in str(caught.value)
