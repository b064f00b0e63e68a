"""WebSockets: who may open one, how many, how much they may say."""

import asyncio
import contextlib
import os

import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Message,
    Ping,
    Pong,
    RejectConnection,
    Request,
    TextMessage,
)

from zse.serve.http.rules import rules_of
from zse.serve.http.shell import in_shell
from zse.serve.http.websocket import MAX_MESSAGE_BYTES
from zse.serve.ledger import Ledger
from zse.serve.state import AppState
from zse.server_options import HTTPOptions, ServeOptions


async def echo(scope, receive, send):
    assert scope["type"] == "websocket"
    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message["text"]})


class Socket:
    """A client."""

    def __init__(self, reader, writer) -> None:
        self._reader, self._writer = reader, writer
        self._connection = WSConnection(ConnectionType.CLIENT)
        self._events = []

    @classmethod
    async def open(cls, served, *headers, host="localhost"):
        """Return a client, and what its handshake was answered with."""
        client = cls(*await served.connect())
        await client.send(Request(host=host, target="/ws", extra_headers=list(headers)))
        return client, await client.next()

    async def send(self, event) -> None:
        await self.write(self._connection.send(event))

    async def write(self, data) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def next(self):
        while not self._events:
            data = await asyncio.wait_for(self._reader.read(65536), 20)
            self._connection.receive_data(data or None)
            self._events.extend(self._connection.events())
        return self._events.pop(0)


@pytest.fixture
def talk(serving):
    """Run a talk with a server of ``echo`` that has some options."""

    def run(talk, app=echo, **options):
        async def all_of_it():
            http = HTTPOptions(**options)
            rules = rules_of(http, bound="127.0.0.1")
            state = AppState(ledger=Ledger(), options=ServeOptions(http=http))
            async with serving(in_shell(app, state=state, rules=rules), **options) as served:
                return await talk(served)

        return asyncio.run(all_of_it())

    return run


def test_messages_go_both_ways(talk):
    async def chat(served):
        client, accepted = await Socket.open(served)
        assert isinstance(accepted, AcceptConnection)
        assert b"x-request-id" in dict(accepted.extra_headers)
        await client.send(Message(data="hällo"))
        await client.send(Ping(payload=b"p"))
        answers = [await client.next(), await client.next()]
        await client.send(CloseConnection(code=1000))
        await served.wait_until(lambda: not served.state.connections)
        return answers

    answers = talk(chat)
    assert {type(each) for each in answers} == {TextMessage, Pong}
    assert next(each.data for each in answers if isinstance(each, TextMessage)) == "hällo"


@pytest.mark.parametrize(
    ("origin", "opens"),
    [
        ("http://localhost", True),
        ("https://localhost", True),
        ("https://app.example.com", True),
        ("http://localhost:3000", False),
        ("https://evil.example", False),
        ("https://app.example.com.evil.example", False),
        ("null", False),
    ],
)
def test_pages_of_other_origins_open_none_unless_they_are_allowed(talk, origin, opens):
    async def ask(served):
        return (await Socket.open(served, (b"origin", origin.encode())))[1]

    answer = talk(ask, cors_origins=("https://app.example.com",))
    assert isinstance(answer, AcceptConnection) == opens
    assert opens or (isinstance(answer, RejectConnection) and answer.status_code == 403)


def test_there_are_only_so_many_at_once(talk):
    async def open_three(served):
        clients = [await Socket.open(served) for _ in range(3)]
        await clients[0][0].send(CloseConnection(code=1000))
        await served.wait_until(lambda: len(served.state.connections) == 1)
        return [answer for _, answer in clients] + [(await Socket.open(served))[1]]

    answers = talk(open_three, max_websockets=2)
    is_open = [isinstance(answer, AcceptConnection) for answer in answers]
    assert is_open == [True, True, False, True]
    assert answers[2].status_code == 429


def test_a_flood_of_messages_ends_the_socket(talk):
    async def flood(served):
        client, _ = await Socket.open(served)
        try:
            for number in range(1000):
                await client.send(Message(data=str(number)))
            while isinstance(event := await client.next(), TextMessage):
                pass
        except ConnectionError:
            return None
        return event

    end = talk(flood)
    # As many as come in one piece are cut off without a word, which a client may see as an end.
    assert end is None or end.code in (1006, 1008)


def test_a_message_may_be_only_so_long(talk):
    async def say(served):
        client, _ = await Socket.open(served)
        await client.send(Message(data="x" * (MAX_MESSAGE_BYTES - 1)))
        whole = ""
        while len(whole) < MAX_MESSAGE_BYTES - 1:
            whole += (await client.next()).data
        await client.send(BytesMessage(data=b"x" * (MAX_MESSAGE_BYTES + 1)))
        return await client.next()

    end = talk(say)
    assert isinstance(end, CloseConnection)
    assert end.code == 1009


def test_a_client_that_pings_and_reads_nothing_is_cut_off(talk):
    async def ping(served):
        client, _ = await Socket.open(served)
        frame = b"\x89\xfd" + os.urandom(4) + b"x" * 125
        with pytest.raises(ConnectionError):
            await client.write(frame * 1_000_000)

    talk(ping, write_timeout=5.0)


def test_a_frame_that_is_none_ends_the_socket_alone(talk):
    async def say(served):
        client, _ = await Socket.open(served)
        await client.write(b"\xff\xff\xff\xff")
        event = await client.next()
        return event, (await Socket.open(served))[1]

    end, other = talk(say)
    assert isinstance(end, CloseConnection)
    assert isinstance(other, AcceptConnection)


def test_a_route_that_is_no_websocket_refuses_the_handshake(talk):
    async def refuse(scope, receive, send):
        await receive()
        await send({"type": "websocket.close"})

    async def ask(served):
        return (await Socket.open(served))[1]

    assert talk(ask, app=refuse).status_code == 403


@pytest.mark.parametrize(
    "begin",
    [b"", b"\x01\x80" + bytes(4)],
    ids=["pongs that nobody asked for", "a message in pieces of nothing"],
)
def test_frames_of_nothing_end_their_socket_before_they_keep_the_loop(talk, begin):
    empty = b"\x00\x80" if begin else b"\x8a\x80"

    async def flood(served):
        client, _ = await Socket.open(served)
        with contextlib.suppress(ConnectionError):
            await client.write(begin + (empty + bytes(4)) * 40_000)
        await served.wait_until(lambda: not served.state.connections)
        other, accepted = await Socket.open(served)
        await other.send(Message(data="still here"))
        return accepted, await other.next()

    accepted, answer = talk(flood)
    assert isinstance(accepted, AcceptConnection)
    assert answer.data == "still here"


def test_a_long_message_may_come_in_many_pieces(talk):
    async def say(served):
        client, _ = await Socket.open(served)
        for number in range(1000):
            await client.send(Message(data="x" * 128, message_finished=number == 999))
        whole = ""
        while len(whole) < 128_000:
            whole += (await client.next()).data
        return whole

    assert talk(say) == "x" * 128_000
