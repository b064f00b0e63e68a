"""What a grammar may cost, on machines that are held up while it is tried."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from zse.text.grammar import compile as compile_module
from zse.text.grammar.spec import GrammarError


class Matcher:
    """Allows one token for ever."""

    is_error = is_stopped = staticmethod(lambda: False)
    compute_bitmask = staticmethod(lambda: b"\1")
    consume_token = staticmethod(lambda _: True)

    def deep_copy(self):
        return self


@pytest.fixture
def try_out(monkeypatch):
    """Try a grammar out, whose tokens take so many seconds by the clock of the thread."""

    def try_out(*seconds):
        steps, now, is_over = iter(seconds), [0.0], [False]

        def thread_time():
            now[0] += next(steps) if is_over[0] else 0.0
            is_over[0] = not is_over[0]
            return now[0]

        monkeypatch.setattr(compile_module, "time", SimpleNamespace(thread_time=thread_time))
        compile_module._try_out(Matcher())
        return len(list(steps))

    return try_out


def test_a_grammar_whose_tokens_are_cheap_is_tried_once(try_out):
    assert try_out(3.0, 0.01, 9.0, 9.0) == 2  # the first token may take long


def test_a_grammar_that_a_stall_has_met_is_tried_again(try_out):
    assert try_out(0.01, 3.0, 0.01, 0.02) == 0


def test_a_grammar_whose_tokens_take_long_both_times_is_refused(try_out):
    with pytest.raises(GrammarError, match="too much work for each token"):
        try_out(0.01, 3.0, 0.01, 3.0)
