"""Bodies: how long, how full, how deep, and how many at once."""

import json

import pytest

from zse.errors import OverloadedError
from zse.serve.http.bodies import (
    FREE_BYTES,
    MAX_CONTAINERS,
    MAX_ESCAPES,
    MAX_KEYS,
    MAX_VALUES,
    BodyRoom,
)
from zse.serve.http.errors import BadRequestError
from zse.serve.http.json_body import MAX_DEPTH, read_mapping
from zse.server_options import HTTPOptions, ServeOptions

COMPLETIONS = "/v1/completions"
JSON = {"content-type": "application/json"}


def post(call, body):
    return call("POST", COMPLETIONS, content=body, headers=JSON)


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt":[' + b"[]," * MAX_CONTAINERS + b"[]]}",
        b'{"prompt":[' + b"{}," * MAX_CONTAINERS + b"{}]}",
        b'{"prompt":' + b"[" * (MAX_CONTAINERS + 1),
        b'{"prompt":{' + b'"a":1,' * MAX_KEYS + b'"a":1}}',
        b'{"prompt":[' + b"1," * MAX_VALUES + b"1,1]}",
        b'{"prompt":"' + b"\\n" * (MAX_ESCAPES + 1) + b'"}',
    ],
    ids=["lists", "objects", "depth", "names", "numbers", "escapes"],
)
def test_a_body_that_holds_too_much_is_refused_before_it_is_decoded(call, check_error, body):
    message = check_error(post(call, body), 400)
    assert "more than" in message


def test_a_long_text_is_no_such_body(call, check_error):
    check_error(
        post(call, b'{"prompt":"' + b"word, " * 80_000 + b'"}'),
        400,
        param="prompt",
        code="context_length_exceeded",
    )


def test_the_longest_body_is_an_option(make_caller, state, check_error):
    state.options = ServeOptions(http=HTTPOptions(max_body_mib=1))
    call = make_caller()
    check_error(post(call, b" " * (1 << 20) + b"1"), 413, code="request_too_large")
    check_error(post(call, b" " * (1 << 20)), 400)


@pytest.mark.parametrize("shape", ["[", '{"a":'])
def test_nesting_is_bounded_far_below_what_the_interpreter_bears(shape):
    def nested(depth):
        closing = "]" if shape == "[" else "}"
        return f'{{"x":{shape * depth}1{closing * depth}}}'.encode()

    assert read_mapping(nested(MAX_DEPTH - 1))
    for depth in (MAX_DEPTH, 500, 90_000):
        with pytest.raises(BadRequestError, match="nested too deeply"):
            read_mapping(nested(depth))


def test_many_values_side_by_side_are_no_nesting():
    value = {"messages": [{"role": "user", "content": ["a", ["b"]]}] * 500}
    assert read_mapping(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    ("text", "number"),
    [("1.2345678901234567890123e-301", 1.2345678901234567890123e-301), ("-0.5E1", -5.0)],
)
def test_numbers_are_read_as_python_reads_them(text, number):
    assert read_mapping(b'{"x":%b}' % text.encode()) == {"x": number}


@pytest.mark.parametrize("text", ["1e999", "-1e999", "NaN", "Infinity", "1.", ".5", "01", "1_0"])
def test_what_is_no_number_of_json_is_refused(text):
    with pytest.raises(BadRequestError):
        read_mapping(b'{"x":%b}' % text.encode())


@pytest.mark.parametrize("body", [b"\xff", b'{"a":"\xff"}', b'{"a":"\\ud800"}', b"", b"[]", b"1"])
def test_what_is_no_object_is_refused(body):
    with pytest.raises(BadRequestError):
        read_mapping(body)


def test_all_bodies_together_have_so_much_room(state):
    room = BodyRoom(state, 1000)
    with room.hold() as first, room.hold() as second:
        first.add(FREE_BYTES)
        first.add(600)
        second.add(FREE_BYTES + 300)
        with pytest.raises(OverloadedError):
            second.add(200)
    with room.hold() as third:
        third.add(FREE_BYTES + 1000)


def test_bodies_of_one_key_leave_room_for_those_of_others(state):
    room = BodyRoom(state, 10 * FREE_BYTES)
    with room.hold("greedy") as held:
        held.add(9 * FREE_BYTES)  # of which one counts for nothing
        with room.hold("greedy") as more, pytest.raises(OverloadedError):
            more.add(2 * FREE_BYTES)
        with room.hold("other") as others:
            others.add(2 * FREE_BYTES)
    with room.hold("greedy") as all_of_it:
        all_of_it.add(10 * FREE_BYTES)
