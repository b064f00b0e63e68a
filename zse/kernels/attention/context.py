"""How to launch the attention of many new tokens over a context that is copied to lines first.

Neither torch nor triton is needed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import UnsupportedModelError
from zse.kernels.attention.variants import (
    CONTEXT_HEAD_DIMS,
    LINES_ALIGNMENT,
    PREFILL_QUERIES,
    context_form,
    context_tokens,
    gather_context_variant,
)
from zse.kernels.layout import BLOCK_TOKENS, CACHES_OF_WIDTHS, CONTEXT_ENTRY
from zse.records import record
from zse.units import align_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.kernels.attention.launch import PrefillTiles
    from zse.kernels.launcher import Launcher
    from zse.kernels.layout import HeadShape, PagedCache
    from zse.kernels.variant import Variant

_ALIGNMENT = 256
ELEMENT_BYTES = 2


@record
class Context:
    """Keys and values of some sequences as lines, one sequence after the other, head by head."""

    keys: int
    """Address of bfloat16 [kv_heads, lines, head_dim]."""
    num_blocks: int
    """Of all sequences."""
    blocks: int
    """Address of int32 [num_blocks], as ``context_entries`` makes them."""
    tile_lines: int
    """Address of int32 [tiles], the line at which each tile's sequence begins."""
    queries: int = PREFILL_QUERIES
    """Queries of a tile: ``context_queries`` of all heads of a step."""

    @property
    def num_lines(self) -> int:
        return self.num_blocks * BLOCK_TOKENS

    def values(self, shape: HeadShape) -> int:
        """Return the address of the values of these heads."""
        return self.keys + _half_bytes(shape, self.num_blocks)


def context_entries(block_table: Sequence[int], num_tokens: int) -> list[int]:
    """Return the blocks of one sequence that are copied, each with how many tokens it has."""
    whole, rest = divmod(num_tokens, BLOCK_TOKENS)
    entries = [block * CONTEXT_ENTRY + BLOCK_TOKENS for block in block_table[:whole]]
    if rest:
        entries.append(block_table[whole] * CONTEXT_ENTRY + rest)
    return entries + [0] * (aligned_blocks(num_tokens) - len(entries))


def aligned_blocks(num_tokens: int) -> int:
    """Return the blocks that a sequence takes as lines."""
    return align_up(num_tokens, LINES_ALIGNMENT) // BLOCK_TOKENS


def context_bytes(shape: HeadShape, num_blocks: int) -> int:
    """Return the bytes of the keys and values of so many blocks as lines."""
    return 2 * _half_bytes(shape, num_blocks)


def _half_bytes(shape: HeadShape, num_blocks: int) -> int:
    lines = shape.kv_heads * num_blocks * BLOCK_TOKENS
    return align_up(lines * shape.head_dim * ELEMENT_BYTES, _ALIGNMENT)


def takes_context(shape: HeadShape, target: str) -> bool:
    """Whether there is a kernel for such heads; each of their tokens sees all before it."""
    return bool(context_tokens(shape.head_dim, target))


def gather_context(
    launcher: Launcher, shape: HeadShape, cache: PagedCache, context: Context
) -> None:
    """Copy keys and values of whole sequences to lines.

    Raises:
        UnsupportedModelError: No kernel takes these heads.
    """
    if shape.head_dim not in CACHES_OF_WIDTHS[cache.dtype] or (
        shape.head_dim not in CONTEXT_HEAD_DIMS
    ):
        raise UnsupportedModelError(
            f"heads of {shape.head_dim} columns in {cache.dtype} are not copied to lines; "
            f"expected one of {', '.join(map(str, CONTEXT_HEAD_DIMS))}"
        )
    launcher.launch(
        gather_context_variant(shape.head_dim, cache.dtype),
        (context.num_blocks, shape.kv_heads, 1),
        *cache.addresses,
        context.blocks,
        context.keys,
        context.values(shape),
        context.num_blocks,
        shape.kv_heads,
    )


def attention_over_context(
    launcher: Launcher,
    queries_address: int,
    shape: HeadShape,
    context: Context,
    tiles: PrefillTiles,
    output_address: int,
    *,
    scale: float = 0.0,
    tuned: Variant | None = None,
) -> None:
    """Attend with the rows of some chunks to their sequences, which ``gather_context`` has copied.

    Args:
        queries_address: bfloat16 [rows, num_heads, head_dim].
        tiles: Cut for ``context.queries`` tokens each.
        output_address: bfloat16 [rows, num_heads * head_dim].
        scale: Factor on scores; 0 for 1 / sqrt(head_dim).
        tuned: Another compiled form to use, when forms are compared.

    Raises:
        UnsupportedModelError: No kernel takes these heads.
    """
    target = launcher.device.target
    if not context_tokens(shape.head_dim, target):
        raise UnsupportedModelError(
            f"there is no attention over lines for heads of {shape.head_dim} columns on {target}"
        )
    launcher.launch(
        tuned or context_form(shape.head_dim, target, context.queries),
        (shape.num_heads, tiles.count, 1),
        queries_address,
        context.keys,
        context.values(shape),
        tiles.first_rows,
        tiles.num_rows,
        tiles.first_positions,
        context.tile_lines,
        output_address,
        context.num_lines,
        shape.num_heads,
        shape.kv_heads,
        scale or shape.head_dim**-0.5,
    )
