"""The compiled forms of the sampling kernels.

Kernels that read whole rows come twice: where the vocabulary is a multiple of 16, every row starts
aligned and is read in wide pieces.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any

from zse.kernels.layout import MAX_ALTERNATIVES
from zse.kernels.lm_head_sample.arrays import SampledArrays, SamplingArrays, Workspace
from zse.kernels.variant import Argument, Kernel, Variant, number, pointer, variant
from zse.records import record

_FOLDER = "zse.kernels.lm_head_sample"
_ENTRIES = 1024
CAP_BLOCK = 1024
"""Logits that one program bounds."""

_ELEMENTS = {"logits": "fp32", "chosen": "i32", "masks": "i32"} | {
    array.name: array.metadata["element"]
    for arrays in (SamplingArrays, SampledArrays, Workspace)
    for array in fields(arrays)
}
"""Element types of pointers."""


@record
class Tiles:
    """How rows are cut up. Tests make the pieces small."""

    block: int = 4096
    """Logits that one program reduces."""
    slice: int = 256
    """Logits that it sorts into bins at a time."""
    max_blocks: int = 128
    capacity: int = 8192
    """Tokens in a row's list."""
    chunk: int = 2048
    """Tokens of the list that are looked at together."""
    block_warps: int = 4
    """Warps of a program that reduces a block."""
    row_warps: int = 8
    """Warps of a program that draws for a row."""

    @property
    def max_vocab(self) -> int:
        """Largest vocabulary."""
        return self.block * self.max_blocks


TILES = Tiles()


def _kernel(
    module: str,
    function: str,
    pointers: str,
    numbers: tuple[str, ...] = ("vocab", "num_blocks"),
    *,
    aligned: bool = False,
) -> Kernel:
    arguments: list[Argument] = [pointer(name, _ELEMENTS[name]) for name in pointers.split()]
    arguments += [number(name, aligned=aligned and name == "vocab") for name in numbers]
    return Kernel(
        name=f"lm_head_sample.{function}{'_aligned' if aligned else ''}",
        module=f"{_FOLDER}.triton.{module}",
        function=function,
        arguments=tuple(arguments),
    )


def _both(module: str, function: str, pointers: str) -> dict[bool, Kernel]:
    return {
        aligned: _kernel(module, function, pointers, aligned=aligned) for aligned in (False, True)
    }


_BLOCKS = "block_max block_arg block_mass"
_CUTS = "temperature top_k top_p min_p"
_BINS = "bin_count bin_mass edges"
_SECOND = "second_count second_mass second_edges state_values state_counts"
_LIST = "list_values list_tokens cut_values cut_counts"

ADJUST = _kernel(
    "sample",
    "adjust_logits",
    "logits entry_row entry_token entry_penalty entry_add",
    ("vocab", "num_entries"),
)
PENDING = _kernel(
    "pending",
    "count_pending",
    "slots last_tokens entry_token entry_penalty entry_add entry_seen run_first run_length "
    "repetition presence frequency",
    (),
)
CAP = Kernel(
    name="lm_head_sample.cap_logits",
    module=f"{_FOLDER}.triton.cap",
    function="cap_logits",
    arguments=(pointer("logits", "fp32"), number("vocab"), number("softcap", "fp32")),
)
MASK = _kernel("mask", "mask_logits", "logits masks mask_row", ("vocab",))
STATISTICS = _both(
    "sample", "block_statistics", f"logits temperature {_BLOCKS} block_min block_count"
)
PICK = _kernel(
    "sample",
    "pick_tokens",
    f"logits temperature uniform slots {_BLOCKS} tokens last_tokens",
)
FIRST_BINS = _both(
    "truncate", "first_bins", f"logits {_CUTS} block_max block_arg block_min {_BINS}"
)
SECOND_BINS = _both(
    "gather",
    "second_bins",
    f"logits {_CUTS} {_BLOCKS} block_min block_count {_BINS} {_SECOND}",
)
GATHER = _both(
    "gather",
    "gather_candidates",
    f"logits {_CUTS} {_BLOCKS} block_count {_BINS} {_SECOND} kept_mass {_LIST}",
)
DRAW = _kernel(
    "draw",
    "draw_tokens",
    f"logits {_CUTS} uniform slots block_max block_arg kept_mass {_LIST} tokens last_tokens",
)
ALTERNATIVES = _both(
    "logprobs",
    "block_alternatives",
    "logits model_max model_mass best_values best_tokens",
)
LOGPROBS = _kernel(
    "logprobs",
    "row_logprobs",
    "logits chosen model_max model_mass best_values best_tokens logprobs top_tokens top_logprobs",
)


