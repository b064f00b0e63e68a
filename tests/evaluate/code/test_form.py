"""An answer becomes a program: what of it is code, and what stands around it."""

from __future__ import annotations

from zse.evaluate.code.form import beginning, program_of, question, stops
from zse.evaluate.code.problems import Problem
from zse.evaluate.sandbox.run import run_program

PROBLEM = Problem(
    task_id="t/0",
    prompt='import math\n\n\ndef helper(x):\n    return x\n\n\ndef area(r):\n    """Area. """\n',
    entry_point="area",
    test="def check(candidate):\n    assert round(candidate(1), 2) == 3.14\n",
)
BODY = "    return math.pi * helper(r) ** 2\n"
SCRIPT = "def area(r):\n" + BODY


def passes(answer: str, form: str) -> bool:
    return run_program(program_of(PROBLEM, answer, form)).outcome == "passed"


def test_a_base_model_goes_on_with_the_problem() -> None:
    assert passes("\n" + BODY, "completion")
    assert not passes("\n    return r\n", "completion")


def test_the_script_of_a_chat_model_finds_the_imports_and_helpers_of_the_problem() -> None:
    assert passes(SCRIPT, "chat")


def test_a_script_that_does_not_define_the_function_does_not_pass() -> None:
    assert not passes("def other(r):\n" + BODY, "chat")


def test_the_first_fenced_block_counts_where_code_was_fenced_once_more() -> None:
    assert passes(f"Here it is:\n```python\n{SCRIPT}```\nand\n```\nbroken(\n```", "chat")
    assert passes(f"```\n{SCRIPT}", "chat")


def test_imports_of_the_future_come_first() -> None:
    answer = "from __future__ import annotations\n" + SCRIPT
    assert program_of(PROBLEM, answer, "chat").startswith("from __future__")
    assert passes(answer, "chat")


def test_a_chat_model_is_asked_for_a_block_and_its_answer_begins_in_one() -> None:
    assert PROBLEM.prompt.strip() in question(PROBLEM)
    assert beginning().endswith("```python\n")
    assert stops("chat") == ("\n```",)


def test_an_endless_answer_is_cut() -> None:
    assert len(program_of(PROBLEM, "x" * 10_000_000, "chat")) < 200_000
