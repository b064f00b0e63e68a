"""From a spec to a grammar that says which tokens may come next: llguidance over our tokenizer.

The library is told the bytes of each token, as our own tokenizer writes them, so a model needs no
``tokenizer.json``, and what is checked is what a client reads. Compiling runs in the thread that
prepares a request. It is bounded in size and in work, and tried out: what breaks at its first
tokens is refused instead of failing in the middle of an answer.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from zse.errors import OverloadedError
from zse.text.grammar.masks import mask_threads
from zse.text.grammar.spec import GrammarError
from zse.text.grammar.state import Grammar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.text.grammar.spec import GrammarSpec
    from zse.text.tokenizer import Tokenizer

MAX_CACHED = 256
MAX_CACHED_BYTES = 1 << 20
"""Of sources. A compiled grammar takes some ten times as much memory as its source."""
_TURN_SECONDS = 10.0
"""How long a request waits for others to be compiled."""
_LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 500_000,  # some 10 ms
    "step_lexer_fuel": 50_000,
    "step_max_items": 50_000,
    "max_lexer_states": 50_000,  # 1 to 2 kB each
    "max_grammar_size": 200_000,
    "verbose_errors": False,  # which would print the whole grammar
}
_MAX_KEPT_TEXTS = 4096
_MAX_KEPT_TEXT = 256
"""Letters. Answers come by the same names and signs again and again."""
_TRIED_TOKENS = 2
_MOST_MASK_SECONDS = 0.1
"""Work of a processor for one token, once the first is over: all other answers wait for it."""
_MOST_ROOTS = 32
_ROOTS_SECONDS = 0.4
"""Of a processor, for all roots of a grammar: one that takes long to compile gets fewer of them, so
that more of its answers wait for each other."""
_MAX_ERROR = 500


class GrammarCompiler:
    """Compiles specs for one model, one at a time, and keeps the latest; for any thread.

    Args:
        tokenizer: The model's.
        vocab_size: Logits of the model, which may be more or fewer than the tokenizer has tokens.
        end_token_ids: Tokens that end an answer.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, vocab_size: int, end_token_ids: tuple[int, ...]
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._end_token_ids = end_token_ids
        self._turn = threading.Lock()
        self._kept: OrderedDict[GrammarSpec, Grammar] = OrderedDict()
        self._kept_bytes = 0
        self._vocabulary: Any = None

    def compile(self, spec: GrammarSpec, num_answers: int = 1) -> Grammar:
        """Return the grammar of a spec for some answers, from the latest ones if it is there.

        Raises:
            GrammarError: It cannot be compiled; the message has llguidance's words.
            OverloadedError: Others were compiled for too long.
        """
        if not self._turn.acquire(timeout=_TURN_SECONDS):
            raise OverloadedError("Too many grammars are being compiled: try again.")
        try:
            grammar = self._kept.get(spec)
            is_new = grammar is None
            if grammar is None:
                grammar = self._keep(spec, self._compile(spec))
            self._kept.move_to_end(spec)
            if grammar.expect(num_answers) or is_new:
                for other in self._kept.values():
                    if other is not grammar:
                        other.trim()
            return grammar
        except GrammarError as error:
            error.param = error.param or spec.param or None
            raise
        finally:
            self._turn.release()

    def _keep(self, spec: GrammarSpec, grammar: Grammar) -> Grammar:
        self._kept[spec] = grammar
        self._kept_bytes += len(spec.source)
        while len(self._kept) > MAX_CACHED or (
            self._kept_bytes > MAX_CACHED_BYTES and len(self._kept) > 1
        ):
            oldest, _ = self._kept.popitem(last=False)
            self._kept_bytes -= len(oldest.source)
        return grammar

    def _compile(self, spec: GrammarSpec) -> Grammar:
        from llguidance import LLMatcher, LLParserLimits

        if self._vocabulary is None:
            self._vocabulary = _vocabulary(self._tokenizer, self._vocab_size, self._end_token_ids)
        source = spec.source
        if spec.kind == "regex":
            source = LLMatcher.grammar_from_regex(source)
        elif spec.kind == "json_schema":
            source = LLMatcher.grammar_from_json_schema(source)
        vocabulary = self._vocabulary

        def new_matcher() -> Any:
            return LLMatcher(vocabulary, source, log_level=0, limits=LLParserLimits(**_LIMITS))

        began = time.thread_time()
        matcher = new_matcher()
        affordable = int(_ROOTS_SECONDS / max(time.thread_time() - began, 1e-6))
        _try_out(matcher)
        return Grammar(
            matcher,
            new_matcher=new_matcher,
            most_roots=max(1, min(_MOST_ROOTS, affordable)) if mask_threads() > 1 else 1,
            tokenize=vocabulary.tokenize_bytes,
            token_bytes=self._tokenizer.token_bytes,
            starts_after=tuple(text.encode() for text in spec.starts_after),
            openers=self._single_tokens(spec.may_open),
            end_token_ids=self._end_token_ids,
        )

    def _single_tokens(self, texts: tuple[str, ...]) -> frozenset[int]:
        """Return the tokens that are such a text; what takes several tokens is left out."""
        found = [self._tokenizer.encode_within(text) for text in texts]
        return frozenset(ids[0] for ids in found if len(ids) == 1)


