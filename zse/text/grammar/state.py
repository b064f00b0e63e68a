"""A grammar, and how far one answer has come in it.

    begin -> [write masks -> a token is chosen -> advance] ... -> is_complete

Masks of a step are written together, into memory of the caller, by as many threads as it has work
for: bit ``i % 32`` of word ``i // 32`` says whether token ``i`` may come next.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from zse.device.probe import probe

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

_MOST_THREADS = 8
_PARALLEL_ROWS = 4
"""Masks from which on several threads are woken for them."""


class Grammar:
    """A compiled grammar; each answer begins with a copy of it. For any thread.

    Args:
        matcher: llguidance's, at the start.
        tokenize: Returns tokens of bytes, not always those that a model would write.
        token_bytes: Returns the bytes of a token.
        starts_after: Texts of the answer behind which the form begins; none for its start.
        openers: Tokens that begin the part before the form, where an answer may leave it out.
        end_token_ids: Tokens that the model ends answers with.
    """

    def __init__(
        self,
        matcher: Any,
        *,
        tokenize: Callable[[bytes], list[int]],
        token_bytes: Callable[[int], bytes],
        starts_after: tuple[bytes, ...],
        openers: Collection[int],
        end_token_ids: Collection[int],
    ) -> None:
        self._matcher = matcher
        self.tokenize = tokenize
        self.token_bytes = token_bytes
        self.starts_after = starts_after
        self.openers = openers
        self.longest_start = max(map(len, starts_after), default=0)
        self.end_token_ids = frozenset(end_token_ids)

    def begin(self) -> GrammarState:
        """Return the state of an answer that has no tokens yet."""
        state = GrammarState(self, self._matcher.deep_copy())
        state.is_active = not self.starts_after or bool(self.openers)
        state.openers = self.openers
        return state


class GrammarState:
    """How far one answer has come. For one thread at a time."""

    def __init__(self, grammar: Grammar, matcher: Any) -> None:
        self.grammar = grammar
        self.matcher = matcher
        self.is_active = True
        """Whether the form has begun; before that anything may come but an end."""
        self.openers: Collection[int] = ()
        """Tokens that may come beside those of the form: only as the first of an answer."""
        self.error = ""
        """Why the form cannot be kept any more; empty while it can."""
        self._tail = b""

    @property
    def is_complete(self) -> bool:
        """Whether the form is finished and leaves nothing to add."""
        return self.is_active and not self.error and bool(self.matcher.is_stopped())

    def copy(self) -> GrammarState:
        other = GrammarState(self.grammar, self.matcher.deep_copy())
        other.is_active, other.openers = self.is_active, self.openers
        other.error, other._tail = self.error, self._tail
        return other

    def advance(self, token_id: int) -> None:
        """Note the next token of the answer."""
        if self.error:
            return
        openers, self.openers = self.openers, ()
        if token_id in openers:
            self.is_active = False
        elif not self.is_active:
            self._look_for_start(token_id)
        elif not self.matcher.consume_token(token_id):
            self.error = self.matcher.get_error() or "a token that the grammar does not allow"

    def forced_tokens(self) -> Sequence[int]:
        """Return the tokens that must come next, where the form leaves no choice."""
        if not self.is_active or self.openers or self.error or self.matcher.is_stopped():
            return ()
        tokens: list[int] = self.matcher.compute_ff_tokens()
        return tokens[: self.matcher.validate_tokens(tokens)] if tokens else ()

    def _look_for_start(self, token_id: int) -> None:
        """Begin where the text before the form ends: nearly always with the end of a token.

        What follows it in the same token belongs to the form if it fits; else it is white space as
        a rule, and left out of account.
        """
        text = self._tail + self.grammar.token_bytes(token_id)
        ends = [place + len(s) for s in self.grammar.starts_after if (place := text.find(s)) >= 0]
        if not ends:
            self._tail = text[max(0, len(text) - self.grammar.longest_start + 1) :]
            return
        self.is_active = True
        if rest := text[min(ends) :].strip():
            self.matcher.try_consume_tokens(self.grammar.tokenize(rest))


class MaskRows(NamedTuple):
    """What may follow an answer so far and, row by row, each of some drafts."""

    state: GrammarState
    banned: Sequence[Collection[int]]
    """For each row the tokens that are not to come unless nothing else may."""
    drafts: Sequence[int] = ()


def write_masks(wanted: Sequence[MaskRows | int], address: int, row_bytes: int) -> None:
    """Write the masks of a step, one after the other.

    Args:
        wanted: For each answer its ``MaskRows``, or a number of rows that allow everything.
        address: Where they go, in memory of this process, all of it writable.
        row_bytes: Bytes of a mask: as many words as the vocabulary of the grammars asks for.
    """
    places: list[tuple[Any, int]] = []
    bans: list[tuple[int, Collection[int]]] = []
    more: list[tuple[int, Collection[int]]] = []
    row = 0
    for answer in wanted:
        for state, banned in _states(answer):
            if state is None or state.error or not state.is_active:
                ctypes.memset(address + row * row_bytes, 0xFF, row_bytes)
            else:
                places.append((state.matcher, row))
                more.append((row, state.openers))
            if banned:
                bans.append((row, banned))
            row += 1
    _compute(places, address, row_bytes, row)
    for row, tokens in more:
        for token_id in tokens:
            word = ctypes.c_uint32.from_address(address + row * row_bytes + token_id // 32 * 4)
            word.value |= 1 << token_id % 32
    for row, banned in bans:
        _ban(address + row * row_bytes, row_bytes, banned)


def _states(wanted: MaskRows | int) -> Iterator[tuple[GrammarState | None, Collection[int]]]:
    """Yield the state of each row, and what is banned there."""
    if isinstance(wanted, int):
        for _ in range(wanted):
            yield None, ()
        return
    state = wanted.state
    for count in range(1 + len(wanted.drafts)):
        if count:
            state = state.copy()
            state.advance(wanted.drafts[count - 1])
        ends = () if state.is_active else state.grammar.end_token_ids
        yield state, (*wanted.banned[count], *ends)


def _compute(places: list[tuple[Any, int]], address: int, row_bytes: int, rows: int) -> None:
    if len(places) < _PARALLEL_ROWS:
        for matcher, row in places:
            matcher.unsafe_compute_mask_ptr(address + row * row_bytes, row_bytes)
    else:
        _executor().unsafe_compute_mask_ptr(places, address, row_bytes, rows)


@cache
def _executor() -> Any:
    from llguidance import LLExecutor

    return LLExecutor(num_threads=min(_MOST_THREADS, probe().compute_threads))


def _ban(address: int, row_bytes: int, banned: Collection[int]) -> None:
    words = (ctypes.c_uint32 * (row_bytes // 4)).from_address(address)
    before = bytes(words)
    for token_id in banned:
        words[token_id // 32] &= ~(1 << token_id % 32)
    if not bytes(words).strip(b"\0"):
        ctypes.memmove(address, before, row_bytes)
