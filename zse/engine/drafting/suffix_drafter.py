"""Drafts from texts: a sequence's own, and what the same tenant was answered lately."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from zse.engine.drafting.drafter import MOST_DRAFTS_EACH, NO_OFFER, Offer
from zse.engine.drafting.suffix import (
    GRAM,
    MOST_TOKENS,
    Match,
    Text,
    begin_text,
    find_match,
    tail_of,
)
from zse.engine.drafting.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from zse.engine.sequence import Sequence

_INDEXED_AT_ONCE = 2048
"""Tokens of texts that are indexed between two steps at most: a millisecond."""
_KEPT_OF_ANSWER = 4096
"""Tokens of an answer that are kept for the tenant's next, the newest."""
_MOST_TENANTS = 32
_GRADE_ENDS = (5, 9, 17)
"""Lengths of a match from which on a guess has the next grade."""
_FIRST_RATES = (0.4, 0.6, 0.8, 0.9)


class SuffixDrafter:
    """See ``Drafter``.

    Of what was answered before, only a named tenant's is kept, and only for those of its requests
    that may share their prefixes too. Callers without a key share nothing.
    """

    def __init__(self) -> None:
        self._followed: dict[Sequence, _Followed] = {}
        self._recent: OrderedDict[tuple[str, str], _RecentAnswers] = OrderedDict()
        self._tally = Tally(_FIRST_RATES)

    def offers(self, sequences: Many[Sequence]) -> list[Offer]:
        room = _INDEXED_AT_ONCE
        offers: list[Offer] = []
        for sequence in sequences:
            followed = self._followed.get(sequence)
            if followed is None:
                followed = self._followed[sequence] = _Followed(sequence, self._tally.begin())
            room -= followed.catch_up(room)
            offers.append(followed.offer(self._texts_of(sequence), self._tally))
        return offers

    def propose(self, wanted: Many[tuple[Sequence, int]]) -> list[list[int]]:
        return [self._followed[sequence].guess(count) for sequence, count in wanted]

    def observe(self, sequence: Sequence, num_checked: int, num_accepted: int) -> None:
        """Nothing is to be noted: each token that comes is held against the guess of it."""

    def forget(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        if self._followed.pop(sequence, None) is None or not tenant:
            return
        key = (tenant, sequence.request.cache_salt)
        recent = self._recent.pop(key, None) or _RecentAnswers()
        recent.add(sequence.output_token_ids[-_KEPT_OF_ANSWER:])
        self._recent[key] = recent
        if len(self._recent) > _MOST_TENANTS:
            self._recent.popitem(last=False)

    def close(self) -> None:
        self._followed.clear()
        self._recent.clear()

    def _texts_of(self, sequence: Sequence) -> Many[Text]:
        recent = self._recent.get((sequence.request.tenant, sequence.request.cache_salt))
        return recent.texts if recent is not None else ()


class _Followed:
    """A sequence: its text, and where its end stood before."""

    def __init__(self, sequence: Sequence, tally: Tally) -> None:
        self._tokens = sequence.token_ids
        self._own = begin_text(sequence.token_ids)
        self._num_seen = len(sequence.token_ids)
        self._match: Match | None = None
        self._tally = tally

    def catch_up(self, most: int) -> int:
        """Index up to so many tokens that are not yet; return how many."""
        own, begin = self._own, self._own.num_indexed
        if not own.is_full:
            own.index(min(len(self._tokens), begin + max(0, most)))
        return own.num_indexed - begin

    def offer(self, others: Many[Text], tally: Tally) -> Offer:
        """Say what could be guessed; ``tally`` is that of all sequences."""
        self._follow(tally)
        if self._match is None:
            tail = tail_of(self._tokens)
            if len(tail) < GRAM:
                return NO_OFFER
            self._match = find_match((self._own, *others), tail)
            if self._match is None:
                return NO_OFFER
        match = self._match
        is_own = match.text is self._own
        most = MOST_DRAFTS_EACH if is_own else min(MOST_DRAFTS_EACH, match.num_left)
        return Offer(self._tally.rate(_grade_of(match.length)), most)

    def guess(self, count: int) -> list[int]:
        match = self._match
        return [] if match is None else match.guess(count, is_own=match.text is self._own)

    def _follow(self, tally: Tally) -> None:
        """Hold the tokens that have come since against the guesses of them."""
        tokens = self._tokens
        for place in range(self._num_seen, len(tokens)):
            match = self._match
            if match is None:
                break
            grade = _grade_of(match.length)
            is_right = match.follow(tokens[place])
            for each in (self._tally, tally):
                each.count(grade, 1, int(is_right))
            if not is_right or not match.num_left:
                self._match = None
        self._num_seen = len(tokens)


class _RecentAnswers:
    """What a tenant was answered lately: two texts of bounded length, the older one full."""

    def __init__(self) -> None:
        self.texts: tuple[Text, ...] = (Text([]),)

    def add(self, answer: list[int]) -> None:
        text = self.texts[0]
        if len(text.tokens) + len(answer) > MOST_TOKENS:
            text = Text([])
            self.texts = (text, self.texts[0])
        text.tokens.extend(answer)
        text.index(len(text.tokens))


def _grade_of(length: int) -> int:
    for grade, end in enumerate(_GRADE_ENDS):
        if length < end:
            return grade
    return len(_GRADE_ENDS)
