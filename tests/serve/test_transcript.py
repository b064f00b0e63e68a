"""Pieces of a conversation become turns, in time that grows with their number alone."""

from zse.serve.transcript import Transcript, call_of


def test_pieces_of_a_turn_are_joined_and_others_stay_apart():
    transcript = Transcript()
    transcript.add("user", "a")
    transcript.add("user", "b")
    transcript.add("assistant", thought="hm")
    transcript.add("assistant", "c")
    transcript.add("assistant", call=call_of("1", "f", '{"x": 1}'))
    transcript.add("tool", "d", tool_call_id="1")
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    assert transcript.messages() == [
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "content": "d", "tool_call_id": "1"},
    ]


def test_many_pieces_of_one_turn_are_joined_once():
    transcript = Transcript(joined_roles=("user",))
    for _ in range(100_000):
        transcript.add("user", "x" * 100)
    (message,) = transcript.messages()
    assert len(message["content"]) == 100_000 * 102 - 2


def test_arguments_that_are_no_json_stay_text():
    assert call_of("1", "f", "{half")["function"]["arguments"] == "{half"
    assert call_of("1", "f", "[" * 100_000)["function"]["arguments"] == "[" * 100_000