class _Vocabulary:
    """What llguidance asks of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_token_id: int) -> None:
        self._tokenizer = tokenizer
        count = min(tokenizer.vocab_size, vocab_size)
        # Past the tokenizer's cache, which is for the tokens of answers.
        self.tokens = [tokenizer.engine.token_bytes(token_id) for token_id in range(count)]
        # Masks have a bit for each logit: those beyond the tokenizer's tokens have no text.
        self.tokens += [b""] * (vocab_size - count)
        self.special_token_ids = sorted(i for i in tokenizer.special_ids if i < count)
        self.eos_token_id = end_token_id
        special = set(self.special_token_ids)
        self._plain_ids = {
            data: token_id
            for token_id, data in enumerate(self.tokens[:count])
            if token_id not in special
        }
        self._longest = max(map(len, self._plain_ids), default=0)
        self._kept = lru_cache(_MAX_KEPT_TEXTS)(self._encode)

    def __call__(self, text: str) -> Sequence[int]:
        """Encode a piece of text that the grammar leaves no choice about."""
        return self._kept(text) if len(text) <= _MAX_KEPT_TEXT else self._encode(text)

    def _encode(self, text: str) -> list[int]:
        ids = self._tokenizer.encode_within(text, parse_special=False)
        data = text.encode()
        # Some tokenizers change a text before they cut it: what they make is not what is asked for.
        return ids if b"".join(map(self._token_bytes, ids)) == data else self._cut(data)

    def _token_bytes(self, token_id: int) -> bytes:
        return self.tokens[token_id] if token_id < len(self.tokens) else b""

    def _cut(self, data: bytes) -> list[int]:
        """Cut a text into the longest tokens from its start, as far as there are some."""
        ids, start = [], 0
        while start < len(data):
            ends = range(min(len(data), start + self._longest), start, -1)
            end = next((end for end in ends if data[start:end] in self._plain_ids), None)
            if end is None:
                break
            ids.append(self._plain_ids[data[start:end]])
            start = end
        return ids


def _vocabulary(tokenizer: Tokenizer, vocab_size: int, end_token_ids: tuple[int, ...]) -> Any:
    from llguidance import LLTokenizer

    if tokenizer.facts.kind == "other" or not end_token_ids:
        lacking = "tokens whose bytes vary" if end_token_ids else "no token that ends an answer"
        raise GrammarError(
            f"this model cannot be held to a form: its tokenizer has {lacking}",
            hint="Ask for the form in a message, and check the answer.",
        )
    words = _Vocabulary(tokenizer, vocab_size, end_token_ids[0])
    return LLTokenizer(words, eos_token=list(end_token_ids))  # type: ignore[arg-type]


def _try_out(matcher: Any) -> None:
    """Take the first tokens that a matcher allows, with a copy of it.

    Raises:
        GrammarError: It is damaged, matches nothing, or takes more work than is allowed.
    """
    # What a host takes from a virtual machine counts as work, too: so much is not taken twice.
    if all(_seconds_of_a_mask(matcher) > _MOST_MASK_SECONDS for _ in range(2)):
        raise GrammarError("the grammar cannot be used: it takes too much work for each token")


def _seconds_of_a_mask(matcher: Any) -> float:
    """Return the processor's time for the last token of the first few; else as ``_try_out``."""
    matcher, seconds = matcher.deep_copy(), 0.0
    for _ in range(_TRIED_TOKENS):
        began = time.thread_time()
        mask = b"" if matcher.is_error() else matcher.compute_bitmask()
        seconds = time.thread_time() - began
        if matcher.is_error():
            break
        allowed = int.from_bytes(mask, "little")
        if not allowed:
            raise GrammarError("the grammar matches no text")
        if matcher.is_stopped() or not matcher.consume_token((allowed & -allowed).bit_length() - 1):
            break
    if matcher.is_error():
        words = matcher.get_error().partition("<backtrace>")[0]
        words = words.replace("<non-verbose/>", "").strip()
        raise GrammarError(f"the grammar cannot be used: {words[:_MAX_ERROR]}")
    return seconds
