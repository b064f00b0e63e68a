"""Every refusal has the schema's body, names its parameter and leaks nothing."""

import pytest

from zse.options import load_options
from zse.serve.http.bodies import MAX_BODY_BYTES
from zse.serve.http.hosts import LOOPBACK_HOSTS
from zse.serve.http.rules import HTTPRules
from zse.serve.shutdown import Presence
from zse.server_options import ServeOptions

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 10**9}, "n"),
        ({"n": 2**70}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"logit_bias": {"no": 1}}, "logit_bias"),
        ({"logit_bias": {"999": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": 5}, "stop"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"content": "no role"}]}, "messages[0].role"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "refuse"}]}, "messages"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"_zse_check": 1}}, "chat_template_kwargs"),
        ({"stop_token_ids": [256]}, "stop_token_ids"),
        ({"min_tokens": 3, "stop_token_ids": [-1]}, "stop_token_ids"),
        ({"priority": 10**6}, "priority"),
    ],
)
def test_a_bad_value_is_400_and_names_its_parameter(call, fields, param, check_error):
    response = call.chat(**fields)
    message = response.json()["error"]["message"]
    code = "missing_required_parameter" if "Missing" in message else None
    check_error(response, 400, param=param, code=code)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("functions", [{"name": "f"}]),
        ("audio", {"voice": "x"}),
        ("modalities", ["audio"]),
        ("web_search_options", {}),
        ("chat_template", "{{ lipsum.__globals__ }}"),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name_and_leads_on(
    call, name, value, check_error
):
    response = call.chat(**{name: value})
    message = check_error(response, 400, param=name, code="unsupported_parameter")
    refusal, advice = message.split("is not supported by this server.")
    assert name in refusal
    assert advice.endswith(".")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("store", True),
        ("reasoning_effort", "high"),
        ("verbosity", "low"),
        ("service_tier", "flex"),
        ("prompt_cache_retention", "24h"),
        ("prediction", {"type": "content", "content": "x"}),
    ],
)
def test_what_only_asks_for_a_service_is_answered_and_reported_back(call, name, value):
    response = call.chat("say:a", **{name: value})
    assert response.json()["choices"][0]["message"]["content"] == "a"
    assert response.headers["x-zse-ignored"] == name


def test_what_agents_send_beside_a_question_is_answered(call):
    fields = {"modalities": ["text"], "metadata": {"run": "1"}, "user": "u", "store": False}
    assert call.chat("say:a", parallel_tool_calls=True, **fields).status_code == 200


def test_an_image_is_refused(call, check_error):
    part = {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}
    response = call.chat(messages=[{"role": "user", "content": [part]}])
    check_error(response, 400, param="messages[0].content", code="unsupported_content")


def test_overflow_says_what_client_libraries_search_for(call, check_error):
    for response, param in (
        (call.chat("x" * 600), "messages"),
        (call.chat("x", max_tokens=600), "messages"),
        (call.complete("x" * 600), "prompt"),
    ):
        message = check_error(response, 400, param=param, code="context_length_exceeded")
        assert "This model's maximum context length is 512 tokens." in message
        assert "reduce the length of the messages" in message
        assert "(context_length_exceeded)" in message


@pytest.mark.parametrize("prompt", ["", [], [[]], [999], [-1], [1, "a"], [[1], 2], None])
def test_bad_prompts_are_400(call, prompt, check_error):
    response = call.complete(prompt)
    code = "missing_required_parameter" if prompt is None else None
    check_error(response, 400, param="prompt", code=code)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff", b"[" * 100_000, b'{"a":NaN}']
)
def test_a_body_that_is_no_json_object_is_400(call, body, check_error):
    headers = {"content-type": "application/json"}
    check_error(call("POST", CHAT, content=body, headers=headers), 400)


FORM = "application/x-www-form-urlencoded"
QUESTION = b'{"messages": [{"role": "user", "content": "say:a"}]}'


