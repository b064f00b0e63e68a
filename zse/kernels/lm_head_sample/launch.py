"""From rows of logits to tokens, on the device.

Launches: 2 for greedy rows and for draws from the whole distribution, 5 with truncation (top_k,
top_p, min_p in any mixture of rows), 2 more for log-probabilities, 2 or 3 for adjustments, 1 for
masks. Nothing depends on values, so the launches of a kind, a number of rows and room for so many
adjustments can be captured in a graph; entries that are not needed name no token.

A seed repeats a draw on the same kind of backend. The CPU backend walks the kept tokens from the
likeliest, these kernels by identity: the same distribution, other tokens for the same seed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.kernels.lm_head_sample.variants import (
    CAP_BLOCK,
    TILES,
    Tiles,
    adjust_variant,
    cap_variant,
    logprob_variants,
    mask_variant,
    pending_variant,
    pick_variant,
    statistics_variant,
    truncation_variants,
)
from zse.kernels.lm_head_sample.workspace import num_blocks_of, workspace_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.device.gpu import Grid
    from zse.kernels.launcher import Launcher, Value
    from zse.kernels.lm_head_sample.arrays import SampledArrays, SamplingArrays, SamplingKind
    from zse.kernels.variant import Variant


def sample(
    launcher: Launcher,
    logits_address: int,
    *,
    rows: int,
    vocab: int,
    arrays: SamplingArrays,
    kind: SamplingKind,
    workspace_address: int,
    outputs: SampledArrays,
    masks_address: int = 0,
    num_adjustments: int = 0,
    tiles: Tiles = TILES,
) -> None:
    """Choose one token for each row.

    Args:
        logits_address: fp32 [rows, vocab], any vocab. Adjustments and masks change it in place;
            with ``kind.logprobs`` adjustments are taken back at the end.
        rows: Rows, of padding included.
        arrays: Parameters of each row.
        workspace_address: ``workspace_bytes(rows, vocab)`` bytes, 16-byte aligned. Nothing in it
            needs to be set, nothing stays.
        masks_address: i32 [masks, ceil(vocab / 32)], 16-byte aligned; read with ``kind.masked``.
        num_adjustments: Entries in ``arrays``; read only with ``kind.adjusted``.

    Raises:
        UnsupportedModelError: The vocabulary is larger than the kernels take.
    """
    num_blocks = num_blocks_of(vocab, tiles)
    addresses: dict[str, Value] = {
        **vars(arrays),
        **vars(workspace_at(workspace_address, rows, vocab, tiles)),
        **vars(outputs),
        "logits": logits_address,
        "chosen": outputs.tokens,
        "masks": masks_address,
        "vocab": vocab,
        "num_blocks": num_blocks,
        "num_entries": num_adjustments,
    }
    grids = (rows, 1, 1), (rows, num_blocks, 1)
    aligned = vocab % 16 == 0
    for form, grid in _launches(kind, *grids, num_adjustments, tiles, aligned=aligned):
        values = [addresses[argument.name] for argument in form.arguments]
        launcher.launch(form, grid, *values)


def cap_logits(
    launcher: Launcher, logits_address: int, *, rows: int, vocab: int, softcap: float
) -> None:
    """Bound float32 [rows, vocab] logits in place: ``softcap * tanh(logit / softcap)``."""
    launcher.launch(
        cap_variant(), (rows, -(-vocab // CAP_BLOCK), 1), logits_address, vocab, softcap
    )


def _launches(
    kind: SamplingKind,
    by_row: Grid,
    by_block: Grid,
    num_adjustments: int,
    tiles: Tiles,
    *,
    aligned: bool,
) -> Iterator[tuple[Variant, Grid]]:
    """Yield the kernels of a kind in their order, each with its programs."""
    adjusted = kind.adjusted and num_adjustments > 0
    truncated = kind.random and kind.truncated
    alternatives, logprobs = logprob_variants(tiles, aligned=aligned)
    if kind.logprobs:
        yield alternatives, by_block  # of the logits as the model gave them
    if adjusted:
        yield pending_variant(), by_row
        yield _adjustment(num_adjustments, restore=False)
    if kind.masked:
        yield mask_variant(tiles), by_block
    form = statistics_variant(tiles, aligned=aligned, random=kind.random, truncated=truncated)
    yield form, by_block
    if truncated:
        *block_forms, draw = truncation_variants(tiles, aligned=aligned)
        yield from ((form, by_block) for form in block_forms)
        yield draw, by_row
    else:
        yield pick_variant(tiles, random=kind.random), by_row
    if kind.logprobs:
        if adjusted:
            yield _adjustment(num_adjustments, restore=True)
        yield logprobs, by_row  # the chosen token is none of those that a mask left out


def _adjustment(num_entries: int, *, restore: bool) -> tuple[Variant, Grid]:
    form = adjust_variant(restore=restore)
    return form, (-(-num_entries // int(dict(form.constants)["ENTRIES"])), 1, 1)
