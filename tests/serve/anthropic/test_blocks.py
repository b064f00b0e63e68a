"""Content blocks: opened, grown and closed in order, and the same in one piece."""

from zse.serve.anthropic.blocks import Blocks
from zse.serve.turn import CallArguments, CallOpened, ChoiceEnded, ReasoningPart, TextPart


def steps_of(blocks, *events):
    steps = [step for event in events for step in blocks.push(event)]
    return [(step.kind, step.block.index, step.block.kind, step.text) for step in steps]


TURN = (
    ReasoningPart(0, "hm"),
    TextPart(0, "\n"),
    TextPart(0, "I "),
    TextPart(0, "look"),
    CallOpened(0, 0, "call_1", "weather"),
    CallArguments(0, 0, '{"city": '),
    CallArguments(0, 0, '"Paris"}'),
    TextPart(0, "\n"),
    CallOpened(0, 1, "call_2", "time"),
    CallArguments(0, 1, "{}"),
    ChoiceEnded(0, "tool_calls"),
)


def test_blocks_follow_each_other_and_space_between_them_is_none():
    assert steps_of(Blocks(shows_thinking=True), *TURN) == [
        ("opened", 0, "thinking", ""),
        ("grown", 0, "thinking", "hm"),
        ("closed", 0, "thinking", ""),
        ("opened", 1, "text", ""),
        ("grown", 1, "text", "\nI "),
        ("grown", 1, "text", "look"),
        ("closed", 1, "text", ""),
        ("opened", 2, "tool_use", ""),
        ("grown", 2, "tool_use", '{"city": '),
        ("grown", 2, "tool_use", '"Paris"}'),
        ("closed", 2, "tool_use", ""),
        ("opened", 3, "tool_use", ""),
        ("grown", 3, "tool_use", "{}"),
        ("closed", 3, "tool_use", ""),
    ]


def test_the_whole_blocks_are_what_was_streamed():
    blocks = Blocks(shows_thinking=True)
    steps_of(blocks, *TURN)
    thinking, text, first, second = blocks.content()
    assert thinking["thinking"] == "hm"
    assert len(thinking["signature"]) == 64
    assert text == {"type": "text", "text": "\nI look"}
    call = {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Paris"}}
    assert first == call
    assert second["input"] == {}


def test_thoughts_are_left_out_where_nobody_asked_for_them():
    blocks = Blocks(shows_thinking=False)
    assert steps_of(blocks, TURN[0], TextPart(0, "yes"))[0] == ("opened", 0, "text", "")


def test_the_input_of_a_call_that_was_cut_is_empty():
    blocks = Blocks(shows_thinking=False)
    steps_of(blocks, TURN[4], TURN[5], ChoiceEnded(0, "length"))
    assert blocks.content()[0]["input"] == {}


def test_an_answer_of_space_has_no_blocks():
    blocks = Blocks(shows_thinking=False)
    assert steps_of(blocks, TextPart(0, " \n"), ChoiceEnded(0, "stop")) == []
    assert blocks.content() == []