@pytest.mark.parametrize("headers", [{"content-type": FORM}, {}])
def test_json_that_curl_calls_a_form_or_nothing_is_read(call, headers):
    assert call("POST", CHAT, content=QUESTION, headers=headers).status_code == 200


@pytest.mark.parametrize("kind", [FORM, "text/plain", ""])
@pytest.mark.parametrize(
    "sign", [{"origin": "null"}, {"origin": "https://evil.example"}, {"sec-fetch-site": "none"}]
)
def test_a_web_page_must_declare_json(call, kind, sign, check_error):
    response = call("POST", CHAT, content=QUESTION, headers={"content-type": kind, **sign})
    check_error(response, 415, code="unsupported_media_type")
    declared = {"content-type": "application/json; charset=utf-8", **sign}
    assert call("POST", CHAT, content=QUESTION, headers=declared).status_code == 200


def test_a_form_and_any_other_type_are_415_and_told_which_header_to_send(call, check_error):
    for response in (
        call("POST", CHAT, data={"a": "b"}),
        call("POST", CHAT, content=QUESTION, headers={"content-type": "text/plain"}),
    ):
        message = check_error(response, 415, code="unsupported_media_type")
        assert "'content-type: application/json'" in message


def test_json_with_a_mistake_that_curl_sent_as_a_form_is_told_its_mistake(call, check_error):
    response = call("POST", CHAT, content=b'{"messages": [,]}', headers={"content-type": FORM})
    message = check_error(response, 415, code="unsupported_media_type")
    assert "JSON is malformed" in message
    assert "'content-type: application/json'" in message


def test_a_huge_body_is_413_with_and_without_a_length(call, check_error):
    headers = {"content-type": "application/json"}
    large = call("POST", CHAT, content=b"x" * (MAX_BODY_BYTES + 1), headers=headers)
    check_error(large, 413, code="request_too_large")

    async def pieces():
        for _ in range(33):
            yield b" " * (1 << 20)

    check_error(
        call("POST", CHAT, content=pieces(), headers=headers), 413, code="request_too_large"
    )


def test_unknown_paths_methods_and_models_are_openai_errors(call, check_error):
    check_error(call("GET", "/v1/nothing"), 404, code="unknown_url")
    response = call("GET", CHAT)
    check_error(response, 405, code="method_not_supported")
    assert response.headers["allow"] == "POST"
    check_error(call("PUT", "/docs"), 405, code="method_not_supported")
    check_error(call.chat(model="gpt-4"), 404, param="model", code="model_not_found")
    response = call("GET", "/v1/models/gpt-4")
    check_error(response, 404, param="model", code="model_not_found")


def test_what_other_servers_offer_leads_to_what_this_one_does(call, check_error):
    for path in ("/v1/audio/speech", "/v1/moderations", "/infill"):
        response = call("POST", path, json={})
        check_error(response, 404, code="unknown_url")
        assert "/v1/chat/completions and /v1/completions; /docs" in response.text
    response = call("OPTIONS", CHAT)
    check_error(response, 405, code="method_not_supported")
    assert "unless --cors-origin allows theirs" in response.text


def test_a_model_without_template_refuses_chat_and_completes(make_caller, scripted, check_error):
    call = make_caller(scripted.scripted_model(template=None))
    message = check_error(call.chat(), 400, param="messages")
    assert message.endswith("Use /v1/completions.")
    assert call.complete().status_code == 200


def test_a_failure_before_the_first_token_has_its_own_status_and_no_details(call, check_error):
    for response in (call.chat("break:0"), call.chat("break:0", stream=True)):
        message = check_error(response, 500, kind="server_error")
        assert "/opt" not in message


def test_paths_and_addresses_never_leave_the_server(call, check_error):
    message = check_error(call.chat("refuse"), 400, param="messages")
    assert "/opt" not in message
    assert "7f00ab12" not in message


def test_a_crash_in_a_handler_is_a_plain_500(call, state, monkeypatch, check_error):
    def crash(*_):
        raise ValueError("secret at /opt/place")

    monkeypatch.setattr(state.model.engine, "check", crash)
    message = check_error(call.chat(), 500, kind="server_error")
    assert "secret" not in message


