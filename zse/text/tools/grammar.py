"""Calls as a grammar: what an answer is held to where it must call, or where arguments are strict.

Each form of calls says how one call of one tool is written; this file puts them together, with the
reasoning before them and the text around them, in Lark's notation as llguidance reads it. Control
tokens are named by their ids: no text that a grammar allows can ever match them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from zse.records import record
from zse.text.grammar.spec import COMPACT, json_schema, quoted

_ANY_OBJECT = {"type": "object"}
_ANYTHING = "/(?s:.*)/"


@record
class CallTool:
    """A tool that may be called."""

    name: str
    parameters: Mapping[str, Any]
    """JSON schema of its arguments."""
    is_strict: bool
    """The schema must be kept in all it says; else it is kept as far as it can be."""


class Rules:
    """Collects the rules of a grammar.

    Args:
        controls: Ids of the model's control tokens by their texts.
    """

    def __init__(self, controls: Mapping[str, int]) -> None:
        self._controls = controls
        named = sorted(controls, key=len, reverse=True)
        self._pattern = re.compile(f"({'|'.join(map(re.escape, named)) or '(?!)'})")
        self._lines: list[str] = []

    def text(self, text: str) -> str:
        """Return an expression for a text, in which control tokens are those tokens."""
        parts = (part for part in self._pattern.split(text) if part)
        return " ".join(self.control(part) or quoted(part) for part in parts)

    def control(self, text: str) -> str:
        """Return an expression for a control token; empty where the model has none like it."""
        return f"<[{self._controls[text]}]>" if text in self._controls else ""

    def json(self, schema: Mapping[str, Any], *, is_strict: bool = False) -> str:
        """Return an expression for JSON that a schema describes."""
        spec = json_schema(dict(schema), strict=is_strict, whitespace=COMPACT)
        return self.add(f"%json {spec.source}")

    def until(self, end: str, text: str = _ANYTHING) -> str:
        """Return an expression for any text up to an end, and the end."""
        if self._begins_with_control(end):
            return joined(self.add(text), self.text(end))
        return self.add(text, f"[suffix={quoted(end)}]")

    def text_without(self, end: str) -> str:
        """Return an expression for any text that does not hold another."""
        if self._begins_with_control(end):
            return self.add(_ANYTHING)
        name = f"R{len(self._lines)}"  # in capitals: what combines expressions
        self._lines.append(f"{name}: {_ANYTHING} & ~/(?s:.*{_regex(end)}.*)/")
        return name

    def _begins_with_control(self, text: str) -> bool:
        return self._pattern.match(text) is not None

    def add(self, expression: str, attributes: str = "") -> str:
        """Add a rule; returns its name."""
        name = f"r{len(self._lines)}"
        self._lines.append(f"{name}{attributes}: {expression}")
        return name

    def source(self, start: str) -> str:
        return "\n".join((f"start: {start}", *self._lines))


CallRule: TypeAlias = Callable[[Rules, CallTool], str]
"""Returns the expression of one call."""


@record
class CallGrammar:
    """How a form writes calls: ``opener before call between call after``."""

    call: CallRule
    opener: str = ""
    """Shows where calls begin in an answer that may be text; empty where nothing does."""
    before: str = ""
    between: str = ""
    after: str = ""
    plain: str = ""
    """Regular expression of answers that are text, where no opener tells them from calls."""
    is_single: bool = False
    """An answer has one call at most."""

    @property
    def shows_text(self) -> bool:
        """Whether the beginning of a call can be told from text."""
        return bool(self.opener or self.plain)


def call_with(before: str, after: str = "") -> CallRule:
    """Return the rule of a form whose arguments are JSON; ``%s`` stands for the tool's name."""

    def rule(rules: Rules, tool: CallTool) -> str:
        arguments = rules.json({**_ANY_OBJECT, **tool.parameters}, is_strict=tool.is_strict)
        return joined(rules.text(before.replace("%s", tool.name)), arguments, rules.text(after))

    return rule


def forced_calls(
    form: CallGrammar, tools: Sequence[CallTool], rules: Rules, *, is_single: bool
) -> str:
    """Return the expression of an answer that must call.

    Raises:
        GrammarError: A schema is damaged or too large.
    """
    return joined(rules.text(form.opener), _group(form, tools, rules, is_single=is_single))


def strict_calls(
    form: CallGrammar, tools: Sequence[CallTool], rules: Rules, *, is_single: bool
) -> str:
    """Return the expression of an answer that may be text or calls, whose arguments fit.

    Raises:
        GrammarError: As ``forced_calls``.
    """
    group = _group(form, tools, rules, is_single=is_single)
    if not form.opener:
        return f"{rules.add(f'/{form.plain}/')} | {group}"
    calls = joined(rules.until(form.opener), group)
    return joined(f"({calls})*", rules.text_without(form.opener))


def _group(form: CallGrammar, tools: Sequence[CallTool], rules: Rules, *, is_single: bool) -> str:
    call = rules.add(" | ".join(f"({form.call(rules, tool)})" for tool in tools))
    more = ""
    if not (is_single or form.is_single):
        more = f"({joined(rules.text(form.between), call)})*"
    return joined(rules.text(form.before), call, more, rules.text(form.after))


def joined(*expressions: str) -> str:
    return " ".join(expression for expression in expressions if expression)


def _regex(text: str) -> str:
    return re.escape(text).replace("/", "\\/")
