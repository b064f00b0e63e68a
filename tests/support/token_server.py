"""The sign-in service of registries that want Bearer tokens, with a key and certificate of its own.

It answers as Docker Hub's does: Basic credentials in, a signed token for the scopes out.
"""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SERVICE, ISSUER = "test-registry", "test-issuer"
USER, PASSWORD = "me", "open sesame"


class TokenServer:
    """Signs tokens; remembers what was asked for."""

    def __init__(self, folder: Path, lifetime_seconds: int = 60) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.key, self.certificate = folder / "key.pem", folder / "certificate.pem"
        self.lifetime_seconds = lifetime_seconds
        self.scopes: list[list[str]] = []
        self.address = ""
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
             "-subj", "/CN=test", "-keyout", str(self.key), "-out", str(self.certificate)],
            check=True, capture_output=True,
        )  # fmt: skip

    def registry_auth(self) -> str:
        """Return the ``auth:`` section for a registry that trusts this service."""
        return (
            f"auth:\n  token:\n    realm: {self.address}/token\n    service: {SERVICE}\n"
            f"    issuer: {ISSUER}\n    rootcertbundle: {self.certificate}\n"
        )

    def token(self, scopes: list[str]) -> str:
        access = []
        for scope in scopes:
            kind, name, actions = scope.split(":")
            access.append({"type": kind, "name": name, "actions": actions.split(",")})
        now = int(time.time())
        claims = {
            "iss": ISSUER, "sub": USER, "aud": SERVICE, "access": access, "jti": "1",
            "iat": now - 1, "nbf": now - 1, "exp": now + self.lifetime_seconds,
        }  # fmt: skip
        lines = self.certificate.read_text().splitlines()[1:-1]
        header = {"typ": "JWT", "alg": "RS256", "x5c": ["".join(lines)]}
        text = ".".join(_base64(json.dumps(part).encode()) for part in (header, claims))
        signed = subprocess.run(
            ["openssl", "dgst", "-sha256", "-sign", str(self.key)],
            input=text.encode(),
            capture_output=True,
            check=True,
        )
        return f"{text}.{_base64(signed.stdout)}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@contextlib.contextmanager
def token_server(folder: Path) -> Iterator[TokenServer]:
    """Run the service on loopback."""
    service = TokenServer(folder)
    wanted = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            allowed = self.headers.get("authorization") == wanted
            scopes = query.get("scope", [])
            service.scopes.append(scopes)
            body = json.dumps({"token": service.token(scopes)}).encode() if allowed else b"{}"
            self.send_response(200 if allowed else 401)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        service.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield service
        finally:
            server.shutdown()
            thread.join()
