"""Calls of tools as a form: what a model may write when it must call, or must call rightly.

One function for each form of ``zse.text.tools``, by its name. A call's fixed parts are written out,
so that the model chooses the tool and the values and nothing else. Texts that are control tokens of
the model are named as tokens: no text can stand for them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from zse.records import record
from zse.text.grammar.spec import GrammarError, GrammarSpec, alternatives, check_size, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_ANY_TEXT = r"/(.|\n)*/"
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_SCALARS = {"integer", "number", "boolean", "null", "array", "object"}
_PYTHON_WORDS = {"boolean": '("True" | "False")', "null": '"None"'}
_PYTHON = r"""
py_value: PY_STRING | PY_NUMBER | "True" | "False" | "None" | py_list | py_dict
py_list: "[" (py_value (", " py_value)*)? "]"
py_dict: "{" (PY_STRING ": " py_value (", " PY_STRING ": " py_value)*)? "}"
PY_STRING: /"([^"\\\x00-\x1f]|\\["\\nrt])*"/
PY_NUMBER: /-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,18})?/
"""


@record
class CallableTool:
    """A tool that may be called."""

    name: str
    parameters: Mapping[str, Any] | None = None
    """JSON schema of its arguments; None takes none."""
    is_strict: bool = False
    """Refuse a schema that cannot be enforced in full."""


def calls_form(
    format_name: str,
    tools: Sequence[CallableTool],
    control_tokens: Mapping[str, int],
    *,
    parallel: bool = False,
    may_talk: bool = False,
) -> GrammarSpec:
    """Return the form of answers that call tools.

    Args:
        format_name: As ``CallFormat.name``.
        tools: What may be called: all that are offered, or the one that is asked for.
        control_tokens: The model's, by their text: ``special`` ones of ``TokenizerFacts.added``.
        parallel: One answer may hold several calls.
        may_talk: Calls may be left out, and text may stand around them. What begins as a call is
            held to the form.

    Raises:
        GrammarError: There is no such form, or the schemas are too large.
    """
    if format_name not in _FORMS or not tools:
        raise GrammarError(f"calls cannot be held to the form '{format_name}' of this model")
    check_size([tool.parameters for tool in tools])
    writer = _Writer(control_tokens)
    form = _FORMS[format_name](writer, tools)
    rules = [form.start(writer, parallel=parallel, may_talk=may_talk), *writer.rules]
    return GrammarSpec(kind="lark", source="\n".join(rules))


@record
class _Form:
    """The parts of a form, in the notation of grammars."""

    opener: str
    """Text that calls begin with."""
    call: str
    """One call behind the opener."""
    head: str = ""
    """What begins the calls of one opener."""
    between: str = ""
    """What stands between two calls of one opener."""
    closer: str = ""
    """What ends the calls of one opener."""
    is_repeated: bool = False
    """Each call has an opener of its own."""

    def start(self, writer: _Writer, *, parallel: bool, may_talk: bool) -> str:
        more = f"({self.between} {self.call})*" if parallel and not self.is_repeated else ""
        calls = f"{self.head} {self.call} {more} {self.closer}"
        if not may_talk:
            opener = writer.text(self.opener)
            again = f"({self.between} {opener} {calls})*" if parallel and self.is_repeated else ""
            return f"start: {opener} {calls} {again}"
        times = "*" if parallel else "?"
        if self.opener in writer.control_tokens:
            return (
                f"start: (any_text {writer.text(self.opener)} {calls}){times} any_text\n"
                f"any_text: ANY_TEXT\nANY_TEXT: {_ANY_TEXT}"
            )
        if not self.opener:
            return f"start: other_text | {calls}\nother_text: OTHER\nOTHER: /([^{{\\[](.|\\n)*)?/"
        return (
            f"start: (up_to_call {calls}){times} any_text\n"
            f"up_to_call[lazy]: ANY_TEXT {quoted(self.opener)}\n"
            f"any_text: ANY_TEXT\nANY_TEXT: {_ANY_TEXT}"
        )


class _Writer:
    """Writes rules of a grammar."""

    def __init__(self, control_tokens: Mapping[str, int]) -> None:
        self.control_tokens = control_tokens
        self.rules: list[str] = []

    def text(self, *texts: str) -> str:
        """Return texts, those that are control tokens as such."""
        tokens = self.control_tokens
        return " ".join(f"<[{tokens[t]}]>" if t in tokens else quoted(t) for t in texts if t)

    def rule(self, body: str, options: str = "") -> str:
        """Add a rule and return its name."""
        name = f"rule_{len(self.rules)}"
        self.rules.append(f"{name}{options}: {body}")
        return name

    def arguments(self, tool: CallableTool) -> str:
        """Return the name of the rule for the JSON of a tool's arguments."""
        return self.json(tool.parameters or _NO_ARGUMENTS, tool, is_object=True)

    def json(self, schema: Mapping[str, Any], tool: CallableTool, *, is_object: bool) -> str:
        described = {"type": "object", **schema} if is_object else dict(schema)
        described["x-guidance"] = {**_SPACING, "lenient": not tool.is_strict}
        return self.rule(f"%json {json.dumps(described, ensure_ascii=False)}")

    def choice(self, calls: Iterator[str]) -> str:
        return self.rule(" | ".join(calls))

    def bare_text(self, schema: Mapping[str, Any], end: str) -> str:
        """Return the rule of a text without quotes, and of what ends it."""
        texts = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
        if texts and all(isinstance(text, str) for text in texts):
            return f"({alternatives(texts)}) {self.text(end)}"
        most = schema.get("maxLength", "")
        text = f"/(.|\\n){{{schema.get('minLength', 0)},{most}}}/"
        if end in self.control_tokens:
            return self.rule(f"{text} {self.text(end)}")
        return self.rule(f"{text} {quoted(end)}", "[lazy]")


