"""A TLS server on loopback with a certificate of its own, and a proxy that leads to it."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOST = "models.example"
"""The certificate names it beside localhost."""


class _Hello(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Keep quiet about clients that do not trust it."""


@contextmanager
def _running(server: ThreadingHTTPServer) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def encrypted_server(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the address and the certificate of a server that says hello."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    names = f"subjectAltName=DNS:localhost,DNS:{HOST}"
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=test"
    files = ("-addext", names, "-keyout", str(key), "-out", str(certificate))
    subprocess.run(["openssl", *words.split(), *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = _Quiet(("127.0.0.1", 0), _Hello)
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    with _running(server) as port:
        yield f"https://localhost:{port}/", certificate


class Proxy(_Quiet):
    """Whatever host it is asked for, it leads to ``target`` on loopback."""

    def __init__(self, target: int, account: str) -> None:
        super().__init__(("127.0.0.1", 0), _ProxyHandler)
        self.target, self.account = target, account
        self.requests: list[str] = []


class _ProxyHandler(_Hello):
    server: Proxy

    def do_GET(self) -> None:
        self.server.requests.append(f"GET {self.path}")
        if self._is_allowed():
            super().do_GET()

    def do_CONNECT(self) -> None:
        self.server.requests.append(f"CONNECT {self.path}")
        if not self._is_allowed():
            return
        self.send_response(200)
        self.end_headers()
        with socket.create_connection(("127.0.0.1", self.server.target)) as there:
            back = threading.Thread(target=_pump, args=(there, self.connection))
            back.start()
            _pump(self.connection, there)
            back.join()
        self.close_connection = True

    def _is_allowed(self) -> bool:
        if self.headers.get("Proxy-Authorization", "") == self.server.account:
            return True
        self.send_response(407, "Who are you")
        self.send_header("Content-Length", "0")
        self.end_headers()
        return False


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@contextmanager
def proxy_to(target: int, account: str = "") -> Iterator[Proxy]:
    """Yield a proxy; ``account`` is the Proxy-Authorization that it wants."""
    server = Proxy(target, account)
    with _running(server):
        yield server
