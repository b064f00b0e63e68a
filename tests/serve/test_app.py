"""What the routes answer, with a scripted model, in this process."""

import json

import pytest

from zse.serve.http.hosts import LOOPBACK_HOSTS
from zse.serve.http.rules import HTTPRules
from zse.server_options import ServeOptions


def test_a_chat_answer_has_every_field(call):
    response = call.chat("say:Paris")
    body = response.json()
    assert response.status_code == 200
    assert body["id"].startswith("chatcmpl-")
    assert body["object"] == "chat.completion"
    assert body["model"] == "scripted"
    assert body["system_fingerprint"] == "zse-test"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Paris", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    usage = body["usage"]
    assert usage["completion_tokens"] == 5
    assert usage["total_tokens"] == usage["prompt_tokens"] + 5
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    assert usage["completion_tokens_details"] == {
        "reasoning_tokens": 0,
        "accepted_prediction_tokens": 3,
        "rejected_prediction_tokens": 1,
    }


def test_stream_chunks_are_exactly_as_clients_expect(call):
    response = call.chat("say:Hi", stream=True, stream_options={"include_usage": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert deltas == [
        {"role": "assistant", "content": "", "refusal": None},
        {"content": "H"},
        {"content": "i"},
        {},
    ]
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None, None, None, "stop"]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 2
    for key in ("id", "created", "model", "object", "system_fingerprint"):
        assert len({str(chunk[key]) for chunk in chunks}) == 1


def test_without_include_usage_no_chunk_has_usage_or_empty_choices(call):
    response = call.chat("say:Hi", stream=True)
    chunks = [json.loads(line[6:]) for line in response.text.split("\n\n")[:-2]]
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


def test_text_with_quotes_and_newlines_survives_the_splice(call):
    text = 'a "b"\n\\ ü 漢 \u2028 end'
    response = call.chat("say:" + text, stream=True)
    chunks = [json.loads(line[6:]) for line in response.text.split("\n\n")[:-2]]
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == text


def test_a_completion_answer_has_every_field(call):
    body = call.complete("say:ab").json()
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    choice = {"index": 0, "text": "ab", "logprobs": None, "finish_reason": "stop"}
    assert body["choices"] == [choice]


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("say:ab", ["ab"]),
        (["say:a", "say:b"], ["a", "b"]),
        (list(b"say:z"), ["z"]),
        ([list(b"say:y"), list(b"say:z")], ["y", "z"]),
        (["say:x", list(b"say:z")], ["x", "z"]),
    ],
)
def test_prompts_may_be_texts_token_ids_or_lists_of_them(call, prompt, texts):
    choices = call.complete(prompt).json()["choices"]
    assert [choice["text"] for choice in choices] == texts


def test_echo_puts_the_prompt_in_front(call):
    assert call.complete("say:ab", echo=True).json()["choices"][0]["text"] == "say:abab"
    only_prompt = call.complete("say:ab", echo=True, max_tokens=0).json()
    assert only_prompt["choices"][0]["text"] == "say:ab"
    assert only_prompt["usage"]["completion_tokens"] == 0
    streamed = call.complete("say:ab", echo=True, stream=True).text.split("\n\n")[:-2]
    texts = [json.loads(line[6:])["choices"][0]["text"] for line in streamed]
    assert "".join(texts) == "say:abab"


def test_completion_logprobs_are_four_lists_of_equal_length(call):
    logprobs = call.complete("say:ab", logprobs=2).json()["choices"][0]["logprobs"]
    assert logprobs == {
        "tokens": ["a", "b"],
        "token_logprobs": [-0.1, -0.1],
        "top_logprobs": [{"a": -0.1, "?": -9999.0}, {"b": -0.1, "?": -9999.0}],
        "text_offset": [0, 1],
    }


def test_chat_logprobs_carry_tokens_bytes_and_alternatives(call):
    body = call.chat("say:a", logprobs=True, top_logprobs=1).json()
    top = {"token": "a", "logprob": -0.1, "bytes": [97]}
    assert body["choices"][0]["logprobs"] == {
        "content": [{**top, "top_logprobs": [top]}],
        "refusal": None,
    }
    none = call.chat("say:a", logprobs=True).json()["choices"][0]["logprobs"]
    assert none["content"][0]["top_logprobs"] == []


def test_choices_are_numbered_prompt_by_prompt(call):
    choices = call.complete(["say:a", "say:b"], n=2).json()["choices"]
    assert [(c["index"], c["text"]) for c in choices] == [(0, "a"), (1, "a"), (2, "b"), (3, "b")]


def test_engine_parameters_are_the_requests_fields(call, state):
    call.chat(
        "say:a",
        temperature=0.5,
        top_p=0.9,
        n=2,
        seed=7,
        stop=["x", "y"],
        max_completion_tokens=9,
        logit_bias={"5": -100},
        presence_penalty=0.1,
        frequency_penalty=0.2,
        top_k=4,
        cache_salt="mine",
    )
    _, params, salt = state.model.engine.seen[0]
    assert (params.temperature, params.top_p, params.n, params.seed) == (0.5, 0.9, 2, 7)
    assert (params.stop, params.max_tokens, params.top_k) == (("x", "y"), 9, 4)
    assert dict(params.logit_bias) == {5: -100}
    assert (params.presence_penalty, params.frequency_penalty, salt) == (0.1, 0.2, ":mine")


def test_without_max_tokens_a_chat_may_fill_the_context(call, state):
    call.chat("say:a")
    prompt, params, _ = state.model.engine.seen[0]
    assert params.max_tokens == 512 - len(prompt)


def test_top_p_zero_means_the_likeliest_token(call, state):
    call.chat("say:a", top_p=0)
    assert state.model.engine.seen[0][1].temperature == 0


