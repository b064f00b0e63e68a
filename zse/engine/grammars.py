"""Forms of answers for one model: nothing of them is imported before the first one is asked for."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zse.engine.encoder_core import AnyCore
    from zse.text.grammar.compile import GrammarCompiler
    from zse.text.grammar.spec import GrammarSpec
    from zse.text.grammar.state import Grammar
    from zse.text.tokenizer import Tokenizer


class Grammars:
    """Compiles forms for a core and its tokenizer. For any thread."""

    def __init__(self, core: AnyCore, tokenizer: Tokenizer) -> None:
        self._core = core
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._compiler: GrammarCompiler | None = None

    def compile(self, spec: GrammarSpec, num_answers: int = 1) -> Grammar:
        """Return the grammar of a spec for some answers that are to be held to it.

        The first one takes a second more, for the vocabulary.

        Raises:
            GrammarError: It cannot be compiled, or the model cannot be held to a form.
            OverloadedError: Others were compiled for too long.
        """
        from zse.text.grammar.compile import GrammarCompiler

        with self._lock:
            if self._compiler is None:
                self._compiler = GrammarCompiler(
                    self._tokenizer,
                    vocab_size=self._core.runner.vocab_size,
                    end_token_ids=self._core.end_token_ids,
                )
        return self._compiler.compile(spec, num_answers)
