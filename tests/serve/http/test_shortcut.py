"""A connection that is lent to the engine's thread: what it writes, and when it is taken back."""

import asyncio
import contextlib
import os
import random
import ssl
import stat
import threading
import time

from zse.engine.inbox import Inbox, UnreadBounds
from zse.engine.output import Delta
from zse.engine.waking import Doorbell
from zse.serve.http.shortcut import Shortcut
from zse.serve.http.streaming import FRAMES
from zse.serve.http.tls import Certificates

GET = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
COMMENT = b": alive\n"


def bytes_of(deltas):
    return "".join(delta.text for delta in deltas).encode()


def streaming(answer):
    """Return an application that begins a stream, lets a test write it, and ends it."""

    async def app(scope, receive, send):
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(0)  # the head is out
        await answer(scope["extensions"][FRAMES], send, receive)
        await send({"type": "http.response.body", "body": b""})

    return app


def talk(serving, answer, *, read=None, **options):
    """Return what a client reads of an answer."""

    async def run():
        async with serving(streaming(answer), **options) as served:
            reader, writer = await served.connect()
            writer.write(GET)
            if read is not None:
                return await read(reader, writer)
            return await asyncio.wait_for(reader.read(), 60)

    return asyncio.run(run())


def unchunk(answer):
    """Return the content of an answer, which must be whole chunks."""
    content, rest = [], answer.partition(b"\r\n\r\n")[2]
    while rest != b"0\r\n\r\n":
        size, _, rest = rest.partition(b"\r\n")
        content.append(rest[: int(size, 16)])
        assert rest[int(size, 16) :][:2] == b"\r\n"
        rest = rest[int(size, 16) + 2 :]
    return b"".join(content)


def open_inbox(shortcut):
    return Inbox(
        num_choices=1,
        tokens_each=1,
        bounds=UnreadBounds(),
        others=list,
        on_choice_end=lambda: None,
        on_overflow=lambda: None,
        shortcut=shortcut,
    )


def around(_):
    return b"<", b">"


def write_past(shortcut, text):
    """Have a shortcut write a text as the engine's thread does; return whether it was open."""
    is_taken = shortcut.take([Delta(0, text)], has_time=True)
    if is_taken:
        shortcut.write()
    return is_taken


def begin_texts(shortcut, *, num_choices=1):
    """Open a shortcut for the texts of some choices."""
    shortcut.open(0)
    for index in range(num_choices):
        shortcut.begin_texts(index)


def run_engine(shortcut, inbox, doorbell, num_tokens, passed):
    """Make tokens as an engine's thread does; note which of them went past the inbox."""
    for number in range(num_tokens):
        delta = Delta(0, f"{number}\n", finish_reason="stop" if number == num_tokens - 1 else None)
        if shortcut.take([delta], has_time=True):
            passed.append(number)
            shortcut.write()
        else:
            doorbell.ring([(inbox, delta)])
        if number % 4 == 0:
            time.sleep(0.0005)


def test_tokens_stay_in_order_whoever_writes_them_and_whatever_is_written_between(serving):
    passed = []
    dice = random.Random(7)

    async def answer(sink, send, receive):
        shortcut = Shortcut(sink, bytes_of)
        doorbell = Doorbell(asyncio.get_running_loop())
        inbox = open_inbox(shortcut)
        args = (shortcut, inbox, doorbell, 2000, passed)
        thread = threading.Thread(target=run_engine, args=args)

        async def comment():
            while True:
                await send({"type": "http.response.body", "body": COMMENT, "more_body": True})
                await asyncio.sleep(dice.random() * 0.002)

        commenting = asyncio.create_task(comment())
        thread.start()
        while True:
            delta = await inbox.get()
            if not sink.take(delta.text.encode(), waits=dice.random() < 0.5):
                body = delta.text.encode()
                await send({"type": "http.response.body", "body": body, "more_body": True})
            if delta.finish_reason is not None:
                break
        commenting.cancel()
        thread.join()

    lines = unchunk(talk(serving, answer)).splitlines(keepends=True)
    assert COMMENT in lines
    assert [line for line in lines if line != COMMENT] == [b"%d\n" % i for i in range(2000)]
    assert 0 < len(passed) < 2000


def test_a_text_that_comes_while_the_loop_writes_must_be_a_delta(serving):
    counted = []

    async def answer(sink, send, receive):
        shortcut = Shortcut(sink, bytes_of, around=around, count=counted.extend)
        await asyncio.sleep(0.01)
        assert sink.written_at == 0
        shortcut.begin_texts(0)
        assert not shortcut.take_text(0, b"too early", 1.0, at_once=False)
        begin_texts(shortcut, num_choices=2)
        assert shortcut.take_text(0, b"first", 2.0, at_once=False)
        assert shortcut.take_text(1, b"other", 3.0, at_once=False)
        shortcut.write()
        written_at = sink.written_at
        assert write_past(shortcut, "delta")
        assert shortcut.take_text(0, b"taken back", 4.0, at_once=False)
        await send({"type": "http.response.body", "body": COMMENT, "more_body": True})
        assert not shortcut.take_text(0, b"too late", 5.0, at_once=False)
        shortcut.write()
        shortcut.count()
        assert written_at == 3.0

    written = b"<first><other>delta<taken back>" + COMMENT
    assert unchunk(talk(serving, answer)) == written
    assert counted == [2.0, 3.0, 4.0]