def test_a_full_queue_is_429_with_retry_after(call, state, check_error):
    state.options = ServeOptions(max_queue=2, load=load_options(max_sequences=1))
    state.admit(1)
    response = call.chat("say:a", n=3)
    check_error(response, 429, code="rate_limit_exceeded", kind="rate_limit_error")
    assert int(response.headers["retry-after"]) >= 1
    assert call.chat("say:a", n=3, stream=True).status_code == 429
    assert state.in_flight == 1
    assert call.chat("say:a", n=2).status_code == 200
    assert state.in_flight == 1


def test_more_answers_than_an_idle_server_takes_are_400_because_waiting_is_in_vain(
    call, state, check_error
):
    state.options = ServeOptions(max_queue=2, load=load_options(max_sequences=1))
    check_error(call.chat("say:a", n=4), 400, param="n")
    check_error(call.chat("say:a", n=4, stream=True), 400, param="n")
    check_error(call.complete(["say:a", "say:b"], n=2), 400, param="n")
    check_error(call.complete(["say:a", "say:b"], n=2, max_tokens=0), 400, param="n")
    assert state.in_flight == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"min_p": 7}, "min_p"),
        ({"stop": [""]}, "stop"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt": "a" * 100_000}, "prompt"),
    ],
)
def test_what_generates_nothing_is_held_to_the_same_limits(call, fields, param, check_error):
    response = call("POST", "/v1/completions", json={"prompt": "a", "max_tokens": 0, **fields})
    overflow = "context_length_exceeded" if param == "prompt" else None
    check_error(response, 400, param=param, code=overflow)


def test_while_loading_work_gets_503_and_liveness_200(loading, check_error):
    for response in (loading.chat(), loading("GET", "/health"), loading("GET", "/v1/models")):
        check_error(response, 503, code="server_is_overloaded", kind="server_error")
        assert response.headers["retry-after"] == "1"
    assert loading("GET", "/health/ready").status_code == 503
    assert loading("GET", "/health/live").json() == {"status": "live", "phase": "starting"}
    assert loading("GET", "/ping").status_code == 204
    assert loading("GET", "/docs").status_code == 503
    assert "zse_ready 0.0" in loading("GET", "/metrics").text


def test_where_every_2xx_means_ready_a_ping_while_loading_is_503(loading, state, check_error):
    state.options = ServeOptions(loading_ping_status=503)
    check_error(loading("GET", "/ping"), 503, code="server_is_overloaded", kind="server_error")


def test_while_draining_readiness_and_work_are_503(call, state, check_error):
    state.presence = Presence.CLOSED
    for path in ("/health", "/health/ready", "/ping"):
        assert call("GET", path).status_code == 503
    assert call("GET", "/health/live").json()["phase"] == "draining"
    check_error(call.chat(), 503, code="server_is_overloaded", kind="server_error")


def test_a_crashed_engine_fails_liveness(call, state, check_error):
    state.model.engine.is_healthy = False
    for path in ("/health", "/health/live", "/ping"):
        check_error(call("GET", path), 503, code="engine_crashed", kind="server_error")


@pytest.mark.parametrize("host", ["evil.example", "", "localhost.evil", "127.0.0.1@evil", "[::2]"])
def test_a_loopback_server_refuses_foreign_hosts(make_caller, host, check_error):
    call = make_caller(rules=HTTPRules(hosts=LOOPBACK_HOSTS))
    response = call("GET", "/v1/models", headers={"host": host})
    check_error(response, 421, code="misdirected_request")


def test_a_prompt_that_can_never_fit_is_refused_without_tokenizing_it(
    call, state, monkeypatch, check_error
):
    monkeypatch.setattr(state.model.tokenizer, "encode", None)
    text = "a" * (state.model.max_context * 600)
    check_error(call.chat(text), 400, param="messages", code="context_length_exceeded")
    check_error(call.complete(text), 400, param="prompt", code="context_length_exceeded")
