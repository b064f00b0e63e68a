"""From a prefix pack into the blocks of an engine that has not begun to work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.kv.prefix import PUBLIC
from zse.records import record

if TYPE_CHECKING:
    from zse.engine.core import EngineCore
    from zse.kv.prefix import Namespace
    from zse.kv.prefix_pack import PrefixPack, SavedRun
    from zse.kv.table import BlockTable


@record
class Restored:
    """What came back of a pack."""

    num_prefixes: int
    num_tokens: int
    num_left_out: int
    """Runs that there was no room for, or that were there already."""


def restore(core: EngineCore, pack: PrefixPack, origin: str) -> Restored:
    """Put a pack's runs into the prefix cache, the first of the list being those last used.

    The pack's digests and binding were checked. Where the pool is too small for all, those that
    were used last come back.

    Args:
        origin: Where it comes from, for the count of what it spares.
    """
    fitting = _runs_that_fit(core, pack)
    restored = [index for index in fitting if _restore_run(core, pack, index, origin)]
    for index in reversed(restored):  # so that the one used last is the one used last again
        core.cache.touch(pack.text(index), namespace=namespace_of(pack.runs[index]))
    return Restored(
        num_prefixes=len(restored),
        num_tokens=sum(pack.runs[index].num_blocks for index in restored) * core.cache.block_size,
        num_left_out=len(pack.runs) - len(restored),
    )


def namespace_of(run: SavedRun) -> Namespace:
    return PUBLIC if run.is_public else run.salt


def _runs_that_fit(core: EngineCore, pack: PrefixPack) -> list[int]:
    """Return the runs that there is room for, each behind its parent.

    Texts are only counted here: kept side by side, those of many runs behind one long parent would
    take far more memory than the pack has bytes.
    """
    room, lengths = core.cache.num_free, dict[int, int]()
    for index, run in enumerate(pack.runs):
        before = lengths.get(run.parent) if run.parent >= 0 else 0
        if before is None or run.num_blocks > room:
            continue
        tokens = pack.token_ids(index)
        length = before + len(tokens)
        if length <= core.max_context and max(tokens) < core.runner.vocab_size:
            lengths[index] = length
            room -= run.num_blocks
    return list(lengths)


def _restore_run(core: EngineCore, pack: PrefixPack, index: int, origin: str) -> bool:
    token_ids = pack.text(index)
    run, cache, size = pack.runs[index], core.cache, core.cache.block_size
    needed = cache.windows_needed(len(token_ids))
    has_windows = all(kept >= need for kept, need in zip(run.windows, needed, strict=True))
    table = cache.open_saved(token_ids, namespace=namespace_of(run), has_windows=has_windows)
    if table is None:
        return False
    try:
        num_there = table.num_reused_tokens // size
        first = num_there - (len(token_ids) // size - run.num_blocks)
        if first < 0 or first >= run.num_blocks:
            return False  # what it goes on is gone, or it is there already
        _fill(core, pack, index, table, first)
        cache.commit(table, token_ids, num_computed=len(token_ids))
        cache.note_origin(table.blocks[num_there:], origin)
        return True
    finally:
        cache.close_table(table)


def _fill(core: EngineCore, pack: PrefixPack, index: int, table: BlockTable, first: int) -> None:
    """Write a run's blocks from its ``first`` on, and those of windows."""
    run, write = pack.runs[index], core.runner.write_blocks
    write(0, table.blocks[-(run.num_blocks - first) :], pack.image(index, 0), first=first)
    for group, own in enumerate(table.windows, start=1):
        if own.blocks:
            left_out = run.windows[group - 1] - len(own.blocks)
            write(group, own.blocks, pack.image(index, group), first=left_out)
