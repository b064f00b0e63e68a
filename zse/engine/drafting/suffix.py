"""Guesses from what stands there already: the last tokens stood before, and something followed.

    text   ... if ( x ) { return x ; } ... if ( y ) { return
                          ^^^^^^^^ matched        ^^^^^^^^       the guess: x ; } ...

Code that is edited, texts that are quoted and calls of tools repeat long runs of their prompts. Who
is looked up costs the model nothing, so every token shows anew whether a guess would have stood,
also of those that were not checked.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

GRAM = 3
"""Tokens that must have stood before, at the least."""
MOST_TOKENS = 16_384
"""Tokens of a text that are looked up at most, the newest: some 2 MB."""
_LONGEST_MATCH = 32
"""Tokens that tell two places apart; what agrees in more is as good."""
_MOST_PLACES = 8
"""Places that are compared before the longest match of these is taken."""
_NOWHERE = -1


class Text:
    """Tokens with an index of their runs of ``GRAM``. It grows at its end, and at most so far.

    Args:
        tokens: The tokens: the caller's list, which may only grow.
        first: Where the index begins.
    """

    def __init__(self, tokens: list[int], first: int = 0) -> None:
        self.tokens = tokens
        self._first = first
        self._newest: dict[tuple[int, ...], int] = {}
        """Of each run, the place behind it where it stood last."""
        self._before = array("i")
        """Of each place, the one before it behind the same run."""

    @property
    def num_indexed(self) -> int:
        """Tokens up to the last place that is found."""
        return self._first + len(self._before)

    @property
    def is_full(self) -> bool:
        return len(self._before) >= 2 * MOST_TOKENS

    def index(self, end: int) -> None:
        """Let the runs before ``end`` be found."""
        tokens, newest, before = self.tokens, self._newest, self._before
        for place in range(self.num_indexed, end):
            if place < self._first + GRAM:
                before.append(_NOWHERE)
                continue
            run = tuple(tokens[place - GRAM : place])
            before.append(newest.get(run, _NOWHERE))
            newest[run] = place

    def find(self, tail: Many[int]) -> tuple[int, int]:
        """Return the place behind the longest of some matches with a tail, and its length.

        The newest of equally long ones is returned; no match has length 0.
        """
        place = self._newest.get(tuple(tail[-GRAM:]), _NOWHERE)
        found, longest = _NOWHERE, 0
        for _ in range(_MOST_PLACES):
            if place == _NOWHERE:
                break
            length = self._matched(tail, place)
            if length > longest:
                found, longest = place, length
            place = self._before[place - self._first]
        return found, longest

    def _matched(self, tail: Many[int], place: int) -> int:
        tokens = self.tokens
        most = min(_LONGEST_MATCH, len(tail), place - self._first)
        for length in range(GRAM, most):
            if tokens[place - 1 - length] != tail[-1 - length]:
                return length
        return most


class Match:
    """Where the end of one text stands in another, or earlier in itself."""

    __slots__ = ("length", "place", "text")

    def __init__(self, text: Text, place: int, length: int) -> None:
        self.text = text
        self.place = place
        """What stands here is the guess."""
        self.length = length

    @property
    def num_left(self) -> int:
        """Tokens that followed there."""
        return len(self.text.tokens) - self.place

    def follow(self, token_id: int) -> bool:
        """Go on by a token; return whether it was the guess."""
        if self.text.tokens[self.place] != token_id:
            return False
        self.place += 1
        self.length += 1
        return True

    def guess(self, most: int, *, is_own: bool) -> list[int]:
        """Return up to so many tokens that followed; a text that repeats itself goes on so."""
        tokens = self.text.tokens
        guess = tokens[self.place : self.place + most]
        if is_own and guess:
            period = self.num_left
            while len(guess) < most:
                guess.append(guess[len(guess) - period])
        return guess


def begin_text(tokens: list[int]) -> Text:
    """Return a text of a sequence, of which the newest tokens will be found."""
    return Text(tokens, max(0, len(tokens) - MOST_TOKENS))


def find_match(texts: Many[Text], tail: Many[int]) -> Match | None:
    """Return the longest match of a tail, in the first of the texts that has it."""
    best: Match | None = None
    for text in texts:
        place, length = text.find(tail)
        if length > (best.length if best is not None else 0):
            best = Match(text, place, length)
    return best


def tail_of(tokens: Many[int]) -> Many[int]:
    """Return as many of the last tokens as a match is told by."""
    return tokens[-_LONGEST_MATCH:]
