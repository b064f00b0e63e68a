"""Clients that read or write too slowly, or not at all, or leave: nobody else notices."""

from __future__ import annotations

import asyncio
import json
import socket
import struct

import pytest

CHAT = "/v1/chat/completions"


def chat(content: str, **fields) -> bytes:
    body = {"messages": [{"role": "user", "content": content}], "stream": True, **fields}
    data = json.dumps(body).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


async def stalled(server) -> asyncio.StreamWriter:
    """Ask for a long stream and never read it."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", server.port))
    _, writer = await asyncio.open_connection(sock=sock, limit=1)
    writer.transport.pause_reading()
    writer.write(chat("say:" + "x" * 400, n=64))
    await writer.drain()
    return writer


def has_given_up(server) -> bool:
    return any("took nothing" in line["message"] for line in server.lines())


def test_sockets_that_never_read_lock_nobody_out(attacked):
    server = attacked(ZSE_WRITE_TIMEOUT="2")

    async def attack():
        writers = [await stalled(server) for _ in range(5)]
        while (await server.gauge("zse_in_flight")) < 64 and not has_given_up(server):
            await asyncio.sleep(0.02)
        await server.check_alive()
        await server.wait_until_idle()
        await server.hang_up(*writers)

    asyncio.run(attack())
    assert has_given_up(server)


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /health/live HTTP/1.1\r\nhost: local",
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{",
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n5",
    ],
    ids=["nothing", "head", "body", "chunk"],
)
def test_requests_that_come_in_drops_are_given_up(attacked, begun):
    server = attacked(ZSE_READ_TIMEOUT="3")  # a busy machine may keep a good client waiting, too

    async def drip(number):
        reader, writer = await server.connect()
        end = asyncio.create_task(reader.read())
        try:
            writer.write(begun)
            while not end.done():
                if begun and number % 2:
                    writer.write(b"x")
                await asyncio.wait({end}, timeout=0.2)
            return end.result()
        except ConnectionError:
            return b""
        finally:
            await server.hang_up(writer)

    async def attack():
        drips = asyncio.gather(*(drip(number) for number in range(100)))
        for _ in range(5):
            await server.check_answers()
        return await drips

    answers = asyncio.run(attack())
    assert {answer[:12] for answer in answers} <= {b"", b"HTTP/1.1 408", b"HTTP/1.1 400"}


async def vanish(server, number: int) -> int:
    """Read some of a stream, then leave without a word, or read it to its end."""
    reader, writer = await server.connect()
    writer.write(chat("slow:20" if number % 2 else "slow:400"))
    try:
        if number % 2:
            text = b""
            async with asyncio.timeout(60):
                while b"[DONE]" not in text:
                    piece = await reader.read(65536)
                    assert piece, text[-300:]
                    text += piece
            return text.count(b'"content":"x"')
        await reader.read(100)
        if number % 4:
            linger = struct.pack("ii", 1, 0)
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        return 20
    finally:
        await server.hang_up(writer)


@pytest.mark.parametrize("num_streams", [60, pytest.param(500, marks=pytest.mark.nightly)])
def test_streams_half_of_which_vanish_leave_the_others_whole(attacked, num_streams):
    server = attacked("--max-running", "512")

    async def attack():
        return await asyncio.gather(*(vanish(server, number) for number in range(num_streams)))

    assert set(asyncio.run(attack())) == {20}


@pytest.mark.parametrize("num_sockets", [300, pytest.param(3000, marks=pytest.mark.nightly)])
def test_idle_sockets_are_no_more_than_a_limit_and_health_checks_pass(attacked, num_sockets):
    server = attacked(ZSE_MAX_CONNECTIONS="200")

    async def attack():
        writers = []
        for number in range(num_sockets):
            writers.append((await server.connect())[1])
            if number % 100 == 99:
                await server.check_answers()
        assert server.num_files() < server.num_files_idle + 250
        await server.check_answers()
        await server.hang_up(*writers)

    asyncio.run(attack())


def test_when_every_connection_works_health_checks_still_pass(attacked):
    server = attacked(ZSE_MAX_CONNECTIONS="20")

    async def attack():
        writers = []
        for _ in range(20):
            reader, writer = await server.connect()
            writer.write(chat("slow:400"))
            await reader.read(100)
            writers.append(writer)
        idle = [(await server.connect())[1] for _ in range(100)]
        status, answer = await server.ask("GET", "/v1/models")
        for _ in range(5):
            await server.check_alive()
        await server.hang_up(*writers, *idle)
        return status, answer

    status, answer = asyncio.run(attack())
    assert status == 503
    assert json.loads(answer)["error"]["code"] == "too_many_connections"
