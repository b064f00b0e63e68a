"""Ranks: processes that compute one model together, each its share on a device of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from zse.errors import UsageError
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zse.backends.kv_groups import KVGroups
    from zse.backends.types import StepBatch
    from zse.models.spec import ModelSpec
    from zse.stream.shards import Cut


@record
class Share:
    """Which of so many equal parts of a model.

    Raises:
        UsageError: There is no such part.
    """

    rank: int
    """From 0."""
    ranks: int

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.ranks:
            raise UsageError(f"rank {self.rank} of {self.ranks} was asked for; ranks count from 0")


class Gift(NamedTuple):
    """What one rank gave in an exchange."""

    payload: bytes
    descriptors: tuple[int, ...] = ()
    """Open files; whoever gets them closes them. One's own come back as they were given."""


@record
class Gate:
    """The way of the stream from a stage to the next one: two bells, which count pieces of it."""

    number: int
    """Of all ways, from 0."""
    sent: int
    """Address of the bell of pieces that have come."""
    taken: int
    """Address of the bell of pieces whose place is free again."""


@record
class StageEdges:
    """What a stage of a pipeline has of the stages beside it."""

    number: int
    """Of this stage, from 0, to which tokens come."""
    num_stages: int
    num_gates: int
    """Of all stages together: each rank of a stage has one to its like in the next."""
    arrives: Gate | None
    """None: tokens come."""
    leaves: Gate | None
    """None: tokens are chosen here."""
    link: RankLink
    """Of all ranks of all stages."""
    receiver: int
    """Rank, in that link, of who has what leaves; this one where nothing does."""


@record
class HostEdges:
    """The edges of a stage whose stream comes from the host and goes back there."""

    num_stages: int = 1
    """On this machine."""


@record
class RankPart:
    """What makes a backend one of several ranks."""

    link: RankLink
    spec: ModelSpec
    """Of this rank's share."""
    cuts: Mapping[str, Cut]
    """What this rank has of the file's tensors."""
    crew: Crew | None = None
    """Of rank 0: the others, who are told what all do."""
    edges: StageEdges | HostEdges | None = None
    """Where the ranks compute some layers each: the stages beside this one."""

    @property
    def num_processes(self) -> int:
        """Ranks of all stages, which share the machine."""
        return self.link.share.ranks * (1 if self.edges is None else self.edges.num_stages)

    @property
    def is_divided(self) -> bool:
        """Whether several ranks compute each layer together."""
        return self.link.share.ranks > 1


class Crew(Protocol):
    """The other ranks, as rank 0's runner tells them what it does itself."""

    def submit(self, batch: StepBatch) -> StepBatch:
        """Tell them of a step; return it as rank 0 computes it."""

    def logits(self, token_ids: Sequence[int], chunk_tokens: int) -> None:
        """Have them compute the logits of a sequence."""

    def rest(self, free_blocks: Sequence[Sequence[int]]) -> None:
        """Have them give back memory."""


class RankLink(Protocol):
    """What a rank's backend has of the others."""

    @property
    def share(self) -> Share:
        """Which rank this is."""

    @property
    def broken_address(self) -> int:
        """Of an int32, on a page of its own in memory that all ranks share: not 0 when one failed.

        Whoever waits for another rank looks at it.
        """

    def exchange(self, payload: bytes, descriptors: Sequence[int] = ()) -> list[Gift]:
        """Return what each rank gives, in their order; all call it, in the same order of calls.

        Raises:
            DeviceError: A rank has failed, or gave nothing for too long.
        """

    def least(self, numbers: Sequence[int]) -> list[int]:
        """Return the smallest of each number over all ranks; called as ``exchange`` is."""

    def memory(self, length_bytes: int) -> int:
        """Return the address of memory that all ranks share, zeros at first.

        All call it as often, each time with one length. It stays as long as the link.
        """

    def check(self) -> None:
        """Refuse to go on without the others.

        Raises:
            DeviceError: The ranks have failed; the message says which, and why.
        """


def agreed(link: RankLink, num_blocks: int, groups: KVGroups) -> tuple[int, KVGroups]:
    """Return as many blocks, and blocks of windows, as every rank has room for."""
    num_blocks, *most = link.least([num_blocks, *groups.most_blocks])
    if tuple(most) != groups.most_blocks:
        groups = replace(groups, most_blocks=tuple(most), is_limited=True)
    return num_blocks, groups