def test_defaults_of_unsupported_parameters_are_accepted(call):
    response = call.chat(
        response_format={"type": "text"},
        functions=None,
        modalities=["text"],
        store=False,
        service_tier="auto",
        user="u",
        metadata={"a": "b"},
        temperature=None,
    )
    assert response.status_code == 200
    assert "x-zse-ignored" not in response.headers


def test_unknown_fields_are_reported_in_a_header(call):
    response = call.chat(frobnicate=1, **{"x\r\ny: z": 2})
    assert response.status_code == 200
    assert response.headers["x-zse-ignored"] == "frobnicate, x??y??z"


def test_text_parts_and_developer_messages_reach_the_template(call, state):
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [{"role": "developer", "content": "be"}, {"role": "user", "content": parts}]
    assert call.chat(messages=messages).status_code == 200
    assert state.model.engine.seen[0][0] == "system: be\nuser: one\ntwo"


def test_names_that_match_an_alias_reach_the_model_and_no_others(state, make_caller):
    state.options = ServeOptions(model_alias="claude-*, gpt-4o")
    call = make_caller()
    assert call.chat(model="claude-sonnet-4-5").json()["model"] == "scripted"
    assert call.chat(model="gpt-4o").status_code == 200
    assert call.chat(model="gpt-4o-mini").status_code == 404
    assert call.chat(model="my-claude-1").status_code == 404


def test_the_alias_and_the_name_both_reach_the_model(call):
    assert call.chat(model="default").json()["model"] == "scripted"
    assert call.chat(model="scripted").status_code == 200
    assert call("GET", "/v1/models/default").json()["id"] == "scripted"
    entry = call("GET", "/v1/models").json()["data"][0]
    assert entry == {
        "id": "scripted",
        "object": "model",
        "created": 1,
        "owned_by": "zse",
        "max_model_len": 512,
        "status": "loaded",
    }


def test_a_failure_inside_a_stream_is_an_error_event(call):
    events = call.chat("break:3", stream=True).text.split("\n\n")
    error = json.loads(events[-2].removeprefix("data: "))["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "/opt" not in error["message"]
    assert "[DONE]" not in events[-2]


def test_when_ready_every_probe_is_200(call):
    for path in ("/health", "/health/ready", "/health/live", "/ping", "/metrics"):
        assert call("GET", path).status_code == 200
    assert call("GET", "/health").json()["status"] == "ready"


def test_every_response_has_a_request_id_and_the_ledger(call):
    response = call.chat()
    assert response.headers["x-request-id"].startswith("req_")
    assert "cold-interpreter;dur=" in response.headers["server-timing"]
    echoed = call("GET", "/health", headers={"x-request-id": "abc-1"})
    assert echoed.headers["x-request-id"] == "abc-1"
    forged = call("GET", "/health", headers={"x-request-id": "a b"})
    assert forged.headers["x-request-id"].startswith("req_")


def test_the_first_answer_alone_reports_the_first_token(call, state):
    state.ledger.mark("ready")
    first, second = call.chat("say:a"), call.chat("say:a", stream=True)
    timing = dict(part.split(";dur=") for part in first.headers["server-timing"].split(", "))
    assert float(timing["cold-first-token"]) >= float(timing["cold-ready"])
    assert "cold-first-token" not in second.headers["server-timing"]
    assert "cold-first-token" not in call("GET", "/health").headers["server-timing"]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8000", "[::1]:80", "LOCALHOST:1"])
def test_a_loopback_server_answers_its_own_names(make_caller, host):
    call = make_caller(rules=HTTPRules(hosts=LOOPBACK_HOSTS))
    assert call("GET", "/v1/models", headers={"host": host}).status_code == 200


def test_a_flood_of_probes_while_loading_is_counted_whole_and_not_kept_for_ever(loading, state):
    for _ in range(5000):
        state.metrics.count("responses", "ready", "503")
    assert len(state.metrics._early) == 0
    text = loading("GET", "/metrics").text
    assert 'zse_requests_total{route="ready",status="503"} 5000.0' in text


def test_metrics_count_what_happened(call):
    call.chat("say:abc")
    call.chat("break:2")
    call.chat(temperature=9)
    text = call("GET", "/metrics").text
    assert 'zse_requests_total{route="create_chat_completion",status="200"} 1.0' in text
    assert 'zse_requests_total{route="create_chat_completion",status="400"} 1.0' in text
    assert 'zse_generation_tokens_total{model="scripted"} 5.0' in text
    assert 'zse_request_success_total{finished_reason="stop",model="scripted"} 1.0' in text
    assert 'zse_request_success_total{finished_reason="abort",model="scripted"} 1.0' in text
    assert 'zse_requests_cancelled_total{model="scripted"} 1.0' in text
    assert 'zse_time_to_first_token_seconds_count{model="scripted"} 2.0' in text
    assert 'zse_cold_start_milliseconds{phase="interpreter"}' in text


def test_sagemaker_invocations_reach_both_kinds(call):
    messages = [{"role": "user", "content": "say:a"}]
    chat = call("POST", "/invocations", json={"messages": messages})
    assert chat.json()["object"] == "chat.completion"
    text = call("POST", "/invocations", json={"prompt": "say:a"})
    assert text.json()["object"] == "text_completion"


def test_one_log_line_says_what_a_request_used_and_not_what_it_said(call, caplog):
    caplog.set_level("INFO", logger="zse.serve")
    call.chat("say:canary-prompt")
    lines = [record for record in caplog.records if record.message == "generation"]
    assert [(line.outcome, line.completion_tokens) for line in lines] == [("completed", 13)]
    assert "canary" not in caplog.text
