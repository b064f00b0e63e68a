"""What is a head, and what two parsers could read differently and so is none."""

import contextlib

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zse.serve.http.framing import SPARE_BYTES, ChunkFraming, LengthFraming
from zse.serve.http.head import HeadTooLargeError, MalformedRequestError, read_head

HOST = b"Host: localhost"


def head_of(*lines, first=b"POST /v1/x?y=1 HTTP/1.1"):
    return b"\r\n".join([first, *lines]) + b"\r\n\r\n"


def test_a_head_is_read():
    head = read_head(head_of(HOST, b"Content-Length: 12", b"X-A: one", b"Connection: close"))
    assert (head.method, head.target, head.http_version) == ("POST", b"/v1/x?y=1", "1.1")
    assert head.path == "/v1/x"
    assert head.fields[b"x-a"] == b"one"
    assert head.length == 12
    assert not head.keeps_alive
    assert read_head(head_of(HOST)).length == 0
    assert read_head(head_of(HOST, b"Transfer-Encoding: chunked")).length is None
    assert read_head(head_of(HOST, b"Connection: Upgrade", b"Upgrade: WebSocket")).opens_websocket


@pytest.mark.parametrize("order", [1, -1])
def test_a_list_that_comes_in_two_lines_is_read_whole(order):
    lines = [b"Connection: close", b"Connection: keep-alive, Upgrade"][::order]
    head = read_head(head_of(HOST, *lines, b"Upgrade: x, websocket"))
    assert not head.keeps_alive
    assert head.opens_websocket


SMUGGLED = {
    "length and chunks": (HOST, b"Content-Length: 4", b"Transfer-Encoding: chunked"),
    "chunks and length": (HOST, b"Transfer-Encoding: chunked", b"Content-Length: 4"),
    "two lengths": (HOST, b"Content-Length: 4", b"Content-Length: 5"),
    "the same length twice": (HOST, b"Content-Length: 4", b"content-length: 4"),
    "a list of lengths": (HOST, b"Content-Length: 4, 4"),
    "a signed length": (HOST, b"Content-Length: +4"),
    "a negative length": (HOST, b"Content-Length: -4"),
    "a hexadecimal length": (HOST, b"Content-Length: 0x4"),
    "an empty length": (HOST, b"Content-Length: "),
    "an endless length": (HOST, b"Content-Length: " + b"9" * 30),
    "a length with an underscore": (HOST, b"Content-Length: 1_0"),
    "a length in other digits": (HOST, "Content-Length: ٤".encode()),
    "two codings": (HOST, b"Transfer-Encoding: gzip, chunked"),
    "an unknown coding": (HOST, b"Transfer-Encoding: xchunked"),
    "the coding twice": (HOST, b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
    "identity": (HOST, b"Transfer-Encoding: identity"),
    "a space before the colon": (HOST, b"Transfer-Encoding : chunked"),
    "a vertical tab in the coding": (HOST, b"Transfer-Encoding: \x0bchunked"),
    "a continued header": (HOST, b"X: a", b" b"),
    "a continued coding": (HOST, b"Transfer-Encoding:", b"\tchunked"),
    "a bare line feed": (HOST, b"X: a\nTransfer-Encoding: chunked"),
    "a bare carriage return": (HOST, b"X: a\rTransfer-Encoding: chunked"),
    "a null": (HOST, b"X: a\x00b"),
    "no colon": (HOST, b"nonsense"),
    "no name": (HOST, b": x"),
    "a name with a space": (HOST, b"X Y: z"),
    "no host": (b"X: y",),
    "two hosts": (HOST, b"Host: other"),
    "a host with a path": (b"Host: localhost/x",),
    "a host with a user": (b"Host: user@localhost",),
}


@pytest.mark.parametrize("lines", SMUGGLED.values(), ids=SMUGGLED.keys())
def test_what_parsers_read_differently_is_refused(lines):
    with pytest.raises(MalformedRequestError):
        read_head(head_of(*lines))


@pytest.mark.parametrize(
    "first",
    [
        b"GET / HTTP/2.0",
        b"GET / HTTP/0.9",
        b"GET / HTTP/1.2",
        b"GET / HTTP/1.1 ",
        b"GET  / HTTP/1.1",
        b"GET /\tx HTTP/1.1",
        b"GET /",
        b"G(T / HTTP/1.1",
        b"CONNECT localhost:80 HTTP/1.1",
        b"GET localhost HTTP/1.1",
        b"GET * HTTP/1.1",
        b"GET http://other/ HTTP/1.1",
        b"GET \xff HTTP/1.1",
    ],
)
def test_a_first_line_that_is_none_is_refused(first):
    with pytest.raises(MalformedRequestError):
        read_head(head_of(HOST, first=first))


def test_chunks_are_unknown_to_http_1_0():
    with pytest.raises(MalformedRequestError):
        read_head(head_of(HOST, b"Transfer-Encoding: chunked", first=b"POST / HTTP/1.0"))


def test_a_refusal_does_not_repeat_the_line():
    with pytest.raises(MalformedRequestError) as caught:
        read_head(head_of(HOST, b"Authorization Bearer secret-key"))
    assert "secret" not in str(caught.value)


def test_there_are_only_so_many_headers():
    read_head(head_of(HOST, *[b"X: y"] * 98))
    with pytest.raises(HeadTooLargeError):
        read_head(head_of(HOST, *[b"X: y"] * 100))


@given(st.binary(max_size=200))
def test_whatever_comes_is_a_head_or_an_error_of_ours(noise):
    for data in (noise + b"\r\n\r\n", head_of(HOST, noise), head_of(HOST, first=noise)):
        with contextlib.suppress(MalformedRequestError, HeadTooLargeError):
            read_head(data)


PARTS = st.one_of(
    st.sampled_from(
        [
            *(b"GET", b"POST", b"/", b"/v1?a=b", b"*", b"HTTP/1.1", b"HTTP/1.0", b"http://a/b"),
            *(b"Host", b"HOST", b"a", b"a:80", b"X-A", b"content-length", b"Content-Length", b"12"),
            *(b"transfer-encoding", b"Transfer-Encoding", b"chunked", b"Chunked", b"gzip"),
            *(
                b"\r\n",
                b"\r\n",
                b": ",
                b": ",
                b":",
                b" ",
                b" ",
                b"\t",
                b",",
                b"\xff",
                b"\x01",
                b"\x7f",
            ),
        ]
    ),
    st.binary(min_size=1, max_size=2),
)


@given(st.lists(PARTS, max_size=24).map(b"".join))
def test_what_is_a_head_is_the_same_head_to_another_parser(noise):
    for data in (noise + b"\r\n\r\n", head_of(HOST, noise), head_of(b"X: y", HOST, b"X: " + noise)):
        try:
            head = read_head(data)
        except (MalformedRequestError, HeadTooLargeError):
            continue
        other = h11.Connection(h11.SERVER)
        other.receive_data(data)
        request = other.next_event()
        assert request.method.decode() == head.method
        assert request.target.endswith(head.target)
        assert request.http_version.decode() == head.http_version
        codings = {b"transfer-encoding"}  # which the other one turns to lower case
        assert list(request.headers) == [
            (name, value.lower() if name in codings else value) for name, value in head.headers
        ]


TOKENS = st.text("!#$%&'*+-.^_`|~aZ09", min_size=1, max_size=8).map(str.encode)
VALUES = st.lists(
    st.integers(0x21, 0x7E) | st.integers(0x80, 0xFF) | st.sampled_from([0x20, 0x09]), max_size=12
).map(bytes)


@given(TOKENS, st.lists(st.tuples(TOKENS.map(lambda name: b"x" + name), VALUES), max_size=6))
def test_all_that_the_grammar_allows_is_read(method, headers):
    lines = [name + b":" + value for name, value in headers]
    head = read_head(head_of(HOST, *lines, first=method + b" /x HTTP/1.1"))
    assert head.method == method.decode()
    assert head.headers[1:] == [(name.lower(), value.strip(b" \t")) for name, value in headers]


# --- bodies ---------------------------------------------------------------------------------------


def test_a_body_of_known_length_ends_there():
    framing, buffer = LengthFraming(5), bytearray(b"abcdeGET")
    assert framing.take(buffer) == b"abcde"
    assert framing.is_done
    assert buffer == b"GET"


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=8), st.integers(1, 30))
def test_chunks_are_put_together_wherever_they_are_cut(pieces, step):
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\nGET"
    framing, buffer, content = ChunkFraming(), bytearray(), b""
    for start in range(0, len(body), step):
        buffer += body[start : start + step]
        content += b"" if framing.is_done else framing.take(buffer)
    assert framing.is_done
    assert content == b"".join(pieces)
    assert buffer == b"GET"


