"""Answers as models of each family write them, after their published templates and documentation.

Each is what a tokenizer makes of the model's tokens when the form's control tokens are kept.
"""

from __future__ import annotations

import json
from typing import NamedTuple

TOOLS = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "units": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        },
    },
    "get_time": {"type": "object", "properties": {}},
    "write_file": {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "content": {"type": "string"},
            "options": {"type": "object"},
            "lines": {"type": "array"},
            "is_final": {"type": "boolean"},
            "size": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        },
    },
}


class Sample(NamedTuple):
    """One answer and what it says."""

    form: str
    what: str
    text: str
    said: str = ""
    calls: tuple[tuple[str, object], ...] = ()
    """Name and arguments; a text where they are cut or no JSON."""
    thought: str = ""
    reasoning: str = "none"
    prompt: str = ""


PARIS = ("get_weather", {"city": "Paris"})
TIME = ("get_time", {})
TAG = ("write_file", {"path": "a.txt", "content": 'say </tool_call> {"}\n'})
UNICODE = ("get_weather", {"city": "Köln 東京 👩‍👩‍👧"})
NESTED = (
    "write_file",
    {"path": "a", "options": {"mode": [6, {"x": "]}"}], "deep": {"a": {"b": [[]]}}}},
)


def call_json(call, arguments_key="arguments"):
    return json.dumps({"name": call[0], arguments_key: call[1]}, ensure_ascii=False)


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
        "an object that is an answer",
        '{"name": "get_weather", "arguments": {}}',
        '{"name": "get_weather", "arguments": {}}',
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
_V3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{0}\n```json\n{1}\n```<｜tool▁call▁end｜>"
_V31 = "<｜tool▁call▁begin｜>{0}<｜tool▁sep｜>{1}<｜tool▁call▁end｜>"


