"""GLM 4.5 and later."""

from __future__ import annotations

from corpus.sample import PARIS, TIME, UNICODE, Sample

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
