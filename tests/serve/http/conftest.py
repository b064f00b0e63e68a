"""A server of any ASGI application on a real socket, in the event loop of the test."""

import asyncio
import contextlib
import subprocess

import pytest

from zse.serve.http.server import HTTPServer
from zse.serve.sockets import bind_socket
from zse.server_options import HTTPOptions


class Served:
    """Where a server listens, and raw connections to it."""

    def __init__(self, port: int, server: HTTPServer) -> None:
        self.port = port
        self.server = server
        self.state = server.server_state
        """What the server knows: connections and tasks."""
        self._writers = []

    async def connect(self, **options):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, **options)
        self._writers.append(writer)
        return reader, writer

    async def exchange(self, *parts: bytes) -> bytes:
        """Send bytes and return all that comes back until the server closes."""
        reader, writer = await self.connect()
        for part in parts:
            writer.write(part)
            await writer.drain()
        with contextlib.suppress(ConnectionResetError):
            return await asyncio.wait_for(reader.read(), 60)
        return b""

    async def wait_until(self, condition) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.01)

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


@contextlib.asynccontextmanager
async def _serving(app, *, certificates=None, **options):
    with bind_socket("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        server = HTTPServer(
            app, end_seconds=10, options=HTTPOptions(**options), certificates=certificates
        )
        task = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0.005)
        served = Served(port, server)
        try:
            yield served
        finally:
            served.close()
            server.should_exit = True
            await task


@pytest.fixture
def serving():
    """Serve an application with some options: ``async with serving(app, ...) as served``."""
    return _serving


@pytest.fixture(scope="module")
def make_certificate(tmp_path_factory):
    """Write a certificate of a name and its key; return both paths."""

    def make(name):
        folder = tmp_path_factory.mktemp(name)
        cert, key = folder / "cert.pem", folder / "key.pem"
        command = (
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
        )
        named = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"]
        written = ["-keyout", str(key), "-out", str(cert)]
        subprocess.run([*command.split(), *named, *written], check=True, capture_output=True)
        return cert, key

    return make
