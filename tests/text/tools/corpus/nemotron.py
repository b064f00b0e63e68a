"""Nemotron, with Llama's name and Nano 2."""

from __future__ import annotations

from corpus.sample import NESTED, PARIS, TAG, TIME, UNICODE, Sample, call_json


def nemotron(*calls):
    return f"<TOOLCALL>[{', '.join(map(call_json, calls))}]</TOOLCALL>"


NEMOTRON = [
    Sample("nemotron", "one call", nemotron(PARIS), calls=(PARIS,)),
    Sample("nemotron", "two calls", nemotron(PARIS, TIME), calls=(PARIS, TIME)),
    Sample("nemotron", "text before", "I look.\n" + nemotron(PARIS), "I look.", (PARIS,)),
    Sample("nemotron", "text after", nemotron(PARIS) + " Done.", "Done.", (PARIS,)),
    Sample("nemotron", "a bracket in a string", nemotron(TAG), calls=(TAG,)),
    Sample("nemotron", "nested", nemotron(NESTED), calls=(NESTED,)),
    Sample("nemotron", "all letters", nemotron(UNICODE), calls=(UNICODE,)),
    Sample("nemotron", "no closing tag", f"<TOOLCALL>[{call_json(PARIS)}]", calls=(PARIS,)),
    Sample(
        "nemotron",
        "a name nobody offered",
        '<TOOLCALL>[{"name": "rm", "arguments": {}}]',
        '<TOOLCALL>[{"name": "rm", "arguments": {}}]',
    ),
    Sample("nemotron", "numbers", "<TOOLCALL>[1, 2]", "<TOOLCALL>[1, 2]"),
    Sample("nemotron", "no list", "<TOOLCALL> then", "<TOOLCALL> then"),
    Sample(
        "nemotron",
        "cut",
        '<TOOLCALL>[{"name": "get_weather", "arguments": {"ci',
        calls=(("get_weather", '{"ci'),),
    ),
    Sample("nemotron", "plain text", "a < b <TOOL", "a < b <TOOL"),
    Sample(
        "nemotron",
        "reasoning first",
        "<think>I call.</think>" + nemotron(TIME),
        calls=(TIME,),
        thought="I call.",
        reasoning="think",
    ),
]
