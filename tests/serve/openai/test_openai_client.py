"""The OpenAI client's own calls against a server process with a scripted model."""

import asyncio
import json
import signal
import socket
import threading
from http.client import HTTPConnection

import httpx
import openai
import pytest

pytestmark = pytest.mark.slow


def ask(text):
    return [{"role": "user", "content": text}]


def test_chat_answers(client):
    answer = client.chat.completions.create(model="default", messages=ask("say:Paris"))
    assert answer.choices[0].message.content == "Paris"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 5
    assert answer._request_id.startswith("req_")


def test_chat_streams_with_usage(client):
    stream = client.chat.completions.create(
        model="default",
        messages=ask("say:Grüße 漢字"),
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Grüße 漢字"
    assert chunks[-1].usage.completion_tokens == len("Grüße 漢字".encode())
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"


def test_the_clients_stream_helper_assembles_the_answer(client):
    with client.chat.completions.stream(model="default", messages=ask("say:abc")) as stream:
        stream.until_done()
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "abc"


def test_choices_stop_and_length(client):
    answer = client.chat.completions.create(
        model="default", messages=ask("say:abcdef"), n=3, max_tokens=4, stop=["c"]
    )
    assert [c.message.content for c in answer.choices] == ["ab"] * 3
    cut = client.chat.completions.create(model="default", messages=ask("say:abcdef"), max_tokens=4)
    assert (cut.choices[0].message.content, cut.choices[0].finish_reason) == ("abcd", "length")


def test_logprobs_in_both_modes(client):
    arguments = {"model": "default", "messages": ask("say:ab"), "logprobs": True, "top_logprobs": 2}
    content = client.chat.completions.create(**arguments).choices[0].logprobs.content
    assert [(entry.token, len(entry.top_logprobs)) for entry in content] == [("a", 2), ("b", 2)]
    streamed = [
        entry
        for chunk in client.chat.completions.create(**arguments, stream=True)
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    assert [entry.token for entry in streamed] == ["a", "b"]


def test_completions_in_both_modes(client):
    answer = client.completions.create(model="default", prompt=["say:a", "say:b"], logprobs=1)
    assert [c.text for c in answer.choices] == ["a", "b"]
    assert answer.choices[0].logprobs.tokens == ["a"]
    stream = client.completions.create(model="default", prompt=["say:ab", "say:cd"], stream=True)
    texts = {0: "", 1: ""}
    for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == {0: "ab", 1: "cd"}


def test_models_list_and_one(client):
    assert [model.id for model in client.models.list()] == ["scripted"]
    assert client.models.retrieve("scripted").owned_by == "zse"


def test_errors_map_to_the_clients_classes(client):
    create = client.chat.completions.create
    with pytest.raises(openai.BadRequestError) as bad:
        create(model="default", messages=ask("x"), temperature=9)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as missing:
        create(model="nothing", messages=ask("x"))
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="context_length_exceeded") as long:
        create(model="default", messages=ask("x" * 600))
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.InternalServerError):
        create(model="default", messages=ask("break:0"))


def test_an_error_inside_a_stream_is_raised_by_the_client(client):
    stream = client.chat.completions.create(model="default", messages=ask("break:4"), stream=True)
    with pytest.raises(openai.APIError):
        list(stream)


CALL = 'say:<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


def test_a_tool_call_in_both_modes(client):
    arguments = {"model": "default", "messages": ask(CALL), "tools": TOOLS}
    choice = client.chat.completions.create(**arguments).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls[0].function.name == "weather"
    with client.chat.completions.stream(**arguments) as stream:
        stream.until_done()
        choice = stream.get_final_completion().choices[0]
    assert choice.finish_reason == "tool_calls"
    function = choice.message.tool_calls[0].function
    assert (function.name, function.arguments.replace(" ", "")) == ("weather", '{"city":"Paris"}')


def test_tools_do_not_hold_back_plain_text(client):
    stream = client.chat.completions.create(
        model="default", messages=ask("say:2 < 3, so <b>yes"), tools=TOOLS, stream=True
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "2 < 3, so <b>yes"
    assert len(chunks) > 10


def test_tool_choice_none_shows_no_tools_and_parses_no_call(client):
    answer = client.chat.completions.create(
        model="default", messages=ask(CALL), tools=TOOLS, tool_choice="none"
    )
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].message.content == CALL[4:]


