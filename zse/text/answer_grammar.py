"""What an answer is held to: a form of its text, calls that it must make, arguments that must fit.

Reasoning comes first and is free: what is asked for begins behind it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.errors import InvalidParameterError
from zse.records import record
from zse.text.grammar.spec import GrammarError, GrammarSpec, regex_literal
from zse.text.tools.grammar import Rules, forced_calls, joined, strict_calls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.text.dialect import AnswerShape
    from zse.text.tools.grammar import CallTool

PARAM = "tools"
"""What requests call the field that calls come from."""


@record
class CallDemand:
    """What is asked of an answer's calls."""

    tools: Sequence[CallTool]
    is_forced: bool = False
    """There must be one."""
    is_single: bool = False
    """There must not be two."""

    @property
    def is_strict(self) -> bool:
        return any(tool.is_strict for tool in self.tools)


def answer_grammar(
    shape: AnswerShape, form: GrammarSpec | None, demand: CallDemand | None
) -> GrammarSpec | None:
    """Return what an answer is held to; None for anything.

    Args:
        shape: What the model writes around its text.
        form: Of the text, where one was asked for.
        demand: Of the calls, where there are tools.

    Raises:
        GrammarError: A schema is damaged or too large.
        InvalidParameterError: The model writes calls in no form that it can be held to.
    """
    rules = Rules(shape.controls)
    calls = _calls(shape, form, demand, rules)
    is_forced = demand is not None and demand.is_forced
    thinking = _thinking_in_form(shape, rules)
    # A whole grammar, as it was sent, cannot be a part of another one.
    if form is not None and (form.kind == "lark" or not (calls or thinking)) and not is_forced:
        return _behind_reasoning(form, shape)
    texts = [] if form is None or is_forced else [_text(shape, form, rules)]
    expression = " | ".join(f"({each})" for each in (*texts, calls) if each)
    if not expression:
        return None
    source = rules.source(joined(thinking, f"({expression})"))
    param = form.param if form is not None else PARAM
    return _behind_reasoning(GrammarSpec(kind="lark", source=source, param=param), shape)


def _calls(
    shape: AnswerShape, form: GrammarSpec | None, demand: CallDemand | None, rules: Rules
) -> str:
    if demand is None:
        return ""
    grammar = shape.calls.grammar if shape.calls else None
    if grammar is None:
        if demand.is_forced:
            raise InvalidParameterError(
                "This model writes calls in no form that it can be held to: use 'auto'.",
                param="tool_choice",
            )
        return ""
    if demand.is_forced or form is not None:  # beside a form, what is no call has it
        build = forced_calls
    elif demand.is_strict and grammar.shows_text:
        build = strict_calls
    else:
        return ""
    try:
        return build(grammar, demand.tools, rules, is_single=demand.is_single)
    except GrammarError as error:
        error.param = PARAM
        raise


def _text(shape: AnswerShape, form: GrammarSpec, rules: Rules) -> str:
    if form.kind == "regex":
        body = rules.add(regex_literal(form.source))
    else:
        body = rules.add(f"%json {form.source}")
    return joined(rules.text(shape.calls.text_opener if shape.calls else ""), body)


def _behind_reasoning(spec: GrammarSpec, shape: AnswerShape) -> GrammarSpec:
    if shape.reasoning is None:
        return spec
    opened_by = () if shape.is_open else shape.reasoning.openers
    return replace(spec, starts_after=shape.reasoning.closers, may_open=opened_by)


def _thinking_in_form(shape: AnswerShape, rules: Rules) -> str:
    """Return an expression for reasoning that has a place in the form of calls."""
    if shape.calls is None or shape.calls.thinking is None:
        return ""
    opener, closer = shape.calls.thinking
    return f"({rules.text(opener)} {rules.until(closer)})?"
