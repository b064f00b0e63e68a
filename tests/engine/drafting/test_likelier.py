"""Of two drafters the one that knows better, for each sequence."""

from __future__ import annotations

from types import SimpleNamespace

from zse.engine.drafting.drafter import NO_OFFER, Offer
from zse.engine.drafting.likelier import LikelierDrafter


class Scripted:
    """A drafter that offers what it was told, by the names of sequences."""

    def __init__(self, token, chances):
        self._token = token
        self._chances = chances
        self.observed = []
        self.forgotten = []
        self.is_closed = False

    def offers(self, sequences):
        offered = [self._chances.get(sequence.name) for sequence in sequences]
        return [NO_OFFER if chance is None else Offer(chance, 4) for chance in offered]

    def propose(self, wanted):
        return [[self._token] * count for _, count in wanted]

    def observe(self, sequence, num_checked, num_accepted):
        self.observed.append((sequence.name, num_checked, num_accepted))

    def forget(self, sequence):
        self.forgotten.append(sequence.name)

    def close(self):
        self.is_closed = True


class Named(SimpleNamespace):
    __hash__ = object.__hash__


def test_a_slow_drafter_is_asked_where_a_free_one_knows_nothing_or_far_less():
    free, slow = (
        Scripted(1, {"quote": 0.9, "bad": 0.3}),
        Scripted(2, {"chat": 0.6, "quote": 0.95, "bad": 0.6}),
    )
    both = LikelierDrafter(free, slow)
    sequences = [Named(name=name) for name in ("chat", "quote", "bad", "neither")]
    assert [offer.chance for offer in both.offers(sequences)] == [0.6, 0.9, 0.6, 0.0]
    wanted = [(sequences[2], 2), (sequences[1], 3), (sequences[0], 1)]
    assert both.propose(wanted) == [[2, 2], [1, 1, 1], [2]]
    for sequence, count in wanted:
        both.observe(sequence, count, 1)
    assert free.observed == [("quote", 3, 1)]
    assert slow.observed == [("bad", 2, 1), ("chat", 1, 1)]


def test_both_forget_and_close():
    both = LikelierDrafter(free := Scripted(1, {}), slow := Scripted(2, {"a": 0.5}))
    sequence = Named(name="a")
    both.offers([sequence])
    both.forget(sequence)
    both.close()
    assert free.forgotten == slow.forgotten == ["a"]
    assert free.is_closed
    assert slow.is_closed
