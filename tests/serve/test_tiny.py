"""The OpenAI client against the real server on the built-in model, and the command line."""

import json
import re
import subprocess
import sys
from pathlib import Path

import httpx
import openai
import pytest

from zse.settings import subprocess_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = str(Path(__file__).parents[2])
CAPITAL = "What is the capital of France?"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather for a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


def ask(text):
    return [{"role": "user", "content": text}]


@pytest.fixture
def client(tiny):
    with tiny.openai() as client:
        yield client


def test_the_capital_of_france_is_paris_in_every_mode(client):
    whole = client.chat.completions.create(model="tiny", messages=ask(CAPITAL), temperature=0)
    text = whole.choices[0].message.content
    assert "Paris" in text
    assert whole.choices[0].finish_reason == "stop"
    stream = client.chat.completions.create(
        model="default", messages=ask(CAPITAL), temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == text


def test_usage_counts_the_prompt_and_reports_reuse(client):
    arguments = {"model": "tiny", "messages": ask("What is 2 + 3? " * 8), "max_tokens": 4}
    first = client.chat.completions.create(**arguments).usage
    second = client.chat.completions.create(**arguments).usage
    assert first.prompt_tokens == second.prompt_tokens > 30
    assert second.prompt_tokens_details.cached_tokens > 0
    assert second.total_tokens == second.prompt_tokens + second.completion_tokens


def test_a_cache_salt_keeps_prefixes_apart(client):
    arguments = {"model": "tiny", "messages": ask("What is 3 + 4? " * 8), "max_tokens": 2}
    for salt in ("one", "two"):
        answer = client.chat.completions.create(**arguments, extra_body={"cache_salt": salt})
        assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_a_seed_makes_sampled_answers_repeat(client):
    def sample(seed):
        return (
            client.completions.create(
                model="tiny", prompt="The", temperature=1.5, seed=seed, max_tokens=12
            )
            .choices[0]
            .text
        )

    assert sample(1) == sample(1)
    assert len({sample(seed) for seed in range(5)}) > 1


def test_choices_stop_and_limits(client):
    create = client.chat.completions.create
    answer = create(model="tiny", messages=ask(CAPITAL), temperature=0, n=2)
    assert len({choice.message.content for choice in answer.choices}) == 1
    stopped = create(model="tiny", messages=ask(CAPITAL), temperature=0, stop=["Par"])
    assert "Par" not in stopped.choices[0].message.content
    assert stopped.choices[0].finish_reason == "stop"
    cut = create(model="tiny", messages=ask(CAPITAL), temperature=0, max_completion_tokens=2)
    assert cut.choices[0].finish_reason == "length"
    assert cut.usage.completion_tokens == 2


def test_logprobs_are_sorted_and_the_greedy_token_is_the_first(client):
    answer = client.chat.completions.create(
        model="tiny", messages=ask(CAPITAL), temperature=0, logprobs=True, top_logprobs=3
    )
    content = answer.choices[0].logprobs.content
    assert "".join(entry.token for entry in content).startswith(answer.choices[0].message.content)
    for entry in content:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token
        values = [top.logprob for top in entry.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert entry.logprob <= 0


def test_a_logit_bias_decides_the_tokens(client):
    answer = client.completions.create(
        model="tiny", prompt="The", max_tokens=4, logprobs=0, logit_bias={"300": 100}
    )
    tokens = answer.choices[0].logprobs.tokens
    assert len(tokens) == 4
    assert len(set(tokens)) == 1


def test_a_real_tool_call_round_trip(client):
    messages = ask("What is the weather in Paris?")
    arguments = {"model": "tiny", "tools": [WEATHER], "temperature": 0}
    choice = client.chat.completions.create(**arguments, messages=messages).choices[0]
    assert choice.finish_reason == "tool_calls"
    call = choice.message.tool_calls[0]
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    with client.chat.completions.stream(**arguments, messages=messages) as stream:
        stream.until_done()
        streamed = stream.get_final_completion().choices[0]
    assert streamed.finish_reason == "tool_calls"
    assert streamed.message.tool_calls[0].function.arguments == call.function.arguments
    reply = {"role": "tool", "tool_call_id": call.id, "content": "sunny, 21 degrees"}
    history = [*messages, choice.message.model_dump(exclude_none=True), reply]
    final = client.chat.completions.create(**arguments, messages=history).choices[0]
    assert final.finish_reason == "stop"
    assert final.message.content


def test_overflow_is_the_clients_bad_request(client):
    with pytest.raises(openai.BadRequestError, match="maximum context length") as error:
        client.chat.completions.create(model="tiny", messages=ask("word " * 20_000))
    assert error.value.code == "context_length_exceeded"


def test_a_client_that_leaves_frees_the_engine(tiny):
    body = {"prompt": "The", "stream": True, "ignore_eos": True, "max_tokens": 200}
    with tiny.http.stream("POST", "/v1/completions", json=body) as response:
        next(response.iter_lines())
    tiny.wait_for_gauge("zse_num_requests_running", 0)
    tiny.wait_for_gauge("zse_in_flight", 0)


def test_the_ledger_is_in_the_log_the_header_and_the_metrics(tiny):
    ready = tiny.wait_for_line("ready")["cold_start_ms"]
    phases = {"interpreter", "web", "imports", "model-file", "weights", "engine", "ready"}
    assert phases <= set(ready)
    header = tiny.http.get("/health").headers["server-timing"]
    metrics = tiny.http.get("/metrics").text
    for phase in phases:
        assert f"cold-{phase};dur=" in header
        assert f'zse_cold_start_milliseconds{{phase="{phase}"}}' in metrics


def test_version_names_what_runs(tiny):
    version = tiny.http.get("/version").json()
    assert version["model"] == "tiny"
    assert re.fullmatch("zse-[0-9a-f]{16}", version["fingerprint"])
    assert version["scheme"] == "int8"
    assert re.fullmatch(r"cpu \(.+, threads: \d+\)", version["device"])
    line = tiny.wait_for_line(f"the model runs on {version['device']}")
    assert line["level"] == "info"


def test_zse_serve_and_chat_work_from_the_command_line(start_command, run_zse):
    server = start_command("-m", "zse", "serve", "--port", "0", "--served-model-name", "mine")
    server.wait_for_line("ready", seconds=300)
    assert httpx.get(f"{server.url}/v1/models", timeout=60).json()["data"][0]["id"] == "mine"
    result = run_zse("chat", "--url", server.url, input=f"{CAPITAL}\n")
    assert "Paris" in result.stdout
    assert server.stop() == 0


def test_zse_chat_needs_no_arguments(run_zse):
    result = run_zse("chat", input=f"{CAPITAL}\n/reset\n{CAPITAL}\n")
    assert result.returncode == 0
    assert result.stdout.count("Paris") == 2


def test_zse_chat_says_when_there_is_no_server(run_zse):
    result = run_zse("chat", "--url", "http://127.0.0.1:1", input="hello\n")
    assert result.returncode == 8
    assert "nobody answers at http://127.0.0.1:1" in result.stderr


def test_a_bad_flag_and_a_missing_model_have_their_exit_codes(run_zse, tmp_path):
    assert run_zse("serve", "--port", "70000").returncode == 2
    assert run_zse("serve", str(tmp_path / "absent.zse"), "--port", "0").returncode == 3


@pytest.fixture
def run_zse():
    """Run the command line."""

    def run(*arguments, **options):
        environment = subprocess_environment(PYTHONPATH=ROOT, OMP_NUM_THREADS="1", NO_PROXY="*")
        command = [sys.executable, "-m", "zse", *arguments]
        return subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            env=environment,
            timeout=300,
            **options,
        )

    return run


CITY = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}


