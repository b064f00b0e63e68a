"""From rows of logits to tokens, on the device.

Launches: 2 for greedy rows and for draws from the whole distribution, 5 with truncation (top_k,
top_p, min_p in any mixture of rows), 2 more for log-probabilities, 2 or 3 for adjustments. Nothing
depends on values, so the launches of a kind, a number of rows and room for so many adjustments can
be captured in a graph; entries that are not needed name no token.

A seed repeats a draw on the same kind of backend. The CPU backend walks the kept tokens from the
likeliest, these kernels by identity: the same distribution, other tokens for the same seed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.kernels.lm_head_sample.variants import (
    TILES,
    Tiles,
    adjust_variant,
    logprob_variants,
    pending_variant,
    pick_variant,
    statistics_variant,
    truncation_variants,
)
from zse.kernels.lm_head_sample.workspace import num_blocks_of, workspace_at

if TYPE_CHECKING:
    from zse.kernels.launcher import Launcher, Value
    from zse.kernels.lm_head_sample.arrays import (
        SampledArrays,
        SamplingArrays,
        SamplingKind,
        Workspace,
    )
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
    num_adjustments: int = 0,
    tiles: Tiles = TILES,
) -> None:
    """Choose one token for each row.

    Args:
        launcher: Where to launch.
        logits_address: fp32 [rows, vocab], any vocab. Adjustments change it in place; with
            ``kind.logprobs`` they are taken back at the end.
        rows: Rows, of padding included.
        vocab: Columns.
        arrays: Parameters of each row.
        kind: Which kernels run.
        workspace_address: ``workspace_bytes(rows, vocab)`` bytes, 16-byte aligned. Nothing in it
            needs to be set, nothing stays.
        outputs: Where tokens and log-probabilities go.
        num_adjustments: Entries in ``arrays``; read only with ``kind.adjusted``.
        tiles: How rows are cut up.

    Raises:
        UnsupportedModelError: The vocabulary is larger than the kernels take.
    """
    call = _Call(launcher, logits_address, rows, vocab, arrays, workspace_address, outputs, tiles)
    adjusted = kind.adjusted and num_adjustments > 0
    if adjusted:
        call.count_pending()
        call.adjust(num_adjustments, restore=False)
    call.reduce_blocks(kind)
    if kind.random and kind.truncated:
        call.draw_truncated()
    else:
        call.pick(random=kind.random)
    if kind.logprobs:
        if adjusted:
            call.adjust(num_adjustments, restore=True)
        call.report_logprobs()


class _Call:
    """One call of ``sample``: what all its launches share."""

    def __init__(
        self,
        launcher: Launcher,
        logits_address: int,
        rows: int,
        vocab: int,
        arrays: SamplingArrays,
        workspace_address: int,
        outputs: SampledArrays,
        tiles: Tiles,
    ) -> None:
        self._launcher = launcher
        self._rows = rows
        self._vocab = vocab
        self._tiles = tiles
        self._num_blocks = num_blocks_of(vocab, tiles)
        self._aligned = vocab % 16 == 0
        workspace: Workspace = workspace_at(workspace_address, rows, vocab, tiles)
        self._addresses: dict[str, Value] = {
            **vars(arrays),
            **vars(workspace),
            **vars(outputs),
            "logits": logits_address,
            "chosen": outputs.tokens,
            "vocab": vocab,
            "num_blocks": self._num_blocks,
        }

    def count_pending(self) -> None:
        self._launch(pending_variant(), (self._rows, 1, 1))

    def adjust(self, num_entries: int, *, restore: bool) -> None:
        form = adjust_variant(restore=restore)
        programs = -(-num_entries // int(dict(form.constants)["ENTRIES"]))
        self._addresses["num_entries"] = num_entries
        self._launch(form, (programs, 1, 1))

    def reduce_blocks(self, kind: SamplingKind) -> None:
        form = statistics_variant(
            self._tiles,
            aligned=self._aligned,
            random=kind.random,
            truncated=kind.random and kind.truncated,
        )
        self._launch(form, (self._rows, self._num_blocks, 1))

    def pick(self, *, random: bool) -> None:
        self._launch(pick_variant(self._tiles, random=random), (self._rows, 1, 1))

    def draw_truncated(self) -> None:
        *block_forms, draw = truncation_variants(self._tiles, aligned=self._aligned)
        for form in block_forms:
            self._launch(form, (self._rows, self._num_blocks, 1))
        self._launch(draw, (self._rows, 1, 1))

    def report_logprobs(self) -> None:
        alternatives, logprobs = logprob_variants(self._tiles, aligned=self._aligned)
        self._launch(alternatives, (self._rows, self._num_blocks, 1))
        self._launch(logprobs, (self._rows, 1, 1))

    def _launch(self, form: Variant, grid: tuple[int, int, int]) -> None:
        values = [self._addresses[argument.name] for argument in form.arguments]
        self._launcher.launch(form, grid, *values)
