"""How a model is asked for code, and how its answer becomes a program.

A model with a chat template is asked the way EvalPlus asks: one message with the problem, and the
beginning of the answer given, so that code comes at once and ends with its fence. A base model
goes on with the problem itself, up to where something else begins, as in the Codex paper
(arXiv:2107.03374).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from zse.evaluate.code.script import definitions_of

if TYPE_CHECKING:
    from zse.evaluate.code.problems import Problem

Form = Literal["chat", "completion"]
MOST_CHARACTERS = 100_000
"""Of an answer that is tried."""
_ASKED = (
    "Please provide a self-contained Python script that solves the following problem in a markdown "
    "code block:\n```\n{prompt}\n```\n"
)
_BEGUN = (
    "Below is a Python script with a self-contained function that solves the problem and passes "
    "corresponding tests:\n```python\n"
)
_STOPS: dict[Form, tuple[str, ...]] = {
    "chat": ("\n```",),
    "completion": ("\nclass", "\ndef", "\n#", "\nif", "\nprint"),
}
_NO_BODY = "\n    pass\n\n\n"
"""Of the problem's function, before the script that defines it anew."""
_FUTURE = re.compile(r"^from __future__ import [^\n]*\n?", re.MULTILINE)
_FENCED = re.compile(r"^```(?:python|py)?[ \t]*\n(.*?)(?:^```|\Z)", re.MULTILINE | re.DOTALL)


def question(problem: Problem) -> str:
    """Return the message that asks a chat model."""
    return _ASKED.format(prompt=problem.prompt.strip())


def beginning() -> str:
    """Return how the answer of a chat model begins."""
    return _BEGUN


def stops(form: Form) -> tuple[str, ...]:
    """Return the texts that end an answer."""
    return _STOPS[form]


def program_of(problem: Problem, answer: str, form: Form) -> str:
    """Return the program that goes through to its end where an answer is right.

    A chat model's script stands after the problem's own text, whose imports and helpers it may
    need and whose function it defines anew, without tests of its own; of an answer that fenced its
    code once more, the first fenced block counts. A base model's answer is the body of the
    problem's function.
    """
    code, head = answer[:MOST_CHARACTERS], problem.prompt
    if form == "chat":
        fenced = _FENCED.search(code)
        head = problem.prompt.rstrip()
        script = fenced[1] if fenced else code
        code = _NO_BODY + definitions_of(script, problem.entry_point)
    parts = (head + code, problem.test, f"check({problem.entry_point})")
    text = "\n\n".join(parts) + "\n"
    first = "".join(_FUTURE.findall(code))  # stands in the first lines or nowhere
    return first + _FUTURE.sub("", text) if first else text
