"""Where the sampling kernels keep what they tell each other: one block of memory, cut up."""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache

from zse.errors import UnsupportedModelError
from zse.kernels.layout import (
    MAX_ALTERNATIVES,
    NUM_BINS,
    STATE_SIZE,
)
from zse.kernels.lm_head_sample.variants import TILES, Tiles
from zse.records import record
from zse.units import align_up

_ALIGNMENT_BYTES = 256


@record
class Workspace:
    """Addresses; every element is four bytes."""

    block_max: int
    block_arg: int
    block_mass: int
    block_min: int
    block_count: int
    kept_mass: int
    bin_count: int
    bin_mass: int
    edges: int
    second_count: int
    second_mass: int
    second_edges: int
    state_values: int
    state_counts: int
    cut_values: int
    cut_counts: int
    list_values: int
    list_tokens: int
    best_values: int
    best_tokens: int


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
    addresses: dict[str, int] = {}
    for name, size in _sizes(rows, vocab, tiles).items():
        addresses[name] = address
        address += align_up(size, _ALIGNMENT_BYTES)
    return Workspace(**addresses)


@lru_cache(maxsize=64)
def _sizes(rows: int, vocab: int, tiles: Tiles) -> dict[str, int]:
    """Return the bytes of each piece."""
    blocks = rows * num_blocks_of(vocab, tiles)
    sizes = {field.name: blocks for field in fields(Workspace)}
    for name in ("bin_count", "bin_mass", "second_count", "second_mass"):
        sizes[name] = blocks * NUM_BINS
    for name in ("edges", "second_edges"):
        sizes[name] = rows * NUM_BINS
    for name in ("state_values", "state_counts", "cut_values", "cut_counts"):
        sizes[name] = rows * STATE_SIZE
    for name in ("list_values", "list_tokens"):
        sizes[name] = rows * tiles.capacity
    for name in ("best_values", "best_tokens"):
        sizes[name] = blocks * MAX_ALTERNATIVES
    return {name: 4 * size for name, size in sizes.items()}
