"""What every stage of several machines refuses, whatever computes it: rows and blocks of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.backends.types import StepBatch
    from zse.models.stage import StageSpec


def num_rows_of(batch: StepBatch, stage: StageSpec, incoming: memoryview[float] | None) -> int:
    """Return the rows of a step that a stage is to compute.

    Args:
        batch: The step.
        stage: What is to compute it.
        incoming: float32 [rows * width]; None for the first stage, to which tokens come.

    Raises:
        EngineError: The stream has other rows than the step.
    """
    num_rows = sum(len(chunk.token_ids) for chunk in batch.chunks)
    width = stage.model.hidden_size
    if (incoming is None) != stage.is_first or (
        incoming is not None and len(incoming) != num_rows * width
    ):
        there = "no stream" if incoming is None else f"a stream of {len(incoming)} numbers"
        raise EngineError(f"layer {stage.first_layer} got {there} for {num_rows} rows of {width}")
    return num_rows


def check_image(
    blocks: Sequence[int], image: memoryview, *, block_bytes: int, num_blocks: int
) -> None:
    """Refuse an image of blocks that does not fit them.

    Raises:
        EngineError: It has another length, or a block is not there.
    """
    expected = len(blocks) * block_bytes
    if len(image) != expected or (blocks and not 0 <= min(blocks) <= max(blocks) < num_blocks):
        raise EngineError(
            f"{len(blocks)} blocks came in {len(image)} bytes, expected {expected}, "
            f"of blocks 0 to {num_blocks - 1}"
        )