def deepseek(form, *calls):
    parts = [
        form.format(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in calls
    ]
    return "<｜tool▁calls▁begin｜>" + "\n".join(parts) + "<｜tool▁calls▁end｜>"


DEEPSEEK = [
    Sample("deepseek", "V3", deepseek(_V3, PARIS), calls=(PARIS,)),
    Sample("deepseek", "V3, two", deepseek(_V3, PARIS, TIME), calls=(PARIS, TIME)),
    Sample("deepseek", "V3.1", deepseek(_V31, PARIS), calls=(PARIS,)),
    Sample("deepseek", "V3.1, two", deepseek(_V31, PARIS, TIME), calls=(PARIS, TIME)),
    Sample("deepseek", "text before", "I look.\n" + deepseek(_V31, TIME), "I look.", (TIME,)),
    Sample("deepseek", "nested", deepseek(_V3, NESTED), calls=(NESTED,)),
    Sample(
        "deepseek",
        "a fence in a string",
        deepseek(_V3, ("get_weather", {"city": "```json\n{\n```"})),
        calls=(("get_weather", {"city": "```json\n{\n```"}),),
    ),
    Sample("deepseek", "all letters", deepseek(_V31, UNICODE), calls=(UNICODE,)),
    Sample("deepseek", "a name nobody offered", deepseek(_V31, ("rm", {})), "rm{}"),
    Sample(
        "deepseek",
        "cut",
        deepseek(_V3, PARIS).partition('"}')[0],
        calls=(("get_weather", '{"city": "Paris'),),
    ),
    Sample("deepseek", "plain text", "a < b <｜tool", "a < b <｜tool"),
    Sample(
        "deepseek",
        "R1, opened by the template",
        "I call.\n</think>\n\n" + deepseek(_V3, TIME),
        calls=(TIME,),
        thought="I call.",
        reasoning="think",
        prompt="<｜Assistant｜><think>\n",
    ),
]
GLM_PARIS = (
    "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>"
)
GLM = [
    Sample("glm", "one call", "\n" + GLM_PARIS, calls=(PARIS,)),
    Sample(
        "glm", "two calls", GLM_PARIS + "\n<tool_call>get_time\n</tool_call>", calls=(PARIS, TIME)
    ),
    Sample("glm", "without lines", GLM_PARIS.replace("\n", ""), calls=(PARIS,)),
    Sample(
        "glm",
        "types",
        GLM_PARIS.replace(
            "</arg_value>", "</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>"
        ),
        calls=(("get_weather", {"city": "Paris", "days": 3}),),
    ),
    Sample(
        "glm",
        "lines in a value",
        GLM_PARIS.replace("Paris", "a\n<b>\n"),
        calls=(("get_weather", {"city": "a\n<b>\n"}),),
    ),
    Sample("glm", "all letters", GLM_PARIS.replace("Paris", UNICODE[1]["city"]), calls=(UNICODE,)),
    Sample("glm", "text before", "I look.\n" + GLM_PARIS, "I look.", (PARIS,)),
    Sample(
        "glm",
        "a name nobody offered",
        GLM_PARIS.replace("get_weather", "rm"),
        GLM_PARIS.replace("get_weather", "rm"),
    ),
    Sample(
        "glm", "cut", GLM_PARIS.partition("</arg_v")[0], calls=(("get_weather", '{"city": "Paris'),)
    ),
    Sample("glm", "a name alone, cut", "<tool_call>get_time", "<tool_call>get_time"),
    Sample(
        "glm",
        "reasoning first",
        "\n<think>Look.</think>\n" + GLM_PARIS,
        calls=(PARIS,),
        thought="Look.",
        reasoning="think",
    ),
]
PYTHONIC = [
    Sample("pythonic", "one call", '[get_weather(city="Paris")]', calls=(PARIS,)),
    Sample("pythonic", "two calls", "[get_weather(city='Paris'), get_time()]", calls=(PARIS, TIME)),
    Sample(
        "pythonic",
        "between markers",
        '<|python_start|>[get_weather(city="Paris")]<|python_end|>',
        calls=(PARIS,),
    ),
    Sample(
        "pythonic",
        "line by line",
        '<function_calls>\nget_weather(city="Paris")\nget_time()\n</function_calls>',
        calls=(PARIS, TIME),
    ),
    Sample(
        "pythonic",
        "all literals",
        "[write_file(path='a', options={'a': [1, (2, -3.5)], 'b': None}, is_final=True, lines=[])]",
        calls=(
            (
                "write_file",
                {
                    "path": "a",
                    "options": {"a": [1, [2, -3.5]], "b": None},
                    "is_final": True,
                    "lines": [],
                },
            ),
        ),
    ),
    Sample(
        "pythonic",
        "JSON's words",
        "[write_file(is_final=true, size=null)]",
        calls=(("write_file", {"is_final": True, "size": None}),),
    ),
    Sample(
        "pythonic",
        "brackets and quotes in strings",
        """[write_file(path="a)],'", content='it\\'s "so"')]""",
        calls=(("write_file", {"path": "a)],'", "content": 'it\'s "so"'}),),
    ),
    Sample(
        "pythonic", "all letters", f'[get_weather(city="{UNICODE[1]["city"]}")]', calls=(UNICODE,)
    ),
    Sample(
        "pythonic",
        "what is no literal",
        "[get_weather(city=open('x').read())]",
        calls=(("get_weather", {"city": "open('x').read()"}),),
    ),
    Sample("pythonic", "text after", "[get_time()] now", "now", (TIME,)),
    Sample("pythonic", "a list", '["a", 1]', '["a", 1]'),
    Sample("pythonic", "a name nobody offered", "[rm(a=1)]", "[rm(a=1)]"),
    Sample(
        "pythonic",
        "a name without brackets",
        "get_time() tells the time",
        "get_time() tells the time",
    ),
    Sample(
        "pythonic",
        "cut",
        "[get_weather(city='Paris', days=",
        calls=(("get_weather", '{"city": "Paris"'),),
    ),
]
_FINAL = "<|start|>assistant<|channel|>final<|message|>It is sunny.<|return|>"
_CALL = (
    '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}'
)
HARMONY = [
    Sample("harmony", "an answer", "<|channel|>final<|message|>It is sunny.", "It is sunny."),
    Sample(
        "harmony",
        "reasoning, then an answer",
        "<|channel|>analysis<|message|>Easy: 2 < 3.<|end|>" + _FINAL,
        "It is sunny.",
        thought="Easy: 2 < 3.",
    ),
    Sample("harmony", "a call", _CALL + "<|call|>", calls=(PARIS,)),
    Sample("harmony", "a call whose end was a stop token", _CALL, calls=(PARIS,)),
    Sample(
        "harmony",
        "reasoning, then a call",
        "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant" + _CALL,
        calls=(PARIS,),
        thought="I look.",
    ),
    Sample(
        "harmony",
        "the recipient in the role",
        " to=functions.get_time<|channel|>commentary json<|message|>{}",
        calls=(TIME,),
    ),
    Sample(
        "harmony",
        "a preamble",
        "<|channel|>commentary<|message|>I look it up.<|end|><|start|>assistant" + _CALL,
        "I look it up.",
        (PARIS,),
    ),
    Sample(
        "harmony",
        "two calls",
        f"{_CALL}<|end|><|start|>assistant to=functions.get_time<|channel|>commentary<|message|>{{}}<|call|>",
        calls=(PARIS, TIME),
    ),
    Sample(
        "harmony", "a name nobody offered", _CALL.replace("get_weather", "rm"), '{"city": "Paris"}'
    ),
    Sample("harmony", "no messages at all", "Hello there\n", "Hello there\n"),
    Sample("harmony", "cut in a header", "<|channel|>analy", "analy"),
    Sample(
        "harmony",
        "cut in the reasoning",
        "<|channel|>analysis<|message|>I am thin",
        thought="I am thin",
    ),
    Sample(
        "harmony",
        "two thoughts",
        "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>Two.<|end|>"
        + _FINAL,
        "It is sunny.",
        thought="One.\nTwo.",
    ),
]
ALL = [*HERMES, *QWEN3_CODER, *LLAMA3, *MISTRAL, *DEEPSEEK, *GLM, *PYTHONIC, *HARMONY]