def test_a_text_that_is_written_at_once_goes_out_behind_what_was_taken_before(serving):
    counted = []

    async def answer(sink, send, receive):
        shortcut = Shortcut(sink, bytes_of, around=around, count=counted.extend)
        await asyncio.sleep(0.01)
        begin_texts(shortcut)
        assert shortcut.take_text(0, b"one", 1.0, at_once=False)
        assert shortcut.take_text(0, b"two", 2.0, at_once=True)
        assert shortcut.settle() == b""  # nothing waits
        assert not shortcut.take_text(0, b"closed", 3.0, at_once=True)
        shortcut.open(0)
        assert shortcut.take_text(0, b"three", 4.0, at_once=True)
        shortcut.count()

    assert unchunk(talk(serving, answer)) == b"<one><two><three>"
    assert counted == [1.0, 2.0, 4.0]


def test_a_choice_without_a_frame_of_text_alone_has_none_until_there_is_one(serving):
    frames = [None, (b"<", b">")]

    async def answer(sink, send, receive):
        shortcut = Shortcut(sink, bytes_of, around=lambda _: frames.pop(0))
        await asyncio.sleep(0.01)
        begin_texts(shortcut)
        assert not shortcut.take_text(0, b"text", 1.0, at_once=False)
        assert write_past(shortcut, "its beginning, ")  # it is as open as before
        for _ in range(40):
            assert shortcut.take_text(0, b"x", 2.0, at_once=False)
            shortcut.write()

    assert unchunk(talk(serving, answer)) == b"its beginning, " + b"<x>" * 40


def test_only_choices_whose_tokens_may_be_texts_have_any_and_no_longer_than_they_may(serving):
    asked = []

    async def answer(sink, send, receive):
        shortcut = Shortcut(sink, bytes_of, around=lambda i: asked.append(i) or around(i))
        await asyncio.sleep(0.01)
        shortcut.open(0)
        assert not shortcut.take_text(1, b"of a choice that is none", 1.0, at_once=False)
        shortcut.begin_texts(1)
        assert shortcut.take_text(1, b"one", 1.0, at_once=False)
        shortcut.end_texts(1)
        assert not shortcut.take_text(1, b"half a character", 1.0, at_once=False)
        shortcut.begin_texts(1)
        assert shortcut.take_text(1, b"two", 1.0, at_once=False)
        shortcut.write()

    assert unchunk(talk(serving, answer)) == b"<one><two>"
    assert asked == [1]


def test_chunks_say_how_long_they_are_whatever_the_length_of_the_text(serving):
    lengths = [*range(1, 130), 4096, 3, 20_000]

    async def answer(sink, send, receive):
        shortcut = Shortcut(sink, bytes_of, around=around)
        await asyncio.sleep(0.01)
        begin_texts(shortcut)
        for length in lengths:
            assert shortcut.take_text(0, b"x" * length, 1.0, at_once=False)
        shortcut.write()

    assert unchunk(talk(serving, answer)) == b"".join(b"<%b>" % (b"x" * n) for n in lengths)


def test_a_write_that_took_a_part_closes_the_way_and_the_loop_writes_the_rest_in_order(
    serving, monkeypatch
):
    """However few bytes a socket takes, and whatever the engine makes meanwhile."""
    dice = random.Random(11)
    write = os.write
    passed = []

    def write_little(descriptor, data):
        if threading.current_thread() is threading.main_thread() or len(data) < 2:
            return write(descriptor, data)
        if dice.random() < 0.2:
            raise BlockingIOError
        return write(descriptor, data[: dice.randrange(1, len(data) + 1)])

    monkeypatch.setattr("zse.serve.http.shortcut._write_to", write_little)

    async def answer(sink, send, receive):
        shortcut = Shortcut(sink, bytes_of)
        doorbell = Doorbell(asyncio.get_running_loop())
        inbox = open_inbox(shortcut)
        args = (shortcut, inbox, doorbell, 500, passed)
        thread = threading.Thread(target=run_engine, args=args)
        thread.start()
        is_last = False
        while not is_last:
            delta = await inbox.get()
            is_last = delta.finish_reason is not None
            assert sink.take(delta.text.encode(), waits=False)
        thread.join()

    assert unchunk(talk(serving, answer)) == b"".join(b"%d\n" % i for i in range(500))
    assert 10 < len(passed) < 500


