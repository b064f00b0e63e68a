"""WebSockets of foreign pages, of too many clients and of clients that flood."""

from __future__ import annotations

import asyncio
import base64
import os

import pytest

ROUTES = ("/ws/chat", "/ws/stats")


def handshake(path: str, *, origin: str = "", host: str = "localhost") -> bytes:
    key = base64.b64encode(os.urandom(16)).decode()
    lines = [f"GET {path} HTTP/1.1", f"host: {host}", "connection: upgrade", "upgrade: websocket"]
    lines += [f"sec-websocket-key: {key}", "sec-websocket-version: 13"]
    lines += [f"origin: {origin}"] if origin else []
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def frame(payload: bytes, opcode: int = 1) -> bytes:
    """Return a frame of up to 125 bytes, masked with zeros."""
    return bytes([0x80 | opcode, 0x80 | len(payload)]) + bytes(4) + payload


async def open_socket(server, path: str, **options):
    reader, writer = await server.connect()
    writer.write(handshake(path, **options))
    head = await reader.readuntil(b"\r\n\r\n")
    return int(head.split()[1]), reader, writer


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:1"])
def test_pages_of_other_origins_open_none(attacked, path, origin):
    server = attacked()

    async def attack():
        refused, _, first = await open_socket(server, path, origin=origin)
        opened, _, second = await open_socket(server, path, origin="http://localhost")
        rebound, _, third = await open_socket(server, path, host="evil.example")
        await server.hang_up(first, second, third)
        return refused, opened, rebound

    assert asyncio.run(attack()) == (403, 101, 421)


def test_floods_are_cut_off_and_do_not_keep_others_waiting(attacked):
    server = attacked(ZSE_MAX_WEBSOCKETS="8", ZSE_WRITE_TIMEOUT="2")
    floods = [
        frame(b"{}") * 50_000,
        frame(b"x" * 125, opcode=9) * 50_000,  # pings, whose answers nobody reads
        frame(b"\xff\xfe") * 1000,
        os.urandom(1_000_000),
        b"\x01\xfe\xff\xff" + bytes(4) + b"x" * 65535,
        b"\x81\xff" + (2**62).to_bytes(8, "big") + bytes(4),
        frame(b"", opcode=8) * 10_000,
    ]

    async def flood(data):
        status, reader, writer = await open_socket(server, "/ws/chat")
        if status != 101:
            await server.hang_up(writer)
            return status
        try:
            writer.write(data)
            async with asyncio.timeout(8):
                await writer.drain()
                while await reader.read(65536):
                    pass
        except ConnectionError:
            pass  # it was cut off
        except TimeoutError:
            return 0  # it is kept: it says too little to be a flood
        finally:
            await server.hang_up(writer)
        return status

    async def attack():
        work = asyncio.gather(*(flood(floods[number % len(floods)]) for number in range(24)))
        for _ in range(5):
            await server.check_answers()
        return await work

    statuses = asyncio.run(attack())
    assert set(statuses) <= {101, 429, 0}
    assert statuses.count(429) >= 1