@pytest.mark.parametrize(
    "body",
    [
        b"5;ext=1\r\nabcde\r\n0\r\n\r\n",
        b"5 \r\nabcde\r\n0\r\n\r\n",
        b" 5\r\nabcde\r\n0\r\n\r\n",
        b"+5\r\nabcde\r\n0\r\n\r\n",
        b"0x5\r\nabcde\r\n0\r\n\r\n",
        b"5\nabcde\n0\n\n",
        b"5\r\nabcdef\r\n0\r\n\r\n",
        b"5\r\nabcde\n\n0\r\n\r\n",
        b"0\r\nX: trailer\r\n\r\n",
        b"fffffffff\r\n",
        b"\r\n",
        b"-1\r\n",
        b"5" * 20,
    ],
)
def test_chunks_that_parsers_read_differently_are_refused(body):
    with pytest.raises(MalformedRequestError):
        ChunkFraming().take(bytearray(body))


@pytest.mark.parametrize("step", [7, 4096])
def test_a_body_may_have_a_thousand_chunks_of_a_byte_and_more_only_beside_long_ones(step):
    framing = ChunkFraming(spare_bytes=SPARE_BYTES)
    long_ones = b"800\r\n%b\r\n" % (b"y" * 2048) + b"1\r\nx\r\n" * 32
    assert len(framing.take(bytearray(long_ones * 64))) == 64 * (2048 + 32)
    assert framing.take(bytearray(b"1\r\nx\r\n" * 900)) == b"x" * 900
    body = b"1\r\nx\r\n" * 1000
    buffer = bytearray()

    def take_all():
        for start in range(0, len(body), step):
            buffer.extend(body[start : start + step])
            framing.take(buffer)

    with pytest.raises(MalformedRequestError, match="too many chunks"):
        take_all()