def test_a_cut_tool_call_ends_with_length(client):
    answer = client.chat.completions.create(
        model="default", messages=ask(CALL), tools=TOOLS, max_tokens=20
    )
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_client_that_leaves_cancels_its_work(start_server, is_stream):
    server = start_server()
    server.wait_for_line("ready")
    body = {"messages": ask("slow:4000"), "stream": is_stream}
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    headers = {"content-type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    if is_stream:
        connection.getresponse().readline()
    server.wait_for_gauge("zse_num_requests_running", 1)
    connection.close()
    server.wait_for_gauge("zse_num_requests_running", 0)
    assert server.gauge("zse_num_requests_waiting") == 1  # the script's count of cancellations
    assert server.gauge("zse_in_flight") == 0


def test_a_full_queue_is_a_rate_limit_error(start_server):
    server = start_server("--max-running", "1", "--max-queue", "0")
    server.wait_for_line("ready")
    with server.openai() as client:
        stream = client.chat.completions.create(
            model="default", messages=ask("slow:4000"), stream=True
        )
        next(iter(stream))
        with pytest.raises(openai.RateLimitError) as full:
            client.chat.completions.create(model="default", messages=ask("x"))
        assert int(full.value.response.headers["retry-after"]) >= 1
        stream.close()


def test_probes_answer_while_the_model_loads(start_server, tmp_path):
    server = start_server("--load-until", str(tmp_path / "go on"))
    assert server.http.get("/health/live").json()["status"] == "live"
    loading = server.http.get("/health/ready")
    assert loading.status_code == 503
    assert loading.headers["retry-after"] == "1"
    assert server.http.get("/ping").status_code == 204
    with server.openai() as client, pytest.raises(openai.InternalServerError) as busy:
        client.models.list()
    assert busy.value.code == "server_is_overloaded"
    (tmp_path / "go on").touch()
    ready = server.wait_for_line("ready")
    assert {"interpreter", "ready", "answering"} <= set(ready["cold_start_ms"])
    assert server.http.get("/ping").status_code == 200
    assert "cold-ready;dur=" in server.http.get("/health").headers["server-timing"]


def test_a_client_that_retries_rides_out_the_loading(start_server):
    server = start_server("--load-seconds", "1")
    with server.openai(max_retries=60) as client:
        answer = client.chat.completions.create(model="default", messages=ask("say:hi"))
    assert answer.choices[0].message.content == "hi"


def test_a_model_that_cannot_be_loaded_ends_the_process_with_its_code(start_server):
    server = start_server("--load-fails")
    assert server.process.wait(60) == 1
    assert "no such thing" in "".join(server.raw)


def test_sigterm_lets_streams_finish_and_refuses_new_work(start_server, tmp_path):
    server = start_server("--drain-seconds", "300")
    question = ask(f"held:{tmp_path / 'go-on'} slow:20")
    server.wait_for_line("ready")
    with server.openai() as client:
        stream = client.chat.completions.create(model="default", messages=question, stream=True)
        chunks = [next(stream)]
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_line("draining")
        assert server.http.get("/health/ready").status_code == 503
        assert server.http.get("/health/live").status_code == 200
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model="default", messages=ask("x"))
        (tmp_path / "go-on").touch()
        chunks.extend(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "x" * 20
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert server.process.wait(60) == 0


def test_a_drain_that_runs_out_of_time_ends_streams_with_an_error_event(start_server):
    server = start_server("--drain-seconds", "0.2")
    server.wait_for_line("ready")
    body = {"messages": ask("slow:4000"), "stream": True}
    whole: list[httpx.Response] = []
    other = threading.Thread(
        target=lambda: whole.append(
            httpx.post(
                f"{server.url}/v1/chat/completions", json={**body, "stream": False}, timeout=60
            )
        )
    )
    with server.http.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        other.start()
        server.wait_for_gauge("zse_in_flight", 2)
        server.process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    other.join()
    assert '"code":"server_is_overloaded"' in rest[-1]
    assert whole[0].status_code == 503
    assert server.process.wait(60) == 0


def test_sigint_stops_an_idle_server(start_server):
    server = start_server()
    server.wait_for_line("ready")
    assert server.stop(signal.SIGINT) == 0


def test_sigterm_while_loading_stops_at_once(start_server):
    server = start_server("--load-seconds", "300")
    assert server.http.get("/health/live").status_code == 200
    assert server.stop() == 0


def test_a_huge_header_is_refused(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * (1 << 20))
        answer = connection.recv(4096)
    assert b" 431 " in answer.split(b"\r\n")[0]


def test_the_async_client_runs_many_streams_at_once(server):
    async def one(client, number):
        stream = await client.chat.completions.create(
            model="default", messages=ask(f"say:answer {number}"), stream=True
        )
        return "".join([c.choices[0].delta.content or "" async for c in stream])

    async def many():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused") as client:
            return await asyncio.gather(*(one(client, number) for number in range(32)))

    assert asyncio.run(many()) == [f"answer {number}" for number in range(32)]
