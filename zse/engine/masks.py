"""The masks of one step: what may follow the answers that are held to a form.

They are written as late as they may be. A step that was planned ahead is on its way through the
layers by then; only what it chooses from has waited for the token before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.text.grammar.masks import MaskRows, write_masks

if TYPE_CHECKING:
    from collections.abc import Sequence as TokenIds

    from zse.engine.sequence import Sequence


class StepMasks:
    """See ``zse.backends.types.TokenMasks``.

    Args:
        asked: Each sequence that is held to a form, with the drafts that the step checks of it.
    """

    def __init__(self, asked: list[tuple[Sequence, TokenIds[int]]]) -> None:
        self._asked = asked

    def write(self, address: int, row_bytes: int) -> None:
        wanted = [_rows_of(sequence, drafts) for sequence, drafts in self._asked]
        write_masks(wanted, address, row_bytes)


def _rows_of(sequence: Sequence, drafts: TokenIds[int]) -> MaskRows | int:
    """Return what is asked for a sequence; a number of rows where no answer is waited for."""
    if sequence.grammar is None or sequence.finish_reason is not None or sequence.num_void:
        return 1 + len(drafts)
    bans = [sequence.banned_in_form(len(drafts[:count])) for count in range(1 + len(drafts))]
    return MaskRows(sequence.grammar, bans, drafts)
