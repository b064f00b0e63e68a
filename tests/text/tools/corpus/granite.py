"""Granite 3 and Phi-4-mini."""

from __future__ import annotations

from corpus.sample import NESTED, PARIS, TAG, TIME, UNICODE, Sample, call_json


def granite(*calls):
    return f"<|tool_call|>[{', '.join(map(call_json, calls))}]"


GRANITE = [
    Sample("granite", "one call", granite(PARIS), calls=(PARIS,)),
    Sample("granite", "two calls", granite(PARIS, TIME), calls=(PARIS, TIME)),
    Sample("granite", "text before", "I look.\n" + granite(PARIS), "I look.", (PARIS,)),
    Sample("granite", "text after", granite(PARIS) + " Done.", "Done.", (PARIS,)),
    Sample("granite", "a bracket in a string", granite(TAG), calls=(TAG,)),
    Sample("granite", "nested", granite(NESTED), calls=(NESTED,)),
    Sample("granite", "all letters", granite(UNICODE), calls=(UNICODE,)),
    Sample("granite", "with an end", granite(PARIS) + "<|/tool_call|>", calls=(PARIS,)),
    Sample(
        "granite", "a space before the list", f"<|tool_call|> [{call_json(TIME)}]", calls=(TIME,)
    ),
    Sample(
        "granite",
        "a name nobody offered",
        '<|tool_call|>[{"name": "rm", "arguments": {}}]',
        '[{"name": "rm", "arguments": {}}]',
    ),
    Sample("granite", "numbers", "<|tool_call|>[1, 2]", "[1, 2]"),
    Sample("granite", "no list", "<|tool_call|> then", " then"),
    Sample(
        "granite",
        "cut",
        '<|tool_call|>[{"name": "get_weather", "arguments": {"ci',
        calls=(("get_weather", '{"ci'),),
    ),
    Sample("granite", "plain text", "a < b <|too", "a < b <|too"),
    Sample(
        "granite",
        "reasoning first",
        "<think>I call.</think>" + granite(TIME),
        calls=(TIME,),
        thought="I call.",
        reasoning="think",
    ),
]
