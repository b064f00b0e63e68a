"""From the blocks of an engine that has nothing to do to the runs of a prefix pack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.kv.prefix import PUBLIC
from zse.kv.prefix_pack import MOST_TEXT_TOKENS
from zse.kv.prefix_pack_writer import RunToSave, pack_bytes, run_length

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zse.engine.core import EngineCore
    from zse.kv.prefix import CachedRun
    from zse.kv.prefix_pack import PrefixBinding


def hot_runs(core: EngineCore, binding: PrefixBinding, most_bytes: int) -> list[RunToSave]:
    """Return what was used last of the prefix cache, as much as goes into some bytes."""
    cached = core.cache.cached_runs()
    texts = _texts(cached)
    used = _last_used(cached)
    order = sorted(range(len(cached)), key=lambda index: (-used[index], index))
    places: dict[int, int] = {}
    runs: list[RunToSave] = []
    room_tokens = MOST_TEXT_TOKENS
    for index in order:
        parent = cached[index].parent
        if parent is not None and parent not in places:
            continue
        place = -1 if parent is None else places[parent]
        run = _to_save(core, cached[index], texts[index], place)
        length = run_length(binding, run)
        text_tokens = len(texts[index]) * core.cache.block_size
        if length > most_bytes or text_tokens > room_tokens:
            continue
        most_bytes -= length
        room_tokens -= text_tokens
        places[index] = len(runs)
        runs.append(run)
    return runs


def run_of_prompt(core: EngineCore, token_ids: Sequence[int], name: str) -> RunToSave | None:
    """Return the full blocks of a prompt that was computed, for all to share; None where none are.

    They are read from the prefix cache.
    """
    cached = core.cache.cached_runs()
    for run, blocks in zip(cached, _texts(cached), strict=True):
        tokens = _token_ids(cached, run)
        size = core.cache.block_size
        count = len(token_ids) // size
        if tokens[: count * size] == tuple(token_ids[: count * size]) and count:
            own = blocks[:count]
            windows = core.cache.windows_beside(own) or [[]] * len(core.cache.windows_needed(0))
            return RunToSave(
                token_ids=tokens[: count * size],
                blocks=own,
                windows=windows,
                is_public=True,
                name=name,
            )
    return None


def packed(
    core: EngineCore, binding: PrefixBinding, runs: Sequence[RunToSave]
) -> Iterator[bytes | bytearray]:
    """Yield the bytes of a pack of runs; nothing may be computed meanwhile."""
    return pack_bytes(binding, runs, core.runner.read_blocks)


def _to_save(core: EngineCore, run: CachedRun, blocks: list[int], parent: int) -> RunToSave:
    kept = core.cache.windows_beside(blocks)
    is_public = run.namespace == PUBLIC
    return RunToSave(
        token_ids=run.token_ids,
        blocks=run.blocks,
        windows=kept if kept is not None else [[] for _ in core.cache.windows_needed(0)],
        parent=parent,
        salt=run.namespace if isinstance(run.namespace, str) else "",
        is_public=is_public,
    )


def _last_used(cached: Sequence[CachedRun]) -> list[int]:
    """Return when each run, or what goes on from it, was used last: parents come before children.

    What a step adds to a text is newer than the text's beginning, which no step looked at again.
    """
    used = [run.last_used for run in cached]
    for index in reversed(range(len(cached))):
        if (parent := cached[index].parent) is not None:
            used[parent] = max(used[parent], used[index])
    return used


def _texts(cached: Sequence[CachedRun]) -> list[list[int]]:
    """Return all blocks of the text that each run ends, from its start."""
    texts: list[list[int]] = []
    for run in cached:
        before = texts[run.parent] if run.parent is not None else []
        texts.append([*before, *run.blocks])
    return texts


def _token_ids(cached: Sequence[CachedRun], run: CachedRun) -> tuple[int, ...]:
    before = _token_ids(cached, cached[run.parent]) if run.parent is not None else ()
    return (*before, *run.token_ids)
