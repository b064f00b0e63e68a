"""Kimi K2."""

from __future__ import annotations

import json

from corpus.sample import NESTED, PARIS, TAG, TIME, UNICODE, Sample


def kimi(*calls, prefix="functions."):
    written = [
        f"<|tool_call_begin|>{prefix}{name}:{number}<|tool_call_argument_begin|>"
        f"{json.dumps(arguments, ensure_ascii=False)}<|tool_call_end|>"
        for number, (name, arguments) in enumerate(calls)
    ]
    return f"<|tool_calls_section_begin|>{''.join(written)}<|tool_calls_section_end|>"


KIMI = [
    Sample("kimi", "one call", kimi(PARIS), calls=(PARIS,)),
    Sample("kimi", "two calls", kimi(PARIS, TIME), calls=(PARIS, TIME)),
    Sample("kimi", "text before", "I look.\n" + kimi(PARIS), "I look.", (PARIS,)),
    Sample("kimi", "text around", f"A.{kimi(TIME)}B.", "A.B.", (TIME,)),
    Sample("kimi", "a bare name", kimi(PARIS, prefix=""), calls=(PARIS,)),
    Sample(
        "kimi",
        "line by line",
        kimi(PARIS, TIME)
        .replace("<|tool_call", "\n<|tool_call")
        .replace("<|tool_call_a", "\n<|tool_call_a"),
        calls=(PARIS, TIME),
    ),
    Sample("kimi", "another form's tag in a string", kimi(TAG), calls=(TAG,)),
    Sample("kimi", "nested", kimi(NESTED), calls=(NESTED,)),
    Sample("kimi", "all letters", kimi(UNICODE), calls=(UNICODE,)),
    Sample("kimi", "a name nobody offered", kimi(("rm", {"a": 1})), 'functions.rm:0{"a": 1}'),
    Sample(
        "kimi",
        "cut",
        kimi(PARIS).partition('"}')[0],
        calls=(("get_weather", '{"city": "Paris'),),
    ),
    Sample("kimi", "plain text", "a < b <|tool", "a < b <|tool"),
    Sample(
        "kimi",
        "reasoning first",
        "<think>I call.</think>" + kimi(TIME),
        calls=(TIME,),
        thought="I call.",
        reasoning="think",
    ),
]