def _hermes(writer: _Writer, tools: Sequence[CallableTool]) -> _Form:
    call = writer.choice(
        f"{quoted(_head(tool, 'arguments'))} {writer.arguments(tool)} {quoted('}')}"
        for tool in tools
    )
    opener, closer = "<tool_call>", "</tool_call>"
    return _Form(
        opener=opener,
        call=f'"\\n" {call} "\\n" {writer.text(closer)}',
        between='"\\n"',
        is_repeated=True,
    )


def _llama3(writer: _Writer, tools: Sequence[CallableTool]) -> _Form:
    call = writer.choice(
        f"{quoted(_head(tool, 'parameters'))} {writer.arguments(tool)} {quoted('}')}"
        for tool in tools
    )
    return _Form(opener="", call=call, between='"; "')


def _mistral(writer: _Writer, tools: Sequence[CallableTool]) -> _Form:
    if "[ARGS]" not in writer.control_tokens:
        call = writer.choice(
            f"{quoted(_head(tool, 'arguments'))} {writer.arguments(tool)} {quoted('}')}"
            for tool in tools
        )
        head = '" "? "["'
        return _Form(opener="[TOOL_CALLS]", call=call, head=head, between='", "', closer='"]"')
    identity = ""
    if "[CALL_ID]" in writer.control_tokens:
        identity = f"({writer.text('[CALL_ID]')} /[a-zA-Z0-9]{{9}}/)?"
    call = writer.choice(
        f"{quoted(tool.name)} {identity} {writer.text('[ARGS]')} {writer.arguments(tool)}"
        for tool in tools
    )
    return _Form(opener="[TOOL_CALLS]", call=call, is_repeated=True)


def _deepseek(writer: _Writer, tools: Sequence[CallableTool]) -> _Form:
    begin, end = writer.text("<｜tool▁call▁begin｜>"), writer.text("<｜tool▁call▁end｜>")
    separator = writer.text("<｜tool▁sep｜>")

    def bodies(tool: CallableTool) -> Iterator[str]:
        name, arguments = tool.name, writer.arguments(tool)
        yield f"{quoted(name)} {separator} {arguments}"
        fence = quoted(f"{name}\n```json\n")
        yield f'"function" {separator} {fence} {arguments} "\\n```"'

    call = writer.choice(body for tool in tools for body in bodies(tool))
    return _Form(
        opener="<｜tool▁calls▁begin｜>",
        call=f"{begin} {call} {end}",
        between='"\\n"?',
        closer=writer.text("<｜tool▁calls▁end｜>"),
    )


def _qwen3_coder(writer: _Writer, tools: Sequence[CallableTool]) -> _Form:
    def value(schema: Mapping[str, Any], tool: CallableTool) -> str:
        end = "\n</parameter>\n"
        if _is_text(schema):
            return writer.bare_text(schema, end)
        return f"{writer.json(schema, tool, is_object=False)} {quoted(end)}"

    def body(tool: CallableTool) -> str:
        parameters = (
            _optional(f"{quoted(f'<parameter={name}>' + chr(10))} {value(schema, tool)}", required)
            for name, schema, required in _properties(tool)
        )
        head = quoted(f"\n<function={tool.name}>\n")
        return f"{head} {' '.join(parameters)} {quoted('</function>' + chr(10))}"

    call = writer.choice(map(body, tools))
    closer = writer.text("</tool_call>")
    return _Form(opener="<tool_call>", call=f"{call} {closer}", between='"\\n"', is_repeated=True)


