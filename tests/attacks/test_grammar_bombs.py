"""Forms that are made to cost time or memory: refused, or kept to, and memory stays as it was."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from grammar_bombs import BOMBS, EXPRESSIONS, GRAMMARS
from grammar_walks import WordTokenizer, compiler_for, walk

from zse.text.grammar import spec as forms
from zse.text.grammar.spec import GrammarError

TOKENIZER = WordTokenizer()


def asked(kind, value):
    if kind == "schema":
        return forms.json_schema(value)
    return forms.regex(value) if kind == "expression" else forms.context_free(value)


EVERY = [
    *(pytest.param("schema", value, id=name) for name, value in BOMBS.items()),
    *(pytest.param("expression", value, id=name) for name, value in EXPRESSIONS.items()),
    *(pytest.param("grammar", value, id=name) for name, value in GRAMMARS.items()),
]


@pytest.mark.parametrize(("kind", "value"), EVERY)
def test_a_bomb_is_refused_in_words_or_kept_to(kind, value):
    refusal = ""
    try:
        state = compiler_for(TOKENIZER).compile(asked(kind, value)).begin()
    except GrammarError as error:
        refusal = str(error)
    if refusal:
        assert len(refusal) < 1000
        assert "backtrace" not in refusal
    else:
        for seed in range(3):
            walk(state.copy(), TOKENIZER, seed=seed, most=40)


def test_two_thousand_schemas_leave_memory_as_it_was():
    """In a child, because a process keeps what its other tests took."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("many_schemas.py"))],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    early, late = json.loads(done.stdout)
    assert late < early * 1.05 + 4
