"""http_get reaches what its operator named, and nothing else, whatever names resolve to."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from zse.tools.http_get import fetch
from zse.tools.registry import ToolError

PUBLIC = "93.184.216.34"


@pytest.fixture(scope="module")
def port():
    """Return the port of a server that answers with what it was asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            moved = self.path == "/moved"
            self.send_response(302 if moved else 200)
            self.send_header("content-type", "text/plain")
            if moved:
                self.send_header("location", "http://169.254.169.254/")
            self.end_headers()
            body = b"x" * 200_000 if self.path == "/long" else self.headers["host"].encode()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def here(host, _port):
    return [host]


def test_an_address_that_is_named_itself_is_asked(port):
    found = fetch(f"http://127.0.0.1:{port}/", (f"127.0.0.1:{port}",), here)
    assert found == {"status": 200, "type": "text/plain", "text": f"127.0.0.1:{port}"}


def test_a_redirect_is_told_and_not_followed(port):
    found = fetch(f"http://127.0.0.1:{port}/moved", (f"127.0.0.1:{port}",), here)
    assert (found["status"], found["location"]) == (302, "http://169.254.169.254/")


def test_a_long_answer_is_cut(port):
    found = fetch(f"http://127.0.0.1:{port}/long", (f"127.0.0.1:{port}",), here)
    assert len(found["text"]) == 65_536


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "fd00::1", "0.0.0.0", "::ffff:127.0.0.1",
        "64:ff9b::a00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "::127.0.0.1", "::ffff:0:10.0.0.1",
        "fec0::1", "224.0.0.1", "ff0e::1",
    ],
)  # fmt: skip
def test_a_name_of_a_private_network_is_not_asked(address):
    with pytest.raises(ToolError, match="private network"):
        fetch("http://a.example/", ("a.example",), lambda *_: [PUBLIC, address])


@pytest.mark.parametrize(
    "url",
    [
        "http://b.example/", "http://a.example.evil/", "http://evil-a.example/", "ftp://a.example/",
        "file:///etc/passwd", "http://user@a.example/", "http://a.example:81/", "http://", "//a.example",
        "http://a.example/\r\nHost: b", "http://a.example\x00.evil/", "http://[::1", "http://ä.example/",
        "http://a.example:99999/",
    ],
)  # fmt: skip
def test_what_was_not_named_is_not_asked(url):
    with pytest.raises(ToolError):
        fetch(url, ("a.example",), lambda *_: pytest.fail("it was resolved"))


def test_a_star_stands_for_names_below():
    with pytest.raises(ToolError, match="no host"):
        fetch("https://x.y.example/", ("*.y.example",), lambda *_: [])
    with pytest.raises(ToolError, match="not among"):
        fetch("https://y.example/", ("*.y.example",), lambda *_: [])


def test_the_address_that_was_checked_is_the_one_that_is_asked(monkeypatch):
    asked = []

    def connect(address, *_):
        asked.append(address)
        raise OSError

    monkeypatch.setattr("socket.create_connection", connect)
    answers = iter([[PUBLIC], ["127.0.0.1"]])
    with pytest.raises(ToolError, match="no answer"):
        fetch("http://a.example/", ("a.example",), lambda *_: next(answers))
    assert asked == [(PUBLIC, 80)]


@pytest.mark.parametrize("part", ["head", "body"])
def test_who_sends_a_byte_now_and_then_keeps_nobody(part):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        has_ended = threading.Event()

        def drip():
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                start = b"HTTP/1.1 200 OK\r\nx: "
                connection.sendall(start if part == "head" else start + b"\r\n\r\n")
                try:
                    while not has_ended.wait(0.05):
                        connection.sendall(b"x")
                except OSError:
                    pass

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        name = f"127.0.0.1:{listener.getsockname()[1]}"
        answers = []

        def ask():
            try:
                answers.append(fetch(f"http://{name}/", (name,), here, seconds=0.2))
            except ToolError as error:
                answers.append(error)

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(60)
        has_ended.set()
        thread.join(60)
        assert isinstance(answers[0], ToolError)
