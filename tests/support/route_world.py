"""A router in this process between scripted replicas and clients, all in one loop."""

import asyncio
import contextlib
import json
import socket
import time

import httpx

from zse.route.addresses import read_address
from zse.route.app import RouteApp
from zse.route.counts import Counts
from zse.route.fleet import Fleet
from zse.route.looks import Looks
from zse.route_options import RouteOptions
from zse.serve.http.server import HTTPServer

CHAT = "/v1/chat/completions"


class Asked:
    """A request as a replica got it."""

    def __init__(self, method, target, headers, body):
        self.method, self.target, self.headers, self.body = method, target, headers, body


class ScriptedReplica:
    """A replica that does what it is told: ``script`` writes the answer to a request itself."""

    def __init__(self):
        self.load = {"running": 0, "waiting": 0, "kv_usage": 0.0, "sleep_level": 0}
        self.health = 200
        self.asked: list[Asked] = []
        self.cancelled = 0
        self.script = answer("hello")
        self.server = None
        self.port = 0
        self.writers = set()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    async def start(self):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]

    async def stop(self):
        self.server.close()
        for writer in list(self.writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader, writer):
        self.writers.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                method, target, _ = head[0].split(" ")
                headers = dict(line.split(": ", 1) for line in head[1:] if line)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                if target in ("/load", "/health/ready", "/health"):
                    if self.health is None:
                        await asyncio.sleep(60)
                    told = json.dumps(self.load) if self.health == 200 else "{}"
                    await write_answer(writer, self.health, told)
                    continue
                self.asked.append(Asked(method, target, headers, body))
                try:
                    await self.script(reader, writer, self.asked[-1])
                except ConnectionError:
                    self.cancelled += 1
                    raise
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.writers.discard(writer)
            writer.close()


async def write_answer(writer, status, body, **headers):
    data = body if isinstance(body, bytes) else body.encode()
    lines = [f"HTTP/1.1 {status} Whatever", f"content-length: {len(data)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
    await writer.drain()


def answer(body, status=200, **headers):
    async def script(_reader, writer, _asked):
        await write_answer(writer, status, body, **headers)

    return script


def refusal(status, kind="rate_limit_error"):
    return answer(json.dumps({"error": {"message": "no", "type": kind}}), status)


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def stream(*events, pause=0.0, then=b"0\r\n\r\n"):
    """Answer with events; ``then`` None cuts the connection."""

    async def script(reader, writer, _asked):
        writer.write(STREAM_HEAD)
        for event in events:
            writer.write(chunk(event))
            await writer.drain()
            if pause:
                gone = asyncio.create_task(reader.read(1))
                await asyncio.wait({gone}, timeout=pause)
                if gone.done():
                    raise ConnectionResetError
                gone.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await gone
        if then is None:
            writer.transport.abort()
            return
        writer.write(then)
        await writer.drain()

    return script


class World:
    """Replicas, a router over them, and clients."""

    def __init__(self, num_replicas, options):
        self.replicas = [ScriptedReplica() for _ in range(num_replicas)]
        self._options = options
        self.options: RouteOptions
        self.terminate = None

    async def __aenter__(self):
        for replica in self.replicas:
            await replica.start()
        values = {"look_seconds": 0.05, "connect_seconds": 0.5, "route_wait": 5.0}
        self.options = RouteOptions(**(values | self._options))
        self.terminate = asyncio.Event()
        self.fleet = Fleet(self.options, Counts(), clock=time.monotonic)
        self.app = RouteApp(self.fleet, terminate=self.terminate, max_body_bytes=1 << 20)
        self.server = HTTPServer(self.app, end_seconds=1.0)
        listening = socket.create_server(("127.0.0.1", 0))
        self.port = listening.getsockname()[1]
        self.serving = asyncio.create_task(self.server.serve([listening]))
        self.addresses = [read_address(replica.url) for replica in self.replicas]
        self.looks = Looks(self.fleet, [lambda: self.addresses])
        await self.looks.start()
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=60)
        await self.until(lambda: all(r.state != "unknown" for r in self.fleet.replicas))
        return self

    async def __aexit__(self, *exc):
        await self.client.aclose()
        await self.looks.stop()
        self.fleet.close()
        self.terminate.set()
        self.server.should_exit = True
        await self.serving
        for replica in self.replicas:
            await replica.stop()

    async def until(self, condition, seconds=60.0):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "it does not come about"
            await asyncio.sleep(0.005)

    async def chat(self, text="Hi", **headers):
        body = {"model": "m", "messages": [{"role": "user", "content": text}]}
        return await self.client.post(CHAT, json=body, headers=headers)

    @property
    def num_asked(self):
        return [len(replica.asked) for replica in self.replicas]