@cache
def adjust_variant(*, restore: bool) -> Variant:
    """Return the form that applies adjustments, or that takes them back."""
    return variant(ADJUST, num_warps=4, ENTRIES=_ENTRIES, RESTORE=restore)


@cache
def pending_variant() -> Variant:
    """Return the form that counts a token which only the device knows."""
    return variant(PENDING, num_warps=4, CHUNK=_ENTRIES)


def cap_variant() -> Variant:
    """Return the form that bounds logits."""
    return variant(CAP, BLOCK=CAP_BLOCK)


@cache
def mask_variant(tiles: Tiles) -> Variant:
    """Return the form that leaves only the tokens that may come."""
    return variant(MASK, num_warps=tiles.block_warps, BLOCK=tiles.block)


@cache
def statistics_variant(tiles: Tiles, *, aligned: bool, random: bool, truncated: bool) -> Variant:
    """Return the form that computes what the choice will need."""
    return variant(
        STATISTICS[aligned],
        num_warps=tiles.block_warps,
        BLOCK=tiles.block,
        RANDOM=random,
        TRUNCATED=truncated,
    )


@cache
def pick_variant(tiles: Tiles, *, random: bool) -> Variant:
    """Return the form for greedy rows alone, or for draws from the whole distribution too."""
    return variant(
        PICK,
        num_warps=tiles.row_warps if random else 4,
        BLOCK=tiles.block,
        MAX_BLOCKS=tiles.max_blocks,
        RANDOM=random,
    )


@cache
def truncation_variants(
    tiles: Tiles, *, aligned: bool
) -> tuple[Variant, Variant, Variant, Variant]:
    """Return first_bins, second_bins, gather_candidates and draw_tokens."""
    warps, block, blocks = tiles.block_warps, tiles.block, tiles.max_blocks
    bins: dict[str, Any] = {"BLOCK": block, "SLICE": tiles.slice, "MAX_BLOCKS": blocks}
    rooms: dict[str, Any] = {"BLOCK": block, "MAX_BLOCKS": blocks, "CAPACITY": tiles.capacity}
    return (
        variant(FIRST_BINS[aligned], num_warps=warps, **bins),
        variant(SECOND_BINS[aligned], num_warps=warps, **bins, CAPACITY=tiles.capacity),
        variant(GATHER[aligned], num_warps=warps, **rooms),
        variant(DRAW, num_warps=tiles.row_warps, **rooms, CHUNK=tiles.chunk),
    )


@cache
def logprob_variants(tiles: Tiles, *, aligned: bool) -> tuple[Variant, Variant]:
    """Return block_alternatives and row_logprobs."""
    candidates = 1 << (tiles.max_blocks * MAX_ALTERNATIVES - 1).bit_length()
    return (
        variant(ALTERNATIVES[aligned], num_warps=tiles.block_warps, BLOCK=tiles.block),
        variant(
            LOGPROBS,
            num_warps=tiles.row_warps,
            MAX_BLOCKS=tiles.max_blocks,
            MAX_CANDIDATES=candidates,
        ),
    )


def variants_of(tiles: Tiles) -> tuple[Variant, ...]:
    """Return every form that ``sample`` may launch with these tiles."""
    found = [pending_variant(), *(adjust_variant(restore=restore) for restore in (False, True))]
    found.append(mask_variant(tiles))
    found += [pick_variant(tiles, random=random) for random in (False, True)]
    for aligned in (False, True):
        for random, truncated in ((False, False), (True, False), (True, True)):
            found.append(
                statistics_variant(tiles, aligned=aligned, random=random, truncated=truncated)
            )
        found += truncation_variants(tiles, aligned=aligned)
        found += logprob_variants(tiles, aligned=aligned)
    return tuple({form.key: form for form in found}.values())


VARIANTS = (*variants_of(TILES), cap_variant())
"""Everything that goes into a kernel pack."""
