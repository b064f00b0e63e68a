"""Objects over HTTP: ranges, connections that are cut, objects that are replaced, refusals."""

from __future__ import annotations

import random
import socket
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from range_server import serving

from zse.errors import (
    LoadCancelledError,
    NotFoundError,
    SourceChangedError,
    StoreError,
    ZSEError,
)
from zse.settings import ProxySettings
from zse.store.http.connection import CONNECT_SECONDS
from zse.store.http.pool import HttpPool
from zse.store.http.ranged import Facts, RangedObject, Request
from zse.store.http.retry import ATTEMPTS, FIRST_ATTEMPTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from range_server import Handler, RangeServer

    from zse.store.http.answer import Answer

PATH = "/bucket/model%20one.zse"
DATA = random.Random(3).randbytes(100_000)
PREFIX = 4096


pytestmark = pytest.mark.usefixtures("no_pauses")


class Somewhere:
    """A place that names what was answered, and knows no more."""

    name = "s3://bucket/model one.zse"

    def __init__(self, url: str) -> None:
        self.url = url

    def request(self) -> Request:
        return Request(url=self.url)

    def describe(self, pool: HttpPool) -> Facts | None:
        return None

    def refusal(self, answer: Answer) -> ZSEError:
        said = answer.read().decode()
        if answer.status == 404:
            return NotFoundError(f"{self.name} does not exist")
        return StoreError(f"the server answered {answer.status} {said}", hint="Sit down.")


@pytest.fixture
def server() -> Iterator[RangeServer]:
    with serving(PATH, DATA) as found:
        yield found


@pytest.fixture
def source(server: RangeServer) -> Iterator[RangedObject]:
    found = open_at(server)
    yield found
    found.close()


def open_at(server: RangeServer, path: str = PATH) -> RangedObject:
    place = Somewhere(server.url + path)
    return RangedObject(place, HttpPool(ProxySettings()), prefix_bytes=PREFIX)


def read(source: RangedObject, offset: int, length: int) -> bytes:
    found = bytearray(length)
    source.read_into(offset, memoryview(found))
    return bytes(found)


def test_opening_is_one_request_that_tells_the_size(
    server: RangeServer, source: RangedObject
) -> None:
    assert server.requests == ["bytes=0-4095"]
    assert source.size_bytes == len(DATA)
    assert source.prefix == DATA[:PREFIX]
    assert read(source, 10, 500) == DATA[10:510]
    assert len(server.requests) == 1


@settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(offset=st.integers(0, len(DATA)), length=st.integers(0, len(DATA)))
def test_any_range_is_read_whole(source: RangedObject, offset: int, length: int) -> None:
    length = min(length, len(DATA) - offset)
    assert read(source, offset, length) == DATA[offset : offset + length]


def test_an_object_smaller_than_the_prefix_is_opened() -> None:
    with serving("/small", b"12345") as server:
        source = open_at(server, "/small")
        assert (source.size_bytes, source.prefix) == (5, b"12345")
        source.close()


def test_a_range_after_the_end_is_refused_without_asking(
    server: RangeServer, source: RangedObject
) -> None:
    with pytest.raises(StoreError, match="has 100000 bytes; the range asked for ends at 100001"):
        read(source, 99_999, 2)
    assert len(server.requests) == 1


def test_connections_are_used_again(server: RangeServer, source: RangedObject) -> None:
    ports = set()

    def note(request: Handler) -> bool:
        ports.add(request.client_address[1])
        return False

    server.fault = note
    for offset in range(5000, 50_000, 5000):
        read(source, offset, 5000)
    assert len(ports) == 1


def test_a_cut_connection_is_taken_up_at_the_byte_it_reached(
    server: RangeServer, source: RangedObject
) -> None:
    left = [2]

    def cut(request: Handler) -> bool:
        if not left[0]:
            return False
        left[0] -= 1
        request.answer_cut(100)
        return True

    server.fault = cut
    assert read(source, 10_000, 5000) == DATA[10_000:15_000]
    assert server.requests[1:] == ["bytes=10000-14999", "bytes=10100-14999", "bytes=10200-14999"]


def test_a_connection_that_is_always_cut_is_an_error(
    server: RangeServer, source: RangedObject
) -> None:
    server.fault = lambda request: request.answer_cut(100) or True
    with pytest.raises(StoreError, match=f"{ATTEMPTS} attempts failed, .* at byte 10500"):
        read(source, 10_000, 5000)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_that_is_busy_is_asked_again(
    server: RangeServer, source: RangedObject, status: int
) -> None:
    left = [3]

    def busy(request: Handler) -> bool:
        left[0] -= 1
        if left[0] >= 0:
            request.answer(status)
        return left[0] >= 0

    server.fault = busy
    assert read(source, 10_000, 10) == DATA[10_000:10_010]
    left[0] = 1000
    with pytest.raises(StoreError, match=f"the server answered {status}"):
        read(source, 10_000, 10)


def test_an_object_that_was_replaced_is_an_error(server: RangeServer, source: RangedObject) -> None:
    server.etag = '"second"'
    with pytest.raises(SourceChangedError, match="was replaced while it was read"):
        read(source, 10_000, 10)
    assert server.headers_seen[1]["if-match"] == '"first"'


