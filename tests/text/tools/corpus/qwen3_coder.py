"""Qwen3-Coder."""

from __future__ import annotations

from corpus.sample import PARIS, TIME, UNICODE, Sample

CODER_PARIS = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>"
CODER_TIME = "<tool_call>\n<function=get_time>\n</function>\n</tool_call>"
CODER_FILE = """\
<tool_call>
<function=write_file>
<parameter=path>
src/a.py
</parameter>
<parameter=content>
def f(x):
    return x < 3 and "</tool_call>" or '\\n'

</parameter>
<parameter=options>
{"mode": [1, {"a": null}]}
</parameter>
<parameter=lines>
['a', "b"]
</parameter>
<parameter=is_final>
True
</parameter>
<parameter=size>
null
</parameter>
</function>
</tool_call>"""
FILE = (
    "write_file",
    {
        "path": "src/a.py",
        "content": "def f(x):\n    return x < 3 and \"</tool_call>\" or '\\n'\n",
        "options": {"mode": [1, {"a": None}]},
        "lines": ["a", "b"],
        "is_final": True,
        "size": None,
    },
)
QWEN3_CODER = [
    Sample("qwen3_coder", "one call", CODER_PARIS, calls=(PARIS,)),
    Sample("qwen3_coder", "two calls", f"{CODER_PARIS}\n{CODER_TIME}", calls=(PARIS, TIME)),
    Sample("qwen3_coder", "all types", CODER_FILE, calls=(FILE,)),
    Sample("qwen3_coder", "text around", f"I look.\n{CODER_PARIS}\nSo.", "I look.\nSo.", (PARIS,)),
    Sample("qwen3_coder", "no outer tag", "<function=get_time>\n</function>", calls=(TIME,)),
    Sample(
        "qwen3_coder",
        "all letters",
        CODER_PARIS.replace("Paris", UNICODE[1]["city"]),
        calls=(UNICODE,),
    ),
    Sample(
        "qwen3_coder",
        "quotes",
        CODER_PARIS.replace("Paris", 'a "b" \\ c\td'),
        calls=(("get_weather", {"city": 'a "b" \\ c\td'}),),
    ),
    Sample(
        "qwen3_coder",
        "on one line",
        "<function=get_weather><parameter=city>Paris</parameter><parameter=days>3</parameter></function>",
        calls=(("get_weather", {"city": "Paris", "days": 3}),),
    ),
    Sample(
        "qwen3_coder",
        "a type that does not fit",
        "<function=get_weather><parameter=days>three</parameter></function>",
        calls=(("get_weather", {"days": "three"}),),
    ),
    Sample(
        "qwen3_coder",
        "an argument nobody knows",
        "<function=get_time><parameter=zone>3</parameter></function>",
        calls=(("get_time", {"zone": "3"}),),
    ),
    Sample(
        "qwen3_coder",
        "a name nobody offered",
        CODER_TIME.replace("get_time", "rm"),
        CODER_TIME.replace("get_time", "rm"),
    ),
    Sample(
        "qwen3_coder",
        "cut in a value",
        CODER_PARIS[: CODER_PARIS.index("is\n")],
        calls=(("get_weather", '{"city": "Par'),),
    ),
    Sample(
        "qwen3_coder",
        "cut between values",
        CODER_PARIS[:-24],
        calls=(("get_weather", '{"city": "Paris"'),),
    ),
    Sample("qwen3_coder", "plain text", "<tool_call>hello <function", "<tool_call>hello <function"),
]
