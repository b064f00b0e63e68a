"""How a guess of a sequence's next token is drawn: as the model will draw it, as far as that is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.kernels.lm_head_sample.row import SamplingRow

if TYPE_CHECKING:
    from zse.engine.sequence import Sequence


def likely_row(sequence: Sequence) -> SamplingRow:
    """Return the row of a sequence's tokens, without what looks at the tokens before.

    Who believes what the model believes draws the same token then, at any temperature.
    """
    params = sequence.request.params
    return SamplingRow(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        seed=sequence.seed,
    )
