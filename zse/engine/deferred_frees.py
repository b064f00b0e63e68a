"""Deferred frees: blocks and slots of sequences that have left, still used by steps in flight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.records import record

if TYPE_CHECKING:
    from zse.kv.cache import KVCache
    from zse.kv.table import BlockTable


@record
class _Held:
    """Blocks and a slot to free once step ``last_step`` is done."""

    last_step: int
    table: BlockTable
    slot: int


class DeferredFrees:
    """Frees blocks and slots when the last step that uses them is done.

    Args:
        cache: Owns the blocks.
        num_slots: Most sequences that run at once.
    """

    def __init__(self, cache: KVCache, num_slots: int) -> None:
        self._cache = cache
        self.free_slots = list(range(num_slots - 1, -1, -1))
        self._held: list[_Held] = []
        self._num_submitted = 0
        """Steps that have been submitted; each has the number that this was then."""
        self._num_done = 0

    def submitted(self) -> int:
        """Note that a step is in flight; return its number."""
        self._num_submitted += 1
        return self._num_submitted

    def done(self) -> None:
        """Note that the oldest step in flight is done, and free what only it still used."""
        self._num_done += 1
        if self._held:
            held, self._held = self._held, []
            for item in held:
                self.give_back(item.table, item.last_step, item.slot)

    def give_back(self, table: BlockTable, last_step: int, slot: int = -1) -> None:
        """Free blocks and a slot, or hold them while a step that uses them is in flight."""
        if last_step > self._num_done:
            self._held.append(_Held(last_step=last_step, table=table, slot=slot))
            return
        self._cache.close_table(table)
        if slot >= 0:
            self.free_slots.append(slot)

    def tables(self) -> list[BlockTable]:
        """Return the tables that wait for steps in flight."""
        return [item.table for item in self._held]
