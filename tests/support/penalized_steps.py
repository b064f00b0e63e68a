"""A sequence with penalties, decoded with the host a step behind the device or beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.types import PENDING_TOKEN, SequenceChunk, StepBatch, kind_of
from zse.kernels.lm_head_sample.row import SamplingRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.models.runner import ModelRunner


def decode_with_penalties(
    runner: ModelRunner,
    prompt: Sequence[int],
    blocks: Sequence[int],
    *,
    num_tokens: int,
    ahead: bool,
) -> list[int]:
    """Return greedy tokens.

    Args:
        runner: What computes them.
        prompt: Token ids.
        blocks: Of the sequence.
        num_tokens: How many to return.
        ahead: Submit each step before the token ahead of it is known.
    """
    output: list[int] = []
    row = SamplingRow(
        temperature=0.0,
        repetition_penalty=1.7,
        presence_penalty=0.3,
        frequency_penalty=0.4,
        prompt_token_ids=prompt,
        output_token_ids=output,
    )

    def submit(token_ids: Sequence[int], start: int, number: int):
        place = SequenceChunk(0, token_ids, start, blocks, kind_of(len(token_ids)))
        return runner.submit(StepBatch(chunks=[place], sampling=[[row.at_step(number, ())]]))

    steps = [submit(prompt, 0, 0)]
    for number in range(1, num_tokens):
        if not ahead:
            output.append(steps.pop().wait()[0][0].token_id)
        token = PENDING_TOKEN if ahead else output[-1]
        steps.append(submit([token], len(prompt) + number - 1, number))
        if ahead:
            output.append(steps.pop(0).wait()[0][0].token_id)
    return [*output, steps.pop().wait()[0][0].token_id]