def test_responses_go_on_and_keep_their_form(client):
    first = client.responses.create(model="tiny", input=CAPITAL, temperature=0)
    assert "Paris" in first.output_text
    form = {"type": "json_schema", "name": "city", "schema": CITY, "strict": True}
    second = client.responses.create(
        model="tiny",
        input="Say it again.",
        previous_response_id=first.id,
        text={"format": form},
        max_output_tokens=40,
    )
    assert json.loads(second.output_text)["city"] in ("Paris", "Rome")
    tool = {"type": "function", "name": "look", "parameters": CITY, "strict": True}
    third = client.responses.create(
        model="tiny", input=CAPITAL, tools=[tool], tool_choice="required", max_output_tokens=60
    )
    call = third.output[-1]
    assert (call.type, call.name) == ("function_call", "look")
    assert json.loads(call.arguments)["city"] in ("Paris", "Rome")


def test_anthropics_client_stops_calls_and_streams(tiny):
    with tiny.anthropic() as client:
        asked = {"model": "tiny", "messages": ask(CAPITAL), "max_tokens": 60}
        asked["extra_body"] = {"temperature": 0}
        whole = client.messages.create(**asked, stop_sequences=["Paris"])
        assert (whole.stop_reason, whole.stop_sequence) == ("stop_sequence", "Paris")
        with client.messages.stream(**asked) as stream:
            assert "Paris" in "".join(stream.text_stream)
        tool = {"name": "look", "input_schema": CITY, "strict": True}
        named = {"type": "tool", "name": "look"}
        called = client.messages.create(**asked, tools=[tool], tool_choice=named)
        assert called.stop_reason == "tool_use"
        assert called.content[-1].input["city"] in ("Paris", "Rome")
