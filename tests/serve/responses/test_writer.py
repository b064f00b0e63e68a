"""The events of a response: their order, their numbers, and the client's types for each of them."""

import json

from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from zse.serve.answer_parts import Parts
from zse.serve.responses.writer import ResponseWriter
from zse.serve.turn import CallArguments, CallOpened, ChoiceEnded, ReasoningPart, TextPart

EVENT = TypeAdapter(ResponseStreamEvent)
TURN = (
    ReasoningPart(0, "h"),
    ReasoningPart(0, "m"),
    TextPart(0, "I "),
    TextPart(0, "look"),
    CallOpened(0, 0, "call_1", "weather"),
    CallArguments(0, 0, "{}"),
    ChoiceEnded(0, "tool_calls"),
)


def events_of(frames):
    found = []
    for frame in frames:
        name, data = frame.decode().removesuffix("\n\n").split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        EVENT.validate_python(event)
        found.append(event)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def write(*turn, is_summarized=False):
    response = {"output": []}
    writer, parts = (
        ResponseWriter(response, is_summarized=is_summarized),
        Parts(shows_reasoning=True),
    )
    frames = [frame for event in turn for step in parts.push(event) for frame in writer.step(step)]
    return events_of(frames), response["output"]


def test_items_are_opened_filled_and_closed_in_order():
    events, output = write(*TURN)
    assert [event["type"].removeprefix("response.") for event in events] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call"]
    assert [item["status"] for item in output] == ["completed"] * 3
    assert output == [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert output[1]["content"][0]["text"] == "I look"
    assert output[2]["call_id"] == "call_1"


def test_every_event_of_an_item_says_which():
    events, output = write(*TURN)
    for index, item in enumerate(output):
        own = [event for event in events if event["output_index"] == index]
        ids = {event.get("item_id") or event["item"]["id"] for event in own}
        assert ids == {item["id"]}


def test_thoughts_may_be_shown_as_a_summary():
    events, output = write(*TURN, is_summarized=True)
    assert [event["type"].removeprefix("response.") for event in events[:7]] == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
    ]
    assert output[0]["summary"] == [{"type": "summary_text", "text": "hm"}]
    assert "content" not in output[0]


def test_the_item_in_which_an_answer_was_cut_is_incomplete():
    _, output = write(TextPart(0, "a"), TURN[4], ChoiceEnded(0, "length"))
    assert [item["status"] for item in output] == ["completed", "incomplete"]
