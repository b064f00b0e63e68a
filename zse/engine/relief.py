"""Memory that a device lacks for a step is taken from the KV cache: fewer blocks, nobody lost.

Others may take a device's memory while a model runs, and steps take theirs as they need it. Where
one finds none, what runs is preempted (its tokens stay, and are computed again), the cache becomes
smaller, and the step is planned anew. It never becomes smaller than its longest sequence needs.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zse.engine.scheduler import Scheduler
    from zse.errors import DeviceError
    from zse.kv.cache import KVCache
    from zse.models.runner import ModelRunner

_LOG = logging.getLogger("zse.engine")
GIVEN_UP_SHARE = 8
"""One such part of the blocks goes at a time."""


class MemoryRelief:
    """Of one engine.

    Args:
        scheduler: Whose sequences wait again.
        cache: What becomes smaller.
        runner: Has the memory.
    """

    def __init__(self, scheduler: Scheduler, cache: KVCache, runner: ModelRunner) -> None:
        self._scheduler = scheduler
        self._cache = cache
        self._runner = runner
        self._error: DeviceError | None = None
        self.num_times = 0
        """That the cache became smaller."""

    @property
    def is_due(self) -> bool:
        return self._error is not None

    def note(self, error: DeviceError) -> None:
        """Remember that a step found no memory, until nothing is in flight; or raise it again.

        Raises:
            DeviceError: The step's, where the cache cannot become smaller.
        """
        can_shrink: bool = getattr(self._runner, "can_shrink", False)
        if not (error.is_out_of_memory and can_shrink and self._wanted_blocks()):
            raise error
        self._error = error

    def apply(self) -> None:
        """Make the cache smaller; nothing is in flight.

        Raises:
            DeviceError: The device has not even memory for a smaller one.
        """
        error, self._error = self._error, None
        before, wanted = self._cache.num_blocks, self._wanted_blocks()
        assert error is not None
        if not wanted:
            raise error
        num_preempted = self._scheduler.preempt_all()
        self._runner.shrink(wanted, least_blocks=self._least_blocks())
        self._cache.resize(self._runner.num_blocks, self._runner.windows)
        self.num_times += 1
        _LOG.warning(
            "the device has no memory for a step (%s): the KV cache has %d blocks from now on, not "
            "%d, and %d answers are computed again from where they are",
            error,
            self._cache.num_blocks,
            before,
            num_preempted,
            extra={"kv_blocks": self._cache.num_blocks, "kv_blocks_before": before},
        )

    def _wanted_blocks(self) -> int:
        """Return the blocks of a smaller cache; 0 where it cannot be any smaller."""
        count = self._cache.num_blocks
        wanted = max(self._least_blocks(), count - max(1, count // GIVEN_UP_SHARE))
        return wanted if wanted < count else 0

    def _least_blocks(self) -> int:
        """Return the blocks that the longest of all sequences that are here needs alone."""
        scheduler = self._scheduler
        longest = [one.most_tokens for one in (*scheduler.running, *scheduler.waiting)]
        return max(1, self._cache.blocks_for(max(longest, default=1)))
