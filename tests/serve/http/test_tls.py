"""HTTPS: which certificates are used, and what is counted before a handshake has ended."""

import asyncio
import contextlib
import socket
import ssl

import pytest

from zse.serve.http.tls import Certificates

GET = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
CLOSING = GET[:-2] + b"connection: close\r\n\r\n"
NAME = "host.test"


async def connect_tls(served, cert, name=NAME):
    context = ssl.create_default_context(cafile=cert)
    return await served.connect(ssl=context, server_hostname=name)


async def speak_tls(served, cert, name=NAME, *, asked=CLOSING):
    reader, writer = await connect_tls(served, cert, name)
    writer.write(asked)
    return await asyncio.wait_for(reader.read(), 60)


async def tell_scheme(scope, receive, send):
    body = scope["scheme"].encode()
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def test_https_is_spoken_with_new_certificates_as_soon_as_they_are_there(serving, make_certificate):
    (cert, key), (new_cert, new_key) = make_certificate("first.test"), make_certificate("new.test")

    async def talk():
        own = Certificates(str(cert), str(key))
        assert own.context.minimum_version == ssl.TLSVersion.TLSv1_2
        async with serving(tell_scheme, certificates=own) as served:
            first = await speak_tls(served, cert, "first.test")
            plain = await served.exchange(b"GET / HTTP/1.1\r\n\r\n")
            new_key.replace(key)
            new_cert.replace(cert)
            own.refresh()
            return first, plain, await speak_tls(served, cert, "new.test")

    first, plain, second = asyncio.run(talk())
    assert first.endswith(b"https")
    assert b"200 OK" not in plain
    assert second.endswith(b"https")


def test_certificates_that_cannot_be_used_leave_those_in_use(make_certificate, caplog):
    cert, key = make_certificate("kept.test")
    own = Certificates(str(cert), str(key))
    cert.write_text("half of a file")
    own.refresh()
    assert "cannot be used" in caplog.text
    assert len(caplog.records) == 1
    own.refresh()
    assert len(caplog.records) == 1


# --- handshakes -----------------------------------------------------------------------------------


@pytest.fixture
def talking(serving, make_certificate):
    """Serve HTTPS with some options to ``talk(served, cert)``; return what that returns."""

    def talking(talk, app=tell_scheme, **options):
        cert, key = make_certificate(NAME)

        async def all_of_it():
            own = Certificates(str(cert), str(key))
            async with serving(app, certificates=own, **options) as served:
                return await talk(served, cert)

        return asyncio.run(all_of_it())

    return talking


def first_words():
    """Return how a client of TLS begins: all that it says before the server has to answer."""
    context, outgoing = ssl.create_default_context(), ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=NAME)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize(
    "said",
    [b"", first_words()[:20], first_words()],
    ids=["nothing", "a part of its first words", "its first words"],
)
def test_a_handshake_that_never_ends_is_closed_at_the_deadline_of_a_head(talking, said):
    async def talk(served, cert):
        reader, writer = await served.connect()
        writer.write(said)
        await served.wait_until(lambda: len(served.state.connections) == 1)
        await asyncio.wait_for(reader.read(), 60)
        await served.wait_until(lambda: not served.state.connections)
        while True:  # on a busy machine a good handshake may take longer than this one may
            with contextlib.suppress(OSError):
                return await speak_tls(served, cert)

    assert talking(talk, read_timeout=0.2).endswith(b"https")


def test_handshakes_count_as_connections_and_the_oldest_makes_room(talking):
    async def talk(served, cert):
        shaking = [await served.connect() for _ in range(3)]
        await served.wait_until(lambda: len(served.state.connections) == 3)
        answer = await speak_tls(served, cert)
        assert await shaking[0][0].read() == b""
        assert not shaking[2][0].at_eof()
        return answer

    assert talking(talk, max_connections=3).endswith(b"https")


def test_where_all_are_at_work_a_handshake_gets_a_moment_and_its_request_is_refused(
    talking, monkeypatch
):
    monkeypatch.setattr("zse.serve.http.handshake.EXTRA_SECONDS", 60)

    async def wait(scope, receive, send):
        if scope["path"] == "/busy":
            while (await receive())["type"] != "http.disconnect":
                pass
        await tell_scheme(scope, receive, send)

    async def talk(served, cert):
        _, writer = await connect_tls(served, cert)
        writer.write(GET.replace(b"/ ", b"/busy "))
        await served.wait_until(lambda: served.state.tasks)
        refused = await speak_tls(served, cert)
        probe = await speak_tls(served, cert, asked=GET.replace(b"/ ", b"/ping "))
        monkeypatch.setattr("zse.serve.http.handshake.EXTRA_SECONDS", 0.3)
        silent, _ = await served.connect()
        assert await asyncio.wait_for(silent.read(), 60) == b""
        return refused, probe

    refused, probe = talking(talk, wait, max_connections=1)
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert probe.endswith(b"https")


def test_what_comes_with_the_end_of_a_handshake_is_read(talking):
    """A client of TLS 1.3 sends its request with its last word: both arrive at once."""

    async def talk(served, cert):
        context = ssl.create_default_context(cafile=cert)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(incoming, outgoing, server_hostname=NAME)
        reader, writer = await served.connect()
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(1 << 16))
        client.write(CLOSING)
        writer.write(outgoing.read())
        answer = b""
        while not answer.endswith(b"https"):
            incoming.write(await asyncio.wait_for(reader.read(1 << 16), 20))
            with contextlib.suppress(ssl.SSLWantReadError):
                answer += client.read(1 << 16)
        return answer

    assert b"200 OK" in talking(talk)


def test_what_is_no_handshake_leaves_nothing_behind(talking):
    async def talk(served, cert):
        assert b"HTTP" not in await served.exchange(GET)
        reader, writer = await served.connect()
        writer.write_eof()
        await asyncio.wait_for(reader.read(), 60)
        await served.wait_until(lambda: not served.state.connections)

    talking(talk)


def test_a_server_that_was_relieved_closes_handshakes_that_do_not_end(talking):
    async def talk(served, cert):
        reader, _ = await served.connect()
        await served.wait_until(lambda: served.state.connections)
        next(iter(served.state.connections)).close_if_idle()
        await asyncio.wait_for(reader.read(), 60)
        await served.wait_until(lambda: not served.state.connections)

    talking(talk)


def test_a_server_that_ends_waits_for_no_handshake(talking):
    with socket.socket() as silent:

        async def talk(served, cert):
            silent.connect(("127.0.0.1", served.port))
            await served.wait_until(lambda: served.state.connections)
            return served.state

        assert not talking(talk).connections
