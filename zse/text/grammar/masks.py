"""The masks of one step, written together into memory of the caller.

Bit ``i % 32`` of word ``i // 32`` says whether token ``i`` may come next. All of it stands between
two tokens of every answer, so a row costs a few calls and no copies. Where the bytes of the form
leave no choice, that is the one token by which our tokenizer goes on, which is asked here: threads
of the library would have to wait for the interpreter one by one. They do all the rest, each row
beside the others, because answers have roots of their own: copies of one root share a lock.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from zse.device.probe import probe

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from zse.text.grammar.state import GrammarState, Root

_MOST_THREADS = 16
"""They are woken one by one while work is left, so that short steps wake few of them."""
_PARALLEL_ROWS = 4
"""Masks from which on several threads are woken for them."""


@cache
def mask_threads() -> int:
    """Return how many threads write masks at the most."""
    return min(_MOST_THREADS, probe().compute_threads)


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
    held: list[tuple[GrammarState, int]] = []
    bans: list[tuple[int, Collection[int]]] = []
    row = 0
    for answer in wanted:
        for state, banned in _states(answer):
            if state is None or state.error or not state.is_active:
                ctypes.memset(address + row * row_bytes, 0xFF, row_bytes)
            else:
                held.append((state, row))
            if banned:
                bans.append((row, banned))
            row += 1
    _compute(held, address, row_bytes, row)
    for state, row in held:
        for token_id in state.openers:
            _allow(address + row * row_bytes, token_id)
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


def _compute(
    held: list[tuple[GrammarState, int]], address: int, row_bytes: int, num_rows: int
) -> None:
    by_root: dict[Root, list[tuple[Any, int]]] = {}
    for state, row in held:
        if (token_id := state.only_token()) is None:
            by_root.setdefault(state.root, []).append((state.matcher, row))
        else:
            ctypes.memset(address + row * row_bytes, 0, row_bytes)
            _allow(address + row * row_bytes, token_id)
    # Neighbours go to the same thread, so that none waits for the lock that another has.
    places = [place for places in by_root.values() for place in places]
    if len(by_root) > 1 and len(places) >= _PARALLEL_ROWS and mask_threads() > 1:
        _executor().unsafe_compute_mask_ptr(places, address, row_bytes, num_rows)
        return
    for matcher, row in places:
        matcher.unsafe_compute_mask_ptr(address + row * row_bytes, row_bytes)


@cache
def _executor() -> Any:
    from llguidance import LLExecutor

    return LLExecutor(num_threads=mask_threads())


def _allow(address: int, token_id: int) -> None:
    ctypes.c_uint32.from_address(address + token_id // 32 * 4).value |= 1 << token_id % 32


def _ban(address: int, row_bytes: int, banned: Collection[int]) -> None:
    """Take tokens out of a mask, unless it holds nothing else."""
    words = (ctypes.c_uint32 * (row_bytes // 4)).from_address(address)
    taken = [token_id for token_id in banned if words[token_id // 32] >> token_id % 32 & 1]
    for token_id in taken:
        words[token_id // 32] &= ~(1 << token_id % 32)
    if taken and bytes(words) == _nothing(row_bytes):
        for token_id in taken:
            words[token_id // 32] |= 1 << token_id % 32


@cache
def _nothing(row_bytes: int) -> bytes:
    return bytes(row_bytes)
