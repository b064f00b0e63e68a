"""Megabytes that a model may be talked into writing: read in linear time, within their own size."""

from __future__ import annotations

import pytest

from zse.server_options import TOOL_PARSERS
from zse.text.dialect import Dialect
from zse.text.pieces import Arguments, Said, Thought

SIZE = 1 << 20
DELTA = 1024
FORMS = [name for name in TOOL_PARSERS if name not in ("auto", "none")]
BOMBS = {
    "openers": "<tool_call>",
    "openers of objects": '<tool_call>{"arguments": "',
    "half openers": "<tool_call",
    "brackets": "[",
    "braces": "{",
    "quotes": '{"name": "',
    "escapes": '{"name": "f", "arguments": {"a": "\\',
    "spaces": " \n",
    "angles": "<",
    "markers": "[TOOL_CALLS]",
    "named": "[TOOL_CALLS]f[ARGS]",
    "python": "[f(a=",
    "python strings": "[f(a='\\",
    "xml": "<function=f><parameter=a>",
    "pairs": "<tool_call>f<arg_key>a</arg_key><arg_value>",
    "deepseek": "<｜tool▁call▁begin｜>f<｜tool▁sep｜>",
    "channels": "<|channel|>",
    "messages": "<|channel|>commentary to=functions.f<|message|>",
    "thoughts": "<think></think>",
    "separators": '{"name": "f", "arguments": {}};;;;',
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_megabyte_is_read_and_gives_no_more_than_a_megabyte(form, bomb):
    once = BOMBS[bomb]
    text = once + (once[-1] if bomb in ("escapes", "python strings") else once) * (
        SIZE // len(once)
    )
    dialect = Dialect(calls=form, reasoning="think" if form != "harmony" else "none")
    reader = dialect.shape("", has_tools=True).reading({"f": {}}).make_reader()
    size = 0
    for start in range(0, SIZE, DELTA):
        size += written(reader.push(text[start : start + DELTA]))
    size += written(reader.finish())
    assert size <= 2 * SIZE


def written(pieces):
    return sum(len(p.text) for p in pieces if isinstance(p, Said | Thought | Arguments))