def test_what_a_full_socket_does_not_take_is_the_loops_and_nothing_is_lost(serving):
    text = "x" * 999
    refused = asyncio.Event()

    async def answer(sink, send, receive):
        shortcut = Shortcut(sink, bytes_of)
        await asyncio.sleep(0.01)
        shortcut.open(0)
        num_taken = 0
        while write_past(shortcut, f"{num_taken:4}{text}"):
            num_taken += 1
        assert num_taken > 1
        refused.set()
        body = b"%4d%b" % (num_taken, text.encode())
        await send({"type": "http.response.body", "body": body, "more_body": True})
        shortcut.open(1)
        assert not write_past(shortcut, "never")  # bytes wait

    async def read(reader, writer):
        await asyncio.wait_for(refused.wait(), 60)
        return await asyncio.wait_for(reader.read(), 60)

    content = unchunk(talk(serving, answer, read=read))
    parts = [content[i : i + 1003] for i in range(0, len(content), 1003)]
    assert len(parts) > 2
    assert parts == [b"%4d%b" % (i, text.encode()) for i in range(len(parts))]


def test_a_shortcut_is_not_opened_while_a_letter_is_under_way(serving):
    async def answer(sink, send, receive):
        shortcut, doorbell = Shortcut(sink, bytes_of), Doorbell(asyncio.get_running_loop())
        inbox = open_inbox(shortcut)
        await asyncio.sleep(0.01)
        for text in ("first", "second"):
            assert not write_past(shortcut, text)
            shortcut.open(0)  # the loop, before it is told
            doorbell.ring([(inbox, Delta(0, text))])
        for _ in range(2):
            assert sink.take((await inbox.get()).text.encode(), waits=False)
        shortcut.open(2)
        assert write_past(shortcut, "third")
        assert not shortcut.take([Delta(0, "", finish_reason="stop")], has_time=True)
        assert not write_past(shortcut, "another choice")  # it was closed by an end

    assert unchunk(talk(serving, answer)) == b"firstsecondthird"


def test_a_shortcut_is_closed_where_the_engines_thread_has_no_time(serving):
    async def answer(sink, send, receive):
        shortcut = Shortcut(sink, bytes_of)
        await asyncio.sleep(0.01)
        shortcut.open(0)
        assert not shortcut.take([Delta(0, "by the loop")], has_time=False)
        assert not write_past(shortcut, "later, and so by the loop")
        assert sink.take(b"both", waits=False)
        shortcut.open(2)
        assert write_past(shortcut, " and more")

    assert unchunk(talk(serving, answer)) == b"both and more"


def test_what_was_taken_and_not_written_when_the_loop_writes_goes_first_and_once(serving):
    async def answer(sink, send, receive):
        shortcut = Shortcut(sink, bytes_of)
        await asyncio.sleep(0.01)
        shortcut.open(0)
        assert shortcut.take([Delta(0, "taken")], has_time=True)
        await send({"type": "http.response.body", "body": COMMENT, "more_body": True})
        shortcut.write()

    assert unchunk(talk(serving, answer)) == b"taken" + COMMENT


def test_a_socket_is_taken_back_before_it_is_closed_and_its_number_another_s(serving):
    told = []
    lent = asyncio.Event()

    class Borrower:
        def settle(self):
            told.append(stat.S_ISSOCK(os.fstat(self.descriptor).st_mode))
            return b""

    async def answer(sink, send, receive):
        await asyncio.sleep(0.01)
        borrower = Borrower()
        borrower.descriptor = sink.lend(borrower)
        lent.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        told.append(sink.lend(borrower))

    async def read(reader, writer):
        async with asyncio.timeout(60):
            await lent.wait()
            writer.close()
            while len(told) < 2:
                await asyncio.sleep(0.005)

    talk(serving, answer, read=read)
    assert told == [True, None]


def test_a_client_that_leaves_ends_what_the_engines_thread_writes(serving):
    ended = asyncio.Event()

    async def answer(sink, send, receive):
        shortcut = Shortcut(sink, bytes_of)
        await asyncio.sleep(0.01)
        shortcut.open(0)

        def write():
            while write_past(shortcut, "x" * 100):
                pass

        await asyncio.to_thread(write)
        ended.set()

    async def read(reader, writer):
        await reader.readuntil(b"x")
        writer.transport.abort()
        await asyncio.wait_for(ended.wait(), 60)

    talk(serving, answer, read=read)


def test_an_encrypted_connection_is_not_lent(serving, make_certificate):
    cert, key = make_certificate("host.test")
    lent = []

    async def answer(sink, send, receive):
        await asyncio.sleep(0.01)
        lent.append(sink.lend(Shortcut(sink, bytes_of)))

    async def run():
        own = Certificates(str(cert), str(key))
        context = ssl.create_default_context(cafile=cert)
        async with serving(streaming(answer), certificates=own) as served:
            reader, writer = await served.connect(ssl=context, server_hostname="host.test")
            writer.write(GET)
            await asyncio.wait_for(reader.read(), 60)
            with contextlib.suppress(ssl.SSLError):
                writer.close()

    asyncio.run(run())
    assert lent == [None]
