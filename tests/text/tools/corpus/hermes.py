"""Hermes, Qwen 2.5 and 3."""

from __future__ import annotations

import json

from corpus.sample import NESTED, PARIS, TAG, TIME, UNICODE, Sample, call_json


def tagged(*calls):
    return "\n".join(f"<tool_call>\n{call_json(call)}\n</tool_call>" for call in calls)


HERMES = [
    Sample("hermes", "one call", tagged(PARIS), calls=(PARIS,)),
    Sample("hermes", "two calls", tagged(PARIS, TIME), calls=(PARIS, TIME)),
    Sample("hermes", "text before", "Let me look.\n\n" + tagged(PARIS), "Let me look.", (PARIS,)),
    Sample("hermes", "text after", tagged(PARIS) + "\nDone.", "Done.", (PARIS,)),
    Sample("hermes", "text around", f"A.\n{tagged(PARIS)}\nB.\n", "A.\nB.", (PARIS,)),
    Sample("hermes", "a tag in an argument", tagged(TAG), calls=(TAG,)),
    Sample("hermes", "all letters", tagged(UNICODE), calls=(UNICODE,)),
    Sample(
        "hermes",
        "escaped letters",
        f"<tool_call>{json.dumps({'name': UNICODE[0], 'arguments': UNICODE[1]})}</tool_call>",
        calls=(UNICODE,),
    ),
    Sample("hermes", "nested", tagged(NESTED), calls=(NESTED,)),
    Sample(
        "hermes",
        "no spaces",
        '<tool_call>{"name":"get_time","arguments":{}}</tool_call>',
        calls=(TIME,),
    ),
    Sample(
        "hermes",
        "arguments first",
        '<tool_call>{"arguments": {"city": "Paris"}, "name": "get_weather"}</tool_call>',
        calls=(PARIS,),
    ),
    Sample(
        "hermes",
        "arguments as text",
        '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}</tool_call>',
        calls=(PARIS,),
    ),
    Sample(
        "hermes", "no arguments", '<tool_call>\n{"name": "get_time"}\n</tool_call>', calls=(TIME,)
    ),
    Sample(
        "hermes",
        "null arguments",
        '<tool_call>\n{"name": "get_time", "arguments": null}\n</tool_call>',
        calls=(TIME,),
    ),
    Sample(
        "hermes",
        "OpenAI's own object",
        '<tool_call>{"type": "function", "function": {"name": "get_time", "arguments": {}}}</tool_call>',
        calls=(TIME,),
    ),
    Sample(
        "hermes", "a brace too many", f"<tool_call>{call_json(PARIS)}}}</tool_call>", calls=(PARIS,)
    ),
    Sample("hermes", "a bare object", call_json(PARIS), calls=(PARIS,)),
    Sample("hermes", "bare objects", f"{call_json(PARIS)}\n{call_json(TIME)}", calls=(PARIS, TIME)),
    Sample("hermes", "a fenced object", f"```json\n{call_json(PARIS)}\n```", calls=(PARIS,)),
    Sample("hermes", "bare, then text", f"{call_json(PARIS)}\nDone.", "Done.", (PARIS,)),
    Sample("hermes", "an object that is data", '{"name": "Guido"}', '{"name": "Guido"}'),
    Sample("hermes", "fenced data", '```json\n{"a": 1}\n```', '```json\n{"a": 1}\n```'),
    Sample("hermes", "code", "```python\nprint(1)\n```", "```python\nprint(1)\n```"),
    Sample(
        "hermes",
        "an object behind text",
        f"So: {call_json(PARIS)}",
        f"So: {call_json(PARIS)}",
    ),
    Sample("hermes", "no closing tag", f"<tool_call>{call_json(PARIS)}", calls=(PARIS,)),
    Sample(
        "hermes",
        "cut in the arguments",
        '<tool_call>{"name": "get_weather", "arguments": {"ci',
        calls=(("get_weather", '{"ci'),),
    ),
    Sample("hermes", "cut in the name", '<tool_call>{"name": "get_w', '<tool_call>{"name": "get_w'),
    Sample("hermes", "cut in the tag", "Hm <tool_", "Hm <tool_"),
    Sample(
        "hermes",
        "a name nobody offered",
        '<tool_call>{"name": "rm", "arguments": {"a": 1}}</tool_call>',
        '<tool_call>{"name": "rm", "arguments": {"a": 1}}</tool_call>',
    ),
    Sample(
        "hermes",
        "no JSON",
        "<tool_call>not json</tool_call> then",
        "<tool_call>not json</tool_call> then",
    ),
    Sample(
        "hermes",
        "arguments that are a list",
        '<tool_call>{"name": "get_time", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "get_time", "arguments": [1]}</tool_call>',
    ),
    Sample(
        "hermes",
        "broken, then good",
        "<tool_call>oops</tool_call>" + tagged(PARIS),
        "<tool_call>oops</tool_call>",
        (PARIS,),
    ),
    Sample(
        "hermes",
        "a bare object of a tool that nobody offered",
        '{"name": "get_stars", "arguments": {}}',
        '{"name": "get_stars", "arguments": {}}',
    ),
    Sample("hermes", "plain text", " 2 < 3, a <b> and a <tool\n", " 2 < 3, a <b> and a <tool\n"),
    Sample("hermes", "nothing but spaces", " \n ", " \n "),
    Sample("hermes", "nothing", ""),
    Sample(
        "hermes",
        "reasoning first",
        "<think>\nParis. I call.\n</think>\n\n" + tagged(PARIS),
        calls=(PARIS,),
        thought="Paris. I call.",
        reasoning="think",
    ),
    Sample(
        "hermes",
        "a call in the reasoning",
        f"<think>{tagged(TIME)}</think>ok",
        "ok",
        thought=tagged(TIME),
        reasoning="think",
    ),
]