def _glm(writer: _Writer, tools: Sequence[CallableTool]) -> _Form:
    def value(schema: Mapping[str, Any], tool: CallableTool) -> str:
        end = "</arg_value>"
        if _is_text(schema):
            return writer.bare_text(schema, end)
        return f"{writer.json(schema, tool, is_object=False)} {writer.text(end)}"

    def body(tool: CallableTool) -> str:
        arguments = []
        for name, schema, required in _properties(tool):
            key = writer.text("<arg_key>", name, "</arg_key>", "\n", "<arg_value>")
            arguments.append(_optional(f'{key} {value(schema, tool)} "\\n"', required))
        return f"{quoted(tool.name + chr(10))} {' '.join(arguments)}"

    call = writer.choice(map(body, tools))
    closer = writer.text("</tool_call>")
    return _Form(opener="<tool_call>", call=f"{call} {closer}", between='"\\n"', is_repeated=True)


def _pythonic(writer: _Writer, tools: Sequence[CallableTool]) -> _Form:
    def body(tool: CallableTool) -> str:
        pairs = list(_properties(tool))
        asked = [pair for pair in pairs if pair[2]] + [pair for pair in pairs if not pair[2]]
        arguments = ""
        for place, (name, schema, required) in reversed(list(enumerate(asked))):
            comma = '", "' if place else ""
            value = _PYTHON_WORDS.get(str(schema.get("type")), "py_value")
            if _is_python(schema):
                value = writer.json(schema, tool, is_object=False)
            here = f"{comma} {quoted(name + '=')} {value} {arguments}"
            arguments = here if required else f"({here})?"
        return f"{quoted(tool.name + '(')} {arguments} {quoted(')')}"

    call = writer.choice(map(body, tools))
    writer.rules.append(_PYTHON)
    return _Form(opener="", call=call, head='"["', between='", "', closer='"]"')


def _harmony(writer: _Writer, tools: Sequence[CallableTool]) -> _Form:
    message = writer.text("<|constrain|>", "json", "<|message|>")
    call = writer.choice(
        f"{quoted(f'commentary to=functions.{tool.name} ')} {message} {writer.arguments(tool)}"
        for tool in tools
    )
    thought = (
        f'("analysis" {writer.text("<|message|>")} {_ANY_TEXT} '
        f"{writer.text('<|end|>', '<|start|>', 'assistant', '<|channel|>')})?"
    )
    return _Form(opener="<|channel|>", call=f"{thought} {call}")


_FORMS: dict[str, Callable[[_Writer, Sequence[CallableTool]], _Form]] = {
    "hermes": _hermes,
    "llama3": _llama3,
    "mistral": _mistral,
    "deepseek": _deepseek,
    "qwen3_coder": _qwen3_coder,
    "glm": _glm,
    "pythonic": _pythonic,
    "harmony": _harmony,
}


def _head(tool: CallableTool, key: str) -> str:
    """Return a call's JSON up to its arguments, spaced as Python spaces it."""
    return f'{{"name": {json.dumps(tool.name)}, "{key}": '


def _properties(tool: CallableTool) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    """Yield name, schema and whether it must be there, of each argument."""
    schema = tool.parameters or _NO_ARGUMENTS
    required = set(schema.get("required", ()))
    for name, value in (schema.get("properties") or {}).items():
        yield name, value if isinstance(value, dict) else {}, name in required


def _is_text(schema: Mapping[str, Any]) -> bool:
    kinds = schema.get("type", "string" if "enum" in schema or not schema else "object")
    return not _SCALARS & ({kinds} if isinstance(kinds, str) else set(kinds))


def _is_python(schema: Mapping[str, Any]) -> bool:
    """Whether all JSON of a schema is a literal of Python, too: it has neither true nor null."""
    kind = schema.get("type")
    if kind == "array":
        return isinstance(items := schema.get("items"), dict) and _is_python(items)
    if kind == "object":
        properties = schema.get("properties", {}).values()
        return schema.get("additionalProperties") is False and all(map(_is_python, properties))
    return kind in ("string", "integer", "number")


def _optional(rule: str, required: bool) -> str:
    return rule if required else f"({rule})?"
