"""Each kind of small change is found, and changes what it says and nothing else."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def mutants_of(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "mutation"))
    import operators

    yield operators.mutants_of
    sys.modules.pop("operators")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a < b", "a <= b"),
        ("a is not None", "a is None"),
        ("(a + 1) == (b)", "(a + 1) != (b)"),
        ("a - b", "a + b"),
        ("x and y", "x or y"),
        ("not x", "x"),
        ("f(True)", "f(False)"),
        ("limit = 10", "limit = 11"),
        ("if x:\n    y", "if (not (x)):\n    y"),
        ("close(x)", "pass"),
        ("def f():\n    return x", "def f():\n    return None"),
        ("é = 'é'; a < b", "é = 'é'; a <= b"),
    ],
)
def test_a_change_is_among_the_mutants(mutants_of, before: str, after: str) -> None:
    assert after in [mutant.apply(before) for mutant in mutants_of(before)]


@pytest.mark.parametrize(
    "text",
    [
        "'a' + name",
        "x: Literal[3]",
        "if TYPE_CHECKING:\n    import x\n",
        '"""Three or more."""',
    ],
)
def test_what_no_test_can_see_is_left_alone(mutants_of, text: str) -> None:
    assert mutants_of(text) == []


def test_every_mutant_of_a_real_file_parses_and_differs(mutants_of) -> None:
    text = (ROOT / "zse" / "kv" / "blocks.py").read_text()
    mutants = mutants_of(text)
    assert len(mutants) > 20
    for mutant in mutants:
        changed = mutant.apply(text)
        assert changed != text
        ast.parse(changed)
