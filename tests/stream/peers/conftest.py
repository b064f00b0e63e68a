"""A file at an origin, replicas that share it, and those that do not do as they should."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest
from range_server import serving

from tests.stream.conftest import write_model
from zse.format.reader import ZSEReader
from zse.serve.sharing import Sharing
from zse.settings import load_settings
from zse.store.location import parse_location
from zse.store.objects import open_object
from zse.stream.peers import peer as peers
from zse.stream.peers.opening import identity_of
from zse.stream.peers.peer import Peer
from zse.stream.peers.striped import StripedSource

if TYPE_CHECKING:
    from pathlib import Path

SECRET = b"what all replicas know"


class Cluster:
    """Makes replicas of one file, and sources over them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path.read_bytes()
        with ZSEReader(path) as reader:
            self.header = reader.header
        self.identity = identity_of(self.header)
        self._stack = ExitStack()
        self.origin = self._stack.enter_context(serving("/model.zse", self.data))
        self.url = f"{self.origin.url}/model.zse"

    def share(self, path: Path | None = None, **options) -> Sharing:
        """A replica, which shares this file or another under its name."""
        with ZSEReader(self.path) as reader:
            file = reader.share_file()
        if path is not None:
            from zse.format.reader import open_file

            file = open_file(path)
        given = {"secret": SECRET, "host": "127.0.0.1", "port": 0, **options}
        sharing = Sharing(file, self.identity, **given)
        self._stack.callback(sharing.close)
        return sharing

    def peer(self, port: int, secret: bytes = SECRET) -> Peer:
        url = f"http://127.0.0.1:{port}"
        return Peer(url, self.identity, secret, load_settings().proxies)

    def source(self, *ports: int) -> StripedSource:
        origin = open_object(parse_location(self.url), load_settings(), prefix_bytes=64)
        starts = [region.offset_bytes for region in self.header.regions]
        source = StripedSource(origin, [self.peer(port) for port in ports], starts)
        self._stack.callback(source.close)
        return source

    def read(self, source: StripedSource) -> bytes:
        found = bytearray(len(self.data))
        source.read_into(0, memoryview(found))
        return bytes(found)

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "TIMEOUT_SECONDS", 60.0)  # none is late on a busy machine
    monkeypatch.setattr("zse.stream.peers.striped._SMALL_BYTES", 1)
    found = Cluster(write_model(tmp_path / "model.zse", [20, 3, 90]))
    yield found
    found.close()


@contextmanager
def answering(answer):
    """A server that does with each connection what it is told to."""
    listener = socket.create_server(("127.0.0.1", 0))
    held = []

    def accept():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            held.append(connection)
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in held:
            connection.close()
