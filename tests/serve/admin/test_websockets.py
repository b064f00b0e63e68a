"""Conversations and statistics over WebSockets, with a real client and a real server."""

import json
from contextlib import contextmanager

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync import client as websockets_client


def connect(url, **options):
    """Open a socket; the first one of a server waits until FastAPI is imported."""
    return websockets_client.connect(url, open_timeout=120, **options)


class Talk:
    """A client of one socket."""

    def __init__(self, socket) -> None:
        self._socket = socket

    def say(self, text, **fields):
        self.send({"type": "chat", "messages": [{"role": "user", "content": text}], **fields})

    def send(self, message):
        self._socket.send(message if isinstance(message, str | bytes) else json.dumps(message))

    def hear(self):
        return json.loads(self._socket.recv(timeout=30))

    def hear_until(self, kind):
        heard = [self.hear()]
        while heard[-1]["type"] != kind:
            heard.append(self.hear())
        return heard


def url_of(server, path):
    return server.url.replace("http://", "ws://") + path


@contextmanager
def talk_to(server, path="/ws/chat", **options):
    with connect(url_of(server, path), **options) as socket:
        yield Talk(socket)


@pytest.fixture
def talk(server):
    with talk_to(server) as talk:
        yield talk


def test_an_answer_comes_token_by_token_between_its_start_and_its_usage(talk):
    talk.say("say:hey", id="7")
    heard = talk.hear_until("done")
    assert {message["id"] for message in heard} == {"7"}
    assert [message["type"] for message in heard] == ["start", *["token"] * 3, "end", "done"]
    assert "".join(message.get("content", "") for message in heard) == "hey"
    assert heard[0]["model"] == "scripted"
    assert heard[-2]["finish_reason"] == "stop"
    assert heard[-1]["usage"]["completion_tokens"] == 3


def test_choices_are_told_apart_and_the_connection_serves_the_next_question(talk):
    talk.say("say:ab", n=2)
    heard = talk.hear_until("done")
    for index in (0, 1):
        said = [m["content"] for m in heard if m["type"] == "token" and m["index"] == index]
        assert said == ["a", "b"]
    talk.say("say:next")
    assert talk.hear_until("done")[-1]["usage"]["completion_tokens"] == 4


def test_a_cancelled_answer_ends_its_work_and_the_next_one_comes(talk, server):
    talk.say("slow:400", id="long")
    talk.hear_until("token")
    talk.send({"type": "cancel"})
    assert talk.hear_until("cancelled")[-1] == {"type": "cancelled", "id": "long"}
    server.wait_for_gauge("zse_num_requests_running", 0)
    talk.say("say:x")
    assert talk.hear_until("done")


def test_one_answer_at_a_time(talk):
    talk.say("slow:20", id="first")
    talk.say("say:x", id="second")
    error = talk.hear_until("error")[-1]
    assert (error["id"], error["error"]["code"]) == ("second", "conversation_busy")
    assert talk.hear_until("done")[-1]["id"] == "first"


def test_a_client_that_leaves_ends_its_work(server):
    with talk_to(server) as talk:
        talk.say("slow:500")
        talk.hear_until("token")
    server.wait_for_gauge("zse_num_requests_running", 0)
    server.wait_for_gauge("zse_in_flight", 0)


@pytest.mark.parametrize(
    ("message", "code", "param"),
    [
        ("no json", None, None),
        ("[1]", None, None),
        (b"\xff\xfe", None, None),
        ('{"type": "dance"}', None, "type"),
        ('{"type": "chat"}', "missing_required_parameter", "messages"),
        ('{"id": 7}', None, "id"),
        ('{"id": "' + "x" * 200 + '"}', None, "id"),
        ('{"messages": ' + "[" * 5000 + "]" * 5000 + "}", None, None),
        ('{"messages": [' + "[]," * 60000 + "[]]}", None, None),
        (
            '{"messages": [{"role": "user", "content": "x"}], "model": "y"}',
            "model_not_found",
            "model",
        ),
        ('{"messages": [{"role": "user", "content": "x"}], "temperature": 9}', None, "temperature"),
    ],
)
def test_what_is_wrong_is_told_and_the_connection_goes_on(talk, message, code, param):
    talk.send(message)
    error = talk.hear()
    assert error["type"] == "error"
    assert set(error["error"]) == {"message", "type", "param", "code"}
    assert (error["error"]["code"], error["error"]["param"]) == (code, param)
    assert len(json.dumps(error)) < 1000
    talk.say("say:x")
    assert talk.hear_until("done")


def test_an_error_in_the_middle_is_told_without_its_paths(talk):
    talk.say("break:2", id="b")
    error = talk.hear_until("error")[-1]
    assert error["id"] == "b"
    assert "/opt" not in json.dumps(error)


def test_a_message_beyond_the_limit_closes_the_connection(server):
    with connect(url_of(server, "/ws/chat")) as socket:
        socket.send("x" * (2 << 20))
        with pytest.raises(ConnectionClosed) as caught:
            socket.recv(timeout=30)
    assert caught.value.rcvd.code == 1009


def test_a_page_of_another_origin_opens_none(server):
    for path in ("/ws/chat", "/ws/stats"):
        with (
            pytest.raises(InvalidStatus) as caught,
            connect(url_of(server, path), origin="https://evil.example"),
        ):
            pass
        assert caught.value.response.status_code == 403


def test_an_unknown_socket_is_refused(server):
    with pytest.raises(InvalidStatus) as caught, connect(url_of(server, "/ws/nothing")):
        pass
    assert caught.value.response.status_code in (403, 404)


def test_before_the_model_is_there_a_socket_is_refused_with_503(start_server):
    loading = start_server("--load-seconds", "300")
    with pytest.raises(InvalidStatus) as caught, connect(url_of(loading, "/ws/chat")):
        pass
    response = caught.value.response
    assert response.status_code == 503
    assert json.loads(response.body)["error"]["code"] == "server_is_overloaded"


def test_a_drain_lets_an_answer_end_and_then_closes(start_server):
    server = start_server()
    server.wait_for_line("ready")
    with talk_to(server) as talk, talk_to(server, "/ws/stats") as stats:
        stats.hear()
        talk.say("slow:50")
        talk.hear_until("token")
        server.process.terminate()
        assert talk.hear_until("done")
        with pytest.raises(ConnectionClosed):
            talk.hear_until("never")
    assert server.process.wait(30) == 0


def test_statistics_come_again_and_again(server):
    with talk_to(server, "/ws/stats?interval=0.5") as stats:
        first, second = stats.hear(), stats.hear()
    assert first["type"] == "stats"
    assert second["timestamp"] > first["timestamp"]
    assert [one["name"] for one in first["stats"]["models"]] == ["scripted"]
    assert first["stats"]["memory"]["process_bytes"] > 0
    assert first["requests"]["minutes"] == 1


@pytest.mark.parametrize("interval", ["0", "-1", "1e9", "x"])
def test_an_interval_out_of_range_is_refused(server, interval):
    with (
        pytest.raises((InvalidStatus, ConnectionClosed)),
        talk_to(server, f"/ws/stats?interval={interval}") as stats,
    ):
        stats.hear()


def test_all_listeners_get_the_same_sample(call, state, runner):
    import asyncio

    from zse.serve.admin.stats_socket import Sampler

    async def sample_at_once():
        sampler = state.one_of(Sampler)
        return await asyncio.gather(*(sampler.sample() for _ in range(20)))

    assert len(set(runner.run(sample_at_once()))) == 1
