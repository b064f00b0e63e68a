"""DeepSeek V3, R1 and V3.1."""

from __future__ import annotations

import json

from corpus.sample import NESTED, PARIS, TIME, UNICODE, Sample

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
