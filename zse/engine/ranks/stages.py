"""Ranks that compute some layers each: who stands where, and what one stage has of the others.

    rank 2 (layers 0..9) -> rank 1 (10..19) -> rank 0 (20..27, head, the engine)

Rank 0 has the last stage, so tokens are chosen where they are asked for: none is sent around, and
what chooses (masks, log probabilities, drafts) knows nothing of stages. Steps go to all ranks at
once, the stream from each stage to the next. A stage may be several ranks that divide each layer:
they are a group within the ranks, and each sends the stream to its like.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from zse.backends.ranks import Gate, RankPart, Share, StageEdges
from zse.models.share import part_of, share_of
from zse.models.stage_share import stage_share, whole_share
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.backends.ranks import Gift
    from zse.engine.ranks.links import RankLinkBase
    from zse.format.spec import ZSEHeader
    from zse.models.spec import ModelSpec


@record
class Places:
    """Where ranks stand: the devices that divide each layer, and the stages behind each other."""

    num_ranks: int
    """Of one stage."""
    ends: tuple[int, ...]
    """Layer behind each stage."""

    @property
    def num_stages(self) -> int:
        return len(self.ends)

    @property
    def num_gates(self) -> int:
        return (self.num_stages - 1) * self.num_ranks

    def stage_of(self, rank: int) -> int:
        return self.num_stages - 1 - rank // self.num_ranks

    def layers_of(self, stage: int) -> tuple[int, int]:
        return (self.ends[stage - 1] if stage else 0), self.ends[stage]


class StageLink:
    """The link of the ranks of one stage, over the link of all ranks.

    All ranks make the same calls in the same order, whatever their stage: what is agreed upon (the
    number of blocks) all stages have in common.

    Args:
        whole: Of all ranks.
        places: Where they stand.
    """

    def __init__(self, whole: RankLinkBase, places: Places) -> None:
        self.whole = whole
        self._places = places
        self.stage = places.stage_of(whole.share.rank)
        self.share = Share(rank=whole.share.rank % places.num_ranks, ranks=places.num_ranks)
        self._first = whole.share.rank - self.share.rank

    @property
    def broken_address(self) -> int:
        return self.whole.broken_address

    def exchange(self, payload: bytes, descriptors: Sequence[int] = ()) -> list[Gift]:
        gifts = self.whole.exchange(payload, descriptors)
        own = range(self._first, self._first + self.share.ranks)
        for rank, gift in enumerate(gifts):
            for fd in gift.descriptors if rank not in own else ():
                os.close(fd)
        return [gifts[rank] for rank in own]

    def least(self, numbers: Sequence[int]) -> list[int]:
        return self.whole.least(numbers)

    def memory(self, length_bytes: int) -> int:
        gifts = self.whole.exchange(msgspec.msgpack.encode(length_bytes))
        most = max(msgspec.msgpack.decode(gift.payload, type=int) for gift in gifts)
        return self.whole.memory(most * self._places.num_stages) + most * self.stage

    def check(self) -> None:
        self.whole.check()

    def edges(self) -> StageEdges:
        """Return what a backend has of the stages beside this one."""
        places, stage = self._places, self.stage
        is_last = stage == places.num_stages - 1
        rank = self.whole.share.rank
        return StageEdges(
            number=stage,
            num_stages=places.num_stages,
            num_gates=places.num_gates,
            arrives=self._gate(stage - 1) if stage else None,
            leaves=None if is_last else self._gate(stage),
            link=self.whole,
            receiver=rank if is_last else rank - places.num_ranks,
        )

    def _gate(self, stage: int) -> Gate:
        """Return the way from a stage to the next one."""
        number = stage * self._places.num_ranks + self.share.rank
        shared = self.whole.shared
        return Gate(number=number, sent=shared.gate(2 * number), taken=shared.gate(2 * number + 1))


def place_part(spec: ModelSpec, header: ZSEHeader, link: RankLinkBase, places: Places) -> RankPart:
    """Return what a rank computes, of one stage or of several.

    Raises:
        UsageError: The model cannot be divided so; the message says what of it.
    """
    if places.num_stages == 1:
        return part_of(spec, header, link)
    own = StageLink(link, places)
    if places.num_ranks == 1:
        share = whole_share(spec)
    else:
        share = share_of(spec, header.tensors, own.share)
    share = stage_share(share, *places.layers_of(own.stage))
    return RankPart(link=own, spec=share.spec, cuts=share.cuts, edges=own.edges())
