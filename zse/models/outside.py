"""Passes that do not go through the KV pool: all logits of a sequence, vectors of whole texts.

Each call has a cache of its own, which goes with its end, so the pool's blocks stay what they are.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from zse.backends.types import SequenceChunk, StepBatch, kind_of
from zse.models.decoder import logits_of, vectors_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zse.backends.abilities import Pooler
    from zse.backends.handles import Handle
    from zse.backends.operations import Backend, Cache, StageOperations
    from zse.backends.types import LogitRows
    from zse.models.spec import ModelSpec, Pooling

_TOGETHER_TOKENS = 4096
"""Tokens of texts that an encoder reads at once, unless one text alone has more."""


def logits_outside(
    backend: Backend,
    spec: ModelSpec,
    token_ids: Sequence[int],
    chunk_tokens: int,
    adapter: Handle | None,
) -> LogitRows:
    """Return float32 logits of one sequence, a row a token; see ``ModelRunner.logits``."""
    blocks = range(-(-len(token_ids) // backend.block_size))
    parts: list[Any] = []
    with _own_cache(backend, len(blocks)) as cache:
        for start in range(0, len(token_ids), chunk_tokens):
            piece = list(token_ids[start : start + chunk_tokens])
            chunk = SequenceChunk(
                0, piece, start, blocks, kind_of(len(piece)), wants_logits=True, adapter=adapter
            )
            step = backend.begin(StepBatch(chunks=[chunk], sampling=[()]), cache)
            found = logits_of(backend, spec, step)
            if spec.place.is_last:
                parts.append(found)
            else:
                cast("StageOperations", backend).pass_on(step, found)
    return backend.join_rows(parts)


def vectors_outside(
    backend: Backend, spec: ModelSpec, batch: StepBatch, pooling: Pooling
) -> Sequence[Sequence[float]]:
    """Return an encoder's vector of each text of a batch; the backend is a ``Pooler``."""
    num_blocks = sum(len(chunk.block_table) for chunk in batch.chunks)
    with _own_cache(backend, num_blocks) as cache:
        return vectors_of(cast("Pooler", backend), spec, backend.begin(batch, cache), pooling)


def batches_of_texts(
    texts: Sequence[Sequence[int]], second_from: Sequence[int | None], *, block_size: int
) -> Iterator[StepBatch]:
    """Yield the texts that are read together, each whole and in blocks of its own.

    Args:
        texts: Token ids of each.
        second_from: Of each text the place where the second of a pair begins, or None; empty where
            no text is a pair, or the model does not tell.
        block_size: Tokens a block.
    """
    for places in _together(texts):
        chunks, num_blocks = [], 0
        for place in places:
            text, second = texts[place], second_from[place] if second_from else None
            end = num_blocks + -(-len(text) // block_size)
            blocks, num_blocks = range(num_blocks, end), end
            chunk = SequenceChunk(0, list(text), 0, blocks, "prefill", second_from=second)
            chunks.append(chunk)
        yield StepBatch(chunks=chunks, sampling=[()] * len(chunks))


def _together(texts: Sequence[Sequence[int]]) -> Iterator[range]:
    """Yield the places of texts that are read together: each whole, of so many tokens."""
    first = num_tokens = 0
    for place, text in enumerate(texts):
        if place > first and num_tokens + len(text) > _TOGETHER_TOKENS:
            yield range(first, place)
            first, num_tokens = place, 0
        num_tokens += len(text)
    if texts:
        yield range(first, len(texts))


@contextmanager
def _own_cache(backend: Backend, num_blocks: int) -> Iterator[Cache]:
    cache = backend.new_cache(num_blocks)
    try:
        yield cache
    finally:
        backend.release_cache(cache)
