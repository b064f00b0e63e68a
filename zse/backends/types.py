"""What passes between the engine and a backend: plain values, no tensors.

One ``StepBatch`` is one forward pass. It mixes chunks of prompts with single decode tokens; a
chunk that finishes its sequence's known tokens carries a ``SamplingRow`` and gets one token back.
What is made once a token is a named tuple: it takes half the time of a frozen dataclass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.kernels.lm_head_sample.row import SamplingRow

WantsLogits = Literal["none", "last", "all"]
LogitRows: TypeAlias = "list[memoryview[float]]"
"""One float32 view [vocab_size] a token, in the host's memory."""

PENDING_TOKEN = -1
"""Stands for the token that its sequence's slot sampled in the step submitted just before.

Only the device knows it yet. It is the only token of its chunk, and it appears only where the
backend looks ahead.
"""


@record
class DeviceUsed:
    """What a backend runs on: what ``auto`` came to."""

    name: str
    """``cpu`` or ``cuda:N``."""
    hardware: str
    """Model of the processor or GPU."""
    instructions: str
    """What of it is used: ``AVX2``, ``sm_90``."""
    threads: int = 0
    """CPU threads that compute; 0 on a GPU."""

    def __str__(self) -> str:
        """Say it in words."""
        threads = f", threads: {self.threads}" if self.threads else ""
        return f"{self.name} ({self.hardware}, {self.instructions}{threads})"


@record
class CacheGeometry:
    """Size of the paged KV cache."""

    block_size: int
    """Tokens in a block."""
    num_blocks: int


class SequenceChunk(NamedTuple):
    """Consecutive tokens of one sequence: a piece of its prompt, or one decode token."""

    sequence_slot: int
    """Which sequence this is; unique in a batch, and below the most sequences that run at once."""
    token_ids: Sequence[int]
    """Token ids, or ``PENDING_TOKEN`` alone."""
    start_position: int
    """Position of the first token; everything before it is already in the cache."""
    block_table: Sequence[int]
    """Blocks that hold positions 0, block_size, 2 * block_size ...; covers the chunk's end.

    The sequence's own list, which changes later: read it before ``submit`` returns.
    """
    wants_logits: WantsLogits = "last"


@record
class StepBatch:
    """One forward pass. ``sampling[i]`` belongs to ``chunks[i]``; None samples nothing there."""

    chunks: Sequence[SequenceChunk]
    sampling: Sequence[SamplingRow | None]


class SampledToken(NamedTuple):
    """One chosen token.

    Log-probabilities are natural logarithms of the model's own distribution, before penalties,
    temperature and truncation, so they can be compared between requests.
    """

    token_id: int
    logprob: float | None = None
    top: Sequence[tuple[int, float]] = ()
    """(token id, log-probability), likeliest first."""


@record
class StepResult:
    """What was sampled; ``sampled[i]`` belongs to ``chunks[i]``, None where nothing was asked."""

    sampled: Sequence[SampledToken | None]


@record
class FinishedStep:
    """A step that was computed when it was submitted."""

    sampled: Sequence[SampledToken | None]

    def wait(self) -> Sequence[SampledToken | None]:
        """Return what was sampled."""
        return self.sampled


def logit_rows(data: memoryview, vocab_size: int) -> LogitRows:
    """Return rows over float32 [tokens, vocab_size], without a copy.

    Args:
        data: The bytes; they live as long as a row does.
        vocab_size: Numbers of a row.
    """
    numbers = data.cast("f")
    return [numbers[at : at + vocab_size] for at in range(0, len(numbers), vocab_size)]
