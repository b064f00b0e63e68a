import json

import pytest

from zse.serve.http.deadlines import seconds_allowed
from zse.serve.http.errors import BadRequestError
from zse.server_options import ServeOptions


@pytest.mark.parametrize(
    ("asked", "most", "seconds"),
    [
        (None, 0.0, None),
        (None, 60.0, 60.0),
        (b"5", 0.0, 5.0),
        (b"0.25", 60.0, 0.25),
        (b"600", 60.0, 60.0),
    ],
)
def test_a_client_may_ask_for_less_than_the_server_allows(asked, most, seconds):
    assert seconds_allowed(asked, most) == seconds


@pytest.mark.parametrize("asked", [b"", b"soon", b"0", b"-1", b"nan", b"inf", b"1e999"])
def test_what_is_no_time_is_refused(asked):
    with pytest.raises(BadRequestError, match="X-Request-Timeout"):
        seconds_allowed(asked, 60.0)


def test_a_bad_header_is_400_in_the_routes_own_words(call, check_error):
    body = {"messages": [{"role": "user", "content": "say:x"}]}
    response = call(
        "POST", "/v1/chat/completions", json=body, headers={"x-request-timeout": "soon"}
    )
    check_error(response, 400, param="X-Request-Timeout")


@pytest.fixture
def slow(make_caller, paced):
    return make_caller(paced.paced_model(step_seconds=0.02))


def test_at_the_deadline_a_whole_answer_is_504_and_not_to_be_tried_again(slow, state, check_error):
    response = slow.chat("x", max_tokens=5000, headers={"x-request-timeout": "0.2"})
    check_error(response, 504, code="request_timeout", kind="server_error")
    assert response.headers["x-should-retry"] == "false"
    assert state.in_flight == 0


def test_at_the_deadline_a_stream_ends_in_an_error_event(slow):
    for seconds in ("0.3", "3", "30"):  # a busy machine may take longer to the first token
        headers = {"x-request-timeout": seconds}
        response = slow.chat("x", max_tokens=5000, stream=True, headers=headers)
        if response.status_code == 200:
            break
    assert response.status_code == 200
    last = response.text.strip().split("\n\n")[-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "request_timeout"


def test_the_servers_own_limit_holds_where_nobody_asks(slow, state, check_error):
    state.options = ServeOptions(max_request_seconds=0.2)
    check_error(slow.chat("x", max_tokens=5000), 504, code="request_timeout", kind="server_error")


def test_a_prompt_that_is_not_read_in_time_is_504_too(make_caller, paced, state, check_error):
    call = make_caller(paced.paced_model(seconds_per_character=0.01))
    body = {"prompt": "x" * 200}
    headers = {"x-request-timeout": "0.1"}
    response = call("POST", "/v1/completions", json=body, headers=headers)
    check_error(response, 504, code="request_timeout", kind="server_error")
    assert state.in_flight == 0
