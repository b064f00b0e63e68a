"""Mistral, old and new."""

from __future__ import annotations

from corpus.sample import PARIS, TIME, UNICODE, Sample, call_json

MISTRAL = [
    Sample("mistral", "a list of one", f"[TOOL_CALLS] [{call_json(PARIS)}]", calls=(PARIS,)),
    Sample(
        "mistral",
        "a list of two",
        f"[TOOL_CALLS][{call_json(PARIS)}, {call_json(TIME)}]",
        calls=(PARIS, TIME),
    ),
    Sample(
        "mistral",
        "with ids",
        '[TOOL_CALLS] [{"name": "get_time", "arguments": {}, "id": "abcDEF123"}]',
        calls=(TIME,),
    ),
    Sample("mistral", "no list", f"[TOOL_CALLS]{call_json(PARIS)}", calls=(PARIS,)),
    Sample("mistral", "named", '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}', calls=(PARIS,)),
    Sample(
        "mistral",
        "two named",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]get_time[ARGS]{}',
        calls=(PARIS, TIME),
    ),
    Sample(
        "mistral",
        "named with an id",
        "[TOOL_CALLS]get_time[CALL_ID]a1B2c3D4e[ARGS]{}",
        calls=(TIME,),
    ),
    Sample(
        "mistral",
        "named without a marker",
        '[TOOL_CALLS]get_weather{"city": "Paris"}',
        calls=(PARIS,),
    ),
    Sample("mistral", "text before", "I look.[TOOL_CALLS]get_time[ARGS]{}", "I look.", (TIME,)),
    Sample("mistral", "all letters", f"[TOOL_CALLS] [{call_json(UNICODE)}]", calls=(UNICODE,)),
    Sample(
        "mistral",
        "the marker in a string",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "[TOOL_CALLS]]"}',
        calls=(("get_weather", {"city": "[TOOL_CALLS]]"}),),
    ),
    Sample("mistral", "a name nobody offered", '[TOOL_CALLS]rm[ARGS]{"a": 1}', 'rm{"a": 1}'),
    Sample("mistral", "numbers", "[TOOL_CALLS] [1, 2]", " [1, 2]"),
    Sample("mistral", "the marker alone", "[TOOL_CALLS]", ""),
    Sample("mistral", "plain text", "[1] a list [TOOL", "[1] a list [TOOL"),
    Sample(
        "mistral",
        "cut",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"ci',
        calls=(("get_weather", '{"ci'),),
    ),
    Sample(
        "mistral",
        "reasoning first",
        "[THINK]So, a call.[/THINK][TOOL_CALLS]get_time[ARGS]{}",
        calls=(TIME,),
        thought="So, a call.",
        reasoning="mistral",
    ),
]
