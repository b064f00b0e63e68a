"""What an answer is held to: a form of its text, calls that it must make, arguments that must fit.

Reasoning comes first and is free. Where the prompt has opened it, the form begins behind its end;
where the model may open it, it is a part of the grammar.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.errors import InvalidParameterError
from zse.records import record
from zse.text.grammar.spec import GrammarError, GrammarSpec
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
    thinking = "" if shape.is_open else _thinking(shape, rules)
    # A whole grammar, as it was sent, cannot be a part of another one.
    if form is not None and (form.kind == "lark" or not (calls or thinking)) and not is_forced:
        return replace(form, starts_after=_closer(shape))
    texts = [] if form is None or is_forced else [_text(shape, form, rules)]
    expression = " | ".join(f"({each})" for each in (*texts, calls) if each)
    if not expression:
        return None
    return GrammarSpec(
        kind="lark",
        source=rules.source(joined(thinking, f"({expression})")),
        starts_after=_closer(shape),
        param=form.param if form is not None else PARAM,
    )


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
    elif demand.is_strict and grammar.opener:
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
        body = rules.add("/" + form.source.replace("/", "\\/").replace("\n", "\\n") + "/")
    else:
        body = rules.add(f"%json {form.source}")
    return joined(rules.text(shape.calls.text_opener if shape.calls else ""), body)


def _closer(shape: AnswerShape) -> str:
    return shape.reasoning.closers[0] if shape.reasoning is not None and shape.is_open else ""


def _thinking(shape: AnswerShape, rules: Rules) -> str:
    """Return an expression for reasoning that the model may begin with."""
    if shape.calls is not None and shape.calls.thinking is not None:
        opener, closer = shape.calls.thinking
        return f"({rules.text(opener)} {rules.until(closer)})?"
    if shape.reasoning is None:
        return ""
    opener, closer = shape.reasoning.openers[0], shape.reasoning.closers[0]
    return f"({rules.text(opener)} {rules.until(closer)} /\\s{{0,8}}/)?"