def test_a_server_that_ignores_if_match_is_found_out(
    server: RangeServer, source: RangedObject
) -> None:
    def ignore(request: Handler) -> bool:
        first, last = request.wanted()
        where = {"Content-Range": f"bytes {first}-{last}/{len(DATA)}", "ETag": '"second"'}
        request.answer(206, DATA[first : last + 1], where)
        return True

    server.fault = ignore
    with pytest.raises(SourceChangedError):
        read(source, 10_000, 10)


@pytest.mark.parametrize("size", [len(DATA) - 1, len(DATA) + 1])
def test_an_object_of_another_size_is_an_error(
    server: RangeServer, source: RangedObject, size: int
) -> None:
    server.data = (DATA + b"x")[:size]
    with pytest.raises(SourceChangedError):
        read(source, 10_000, 10)


def test_a_server_that_answers_200_to_a_range_is_refused(server: RangeServer) -> None:
    server.fault = lambda request: request.answer(200, DATA) or True
    with pytest.raises(StoreError, match="the server answered 200") as caught:
        open_at(server)
    assert "does not honour ranges" in caught.value.hint


@pytest.mark.parametrize(
    "where", ["", "bytes 1-10/100000", "bytes 0-10/*", "bytes 0-9/" + "9" * 5000, "nonsense"]
)
def test_a_content_range_other_than_asked_is_refused(server: RangeServer, where: str) -> None:
    server.fault = lambda request: request.answer(206, b"x" * 10, {"Content-Range": where}) or True
    with pytest.raises(StoreError, match="Content-Range"):
        open_at(server)


def test_a_shifted_range_is_refused(server: RangeServer, source: RangedObject) -> None:
    where = {"Content-Range": f"bytes 10001-10010/{len(DATA)}"}
    server.fault = lambda request: request.answer(206, b"x" * 10, where) or True
    with pytest.raises(StoreError, match="bytes 10000-10009/100000"):
        read(source, 10_000, 10)


def test_an_object_that_is_not_there_is_not_found(server: RangeServer) -> None:
    with pytest.raises(NotFoundError, match="does not exist"):
        open_at(server, "/other")


def test_a_refusal_is_said_in_the_words_of_the_place(server: RangeServer) -> None:
    server.fault = lambda request: request.answer(403, b"the key was revoked") or True
    with pytest.raises(StoreError, match="answered 403 the key was revoked"):
        open_at(server)
    assert len(server.requests) == 1
    server.fault = lambda request: request.answer(503, b"slowly") or True
    with pytest.raises(StoreError, match=f"{ATTEMPTS} attempts failed.*503 slowly") as caught:
        open_at(server)
    assert caught.value.hint == "Sit down."


def test_an_empty_object_has_no_bytes() -> None:
    def answer(request: Handler) -> bool:
        request.answer(416 if "Range" in request.headers else 200)
        return True

    with serving("/empty", b"") as server:
        server.fault = answer
        assert open_at(server, "/empty").size_bytes == 0


def test_an_object_replaced_while_it_is_opened_is_the_new_one(server: RangeServer) -> None:
    def cut_and_replace(request: Handler) -> bool:
        if server.etag == '"second"':
            return False
        request.answer_cut(100)
        server.etag, server.data = '"second"', DATA[::-1]
        return True

    server.fault = cut_and_replace
    source = open_at(server)
    assert (source.prefix, source.facts.version) == (DATA[::-1][:PREFIX], '"second"')
    assert read(source, 10_000, 10) == DATA[::-1][10_000:10_010]


def test_a_redirect_is_remembered_and_asked_for_anew_when_it_is_over(server: RangeServer) -> None:
    left = [1]

    def redirect(request: Handler) -> bool:
        if request.path == "/start":
            request.answer(302, headers={"Location": PATH})
        elif server.requests[-1] == "bytes=20000-20009" and left:
            left.pop()
            request.answer(403)
        else:
            return False
        return True

    server.fault = redirect
    source = open_at(server, "/start")
    assert len(server.requests) == 2
    read(source, 10_000, 10)
    assert len(server.requests) == 3
    assert read(source, 20_000, 10) == DATA[20_000:20_010]
    assert len(server.requests) == 6


def test_a_server_that_is_down_is_tried_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[float] = []
    connect = socket.create_connection

    def counting(address: tuple[str, int], timeout: float) -> socket.socket:
        attempts.append(timeout)
        return connect(address, timeout=timeout)

    monkeypatch.setattr("socket.create_connection", counting)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        place = Somewhere(f"http://127.0.0.1:{unused.getsockname()[1]}/x")
        with pytest.raises(StoreError, match="cannot be reached: Connection refused"):
            RangedObject(place, HttpPool(ProxySettings()))
    assert attempts == [CONNECT_SECONDS] * FIRST_ATTEMPTS


def test_a_read_that_may_be_left_is_left_half_way(source: RangedObject) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(LoadCancelledError):
        source.read_into(10_000, memoryview(bytearray(10)), stop=stop)
    assert read(source, 10_000, 10) == DATA[10_000:10_010]


def test_an_interrupted_source_stops_a_read_that_hangs(
    server: RangeServer, source: RangedObject
) -> None:
    asked, release = threading.Event(), threading.Event()

    def hang(request: Handler) -> bool:
        asked.set()
        release.wait(60)
        request.close_connection = True
        return True

    def interrupt() -> None:
        asked.wait(60)
        source.interrupt()

    server.fault = hang
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(LoadCancelledError, match="was stopped"):
        read(source, 10_000, 10)
    release.set()
    thread.join()
    with pytest.raises(LoadCancelledError):
        read(source, 10_000, 10)
