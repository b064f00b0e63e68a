"""Llama 3."""

from __future__ import annotations

from corpus.sample import NESTED, PARIS, TAG, TIME, Sample, call_json

LLAMA3 = [
    Sample("llama3", "one call", call_json(PARIS, "parameters"), calls=(PARIS,)),
    Sample(
        "llama3", "after the tag", "<|python_tag|>" + call_json(PARIS, "parameters"), calls=(PARIS,)
    ),
    Sample("llama3", "two calls", call_json(PARIS) + "; " + call_json(TIME), calls=(PARIS, TIME)),
    Sample(
        "llama3",
        "two calls in lines",
        call_json(PARIS) + "\n" + call_json(TIME),
        calls=(PARIS, TIME),
    ),
    Sample(
        "llama3",
        "with a type",
        '{"type": "function", "name": "get_time", "parameters": {}}',
        calls=(TIME,),
    ),
    Sample(
        "llama3",
        "within function",
        '{"type": "function", "function": {"name": "get_time", "parameters": {}}}',
        calls=(TIME,),
    ),
    Sample("llama3", "nested", call_json(NESTED, "parameters"), calls=(NESTED,)),
    Sample("llama3", "a brace in a string", call_json(TAG, "parameters"), calls=(TAG,)),
    Sample("llama3", "spaces first", "\n " + call_json(TIME, "parameters") + "\n", calls=(TIME,)),
    Sample(
        "llama3",
        "text, then the tag",
        "I look. <|python_tag|>" + call_json(TIME),
        "I look.",
        (TIME,),
    ),
    Sample(
        "llama3",
        "an answer in JSON",
        '{"name": "Alice", "age": 30}',
        '{"name": "Alice", "age": 30}',
    ),
    Sample(
        "llama3",
        "other JSON",
        '{"x": [1, {"name": "get_time"}]}',
        '{"x": [1, {"name": "get_time"}]}',
    ),
    Sample("llama3", "another type", '{"type": "object"}', '{"type": "object"}'),
    Sample("llama3", "a name alone", '{"name": "get_time"}', '{"name": "get_time"}'),
    Sample("llama3", "no JSON", "{ well }", "{ well }"),
    Sample("llama3", "code for a tool that is none", "<|python_tag|>print(1)", "print(1)"),
    Sample(
        "llama3",
        "cut",
        '{"name": "get_weather", "parameters": {"city": "Pa',
        calls=(("get_weather", '{"city": "Pa'),),
    ),
    Sample(
        "llama3",
        "cut before it is a call",
        '{"name": "get_weather", "para',
        '{"name": "get_weather", "para',
    ),
    Sample("llama3", "text after", call_json(TIME) + " and more", "and more", (TIME,)),
]
