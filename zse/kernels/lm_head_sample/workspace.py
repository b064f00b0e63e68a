"""Where the sampling kernels keep what they tell each other: one block of memory, cut up."""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache
from typing import Any

from zse.errors import UnsupportedModelError
from zse.kernels.layout import MAX_ALTERNATIVES, NUM_BINS, STATE_SIZE
from zse.kernels.lm_head_sample.arrays import Workspace
from zse.kernels.lm_head_sample.variants import TILES, Tiles
from zse.units import align_up

_ALIGNMENT_BYTES = 256


def num_blocks_of(vocab: int, tiles: Tiles) -> int:
    """Return the blocks of a row.

    Raises:
        UnsupportedModelError: The vocabulary is larger than the kernels take.
    """
    if not 0 < vocab <= tiles.max_vocab:
        raise UnsupportedModelError(
            f"a vocabulary of {vocab} tokens; expected 1 to {tiles.max_vocab}"
        )
    return -(-vocab // tiles.block)


def workspace_bytes(rows: int, vocab: int, tiles: Tiles = TILES) -> int:
    """Return the bytes that ``sample`` needs for up to ``rows`` rows, whatever the kind."""
    return sum(align_up(size, _ALIGNMENT_BYTES) for size in _sizes(rows, vocab, tiles).values())


def workspace_at(address: int, rows: int, vocab: int, tiles: Tiles = TILES) -> Workspace:
    """Return the pieces of a workspace; ``address`` is 16-byte aligned."""
    addresses: dict[str, Any] = {}
    for name, size in _sizes(rows, vocab, tiles).items():
        addresses[name] = address
        address += align_up(size, _ALIGNMENT_BYTES)
    return Workspace(**addresses)


@lru_cache(maxsize=64)
def _sizes(rows: int, vocab: int, tiles: Tiles) -> dict[str, int]:
    blocks = rows * num_blocks_of(vocab, tiles)
    counts = {
        "blocks": blocks,
        "block_bins": blocks * NUM_BINS,
        "row_bins": rows * NUM_BINS,
        "states": rows * STATE_SIZE,
        "candidates": rows * tiles.capacity,
        "block_alternatives": blocks * MAX_ALTERNATIVES,
    }
    return {array.name: 4 * counts[array.metadata["count"]] for array in fields(Workspace)}
