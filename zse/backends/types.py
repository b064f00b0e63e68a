"""What passes between the engine and a backend: plain values, no tensors.

One ``StepBatch`` is one forward pass. It mixes chunks of prompts with single decode tokens; each
token whose successor is asked for has a ``SamplingRow``, and the answer of a chunk is a list.
What is made once a token is a named tuple: it takes half the time of a frozen dataclass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

from zse.errors import EngineError
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.backends.handles import Handle
    from zse.kernels.lm_head_sample.row import SamplingRow
    from zse.kv.windows import WindowGroup, WindowTable

StepKind: TypeAlias = Literal["decode", "verify", "prefill", "alone"]
"""How tokens are computed. ``decode``: one token, with the same bits in every batch. ``verify``: a
known token and drafts of those that follow it, each of which asks for its successor. ``prefill``:
known tokens, computed together. ``alone``: known tokens, each computed as if it were decoded."""
MAX_DRAFTS = 64
"""Drafts that a step can check at most, over all its sequences."""
LOGITS_ROWS = 512
"""Tokens of a pass outside of steps at most, whose logits are asked for."""
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
    weights_alone: str = ""
    """Which weights rows read where all are computed alone, ``turned`` or ``stored`` ones: their
    bits follow from it. Empty where a device has one form."""

    def __str__(self) -> str:
        threads = f", threads: {self.threads}" if self.threads else ""
        return f"{self.name} ({self.hardware}, {self.instructions}{threads})"


class SequenceChunk(NamedTuple):
    """Consecutive tokens of one sequence: a piece of its prompt, a decode token, or drafts."""

    sequence_slot: int
    """Which sequence this is; unique in a batch, and below the most sequences that run at once."""
    token_ids: Sequence[int]
    """Token ids, or ``PENDING_TOKEN`` alone in a decode chunk."""
    start_position: int
    """Position of the first token; everything before it is already in the cache."""
    block_table: Sequence[int]
    """Blocks that hold positions 0, block_size, 2 * block_size ...; covers the chunk's end.

    The sequence's own list, which changes later: read it before ``submit`` returns.
    """
    kind: StepKind
    wants_logits: bool = False
    """Whether ``lm_head`` gives the logits of each of its tokens."""
    restored_from: int | None = None
    """Checkpoint that the sequence's state is copied from before: it is of the tokens before."""
    saved_to: int | None = None
    """Checkpoint that the state is copied to afterwards."""
    second_from: int | None = None
    """Of a whole text that is a pair: how many of its tokens are those of the first."""
    windows: Sequence[WindowTable] = ()
    """Blocks of each group of layers that see only a window, as far as they are seen. None: the
    block table holds for all layers."""
    adapter: Handle | None = None
    """What is added to matrices for its tokens: of ``Backend.bind_adapter``."""
    states_to: memoryview | None = None
    """Filled with float32 [tokens, hidden], in bytes: the normed state of each of its tokens."""
    joined: memoryview | None = None
    """Such states, of a model's tokens whose embeddings are joined with them."""
    is_alone: bool = False
    """Whether its bits may depend on nothing else in the step."""


class TokenMasks(Protocol):
    """Which tokens may come next, at the rows of a batch that are held to a form."""

    def write(self, address: int, row_bytes: int) -> None:
        """Write a mask for each masked row, one after the other, in the order of the batch.

        Bit ``i % 32`` of word ``i // 32`` says whether token ``i`` may come. Called once, when
        every token before the rows is known; the memory is the host's.
        """


@record
class StepBatch:
    """One forward pass: what is asked of a backend."""

    chunks: Sequence[SequenceChunk]
    sampling: Sequence[Sequence[SamplingRow]]
    """``sampling[i]`` has a row for each token of ``chunks[i]`` whose successor is asked for: none,
    the last one or, of a ``verify`` chunk, all. Before the last one others may stand whose
    successors are known (``known_token_id``)."""
    masks: TokenMasks | None = None
    """Set where rows are masked."""


class SampledToken(NamedTuple):
    """One chosen token.

    Log-probabilities are natural logarithms of the model's own distribution, before penalties,
    masks, temperature and truncation, so they can be compared between requests.
    """

    token_id: int
    logprob: float | None = None
    top: Sequence[tuple[int, float]] = ()
    """(token id, log-probability), likeliest first."""
    hidden: Sequence[float] | None = None
    """float32 [hidden]: the normed state that it was chosen from, where the row wants it."""


Answers: TypeAlias = "Sequence[Sequence[SampledToken]]"
"""For each chunk the tokens that follow it, in order; none where nothing was asked."""


@record
class FinishedStep:
    """A step that was computed when it was submitted."""

    answers: Answers

    def sample(self) -> None:
        """Nothing is left to do."""

    def wait(self) -> Answers:
        return self.answers


def kind_of(num_tokens: int) -> StepKind:
    """Return how known tokens are computed: one alone has the bits that it would have in decode."""
    return "decode" if num_tokens == 1 else "prefill"


def accepted(chunk: SequenceChunk, sampled: Sequence[SampledToken]) -> Sequence[SampledToken]:
    """Return a chunk's answer: of the sampled tokens those that no wrong draft stands before.

    How a token is chosen depends on its row and on the tokens before it alone, so these are the
    tokens that single steps would have given, greedy or not.
    """
    if chunk.kind != "verify":
        return sampled
    drafts = chunk.token_ids[1:]
    for count, (draft, token) in enumerate(zip(drafts, sampled, strict=False), start=1):
        if token.token_id != draft:
            return sampled[:count]
    return sampled


def check_batch(
    batch: StepBatch,
    *,
    block_size: int,
    num_blocks: int,
    vocab_size: int,
    looks_ahead: bool = False,
    windows: Sequence[WindowGroup] = (),
) -> None:
    """Refuse a batch that contradicts itself, or that names what is not there.

    Raises:
        EngineError: A chunk's kind, tokens and sampling rows do not fit together; or it is empty,
            holds an unknown token, or its blocks do not cover it.
    """
    if len(batch.chunks) != len(batch.sampling):
        raise EngineError(
            f"{len(batch.chunks)} chunks with {len(batch.sampling)} lists of sampling rows; "
            "expected as many"
        )
    for chunk, rows in zip(batch.chunks, batch.sampling, strict=True):
        count, kind = len(chunk.token_ids), chunk.kind
        num_chosen = len(rows)
        if num_chosen > 1 and kind != "verify":
            num_chosen = sum([row.known_token_id is None for row in rows])
        most_chosen = count if kind == "verify" else 1
        if num_chosen > most_chosen or len(rows) > count or (kind == "decode" and count > 1):
            raise EngineError(f"a {kind} chunk has {count} tokens and {len(rows)} sampling rows")
        start, blocks = chunk.start_position, chunk.block_table
        needed = -(-(start + count) // block_size)
        if not count or start < 0 or len(blocks) < needed:
            raise EngineError(
                f"a chunk of {count} tokens at position {start} has {len(blocks)} blocks of "
                f"{block_size}; it needs {needed}, and at least one token"
            )
        if min(blocks) < 0 or max(blocks) >= num_blocks:
            raise EngineError(f"a block is outside 0 to {num_blocks - 1}: {list(blocks)}")
        if windows:
            _check_windows(chunk, needed, windows, block_size)
        lowest = PENDING_TOKEN if looks_ahead and kind == "decode" else 0
        least, most = min(chunk.token_ids), max(chunk.token_ids)
        if least < lowest or most >= vocab_size:
            outside = least if least < lowest else most
            raise EngineError(f"a token id is outside 0 to {vocab_size - 1}: {outside}")


def _check_windows(
    chunk: SequenceChunk, end: int, groups: Sequence[WindowGroup], block_size: int
) -> None:
    """Refuse a chunk, up to block ``end``, without a block that a window of it sees."""
    tables: Sequence[WindowTable | None] = chunk.windows or [None] * len(groups)
    for group, table in zip(groups, tables, strict=True):
        first = max(0, chunk.start_position + 1 - group.window) // block_size
        if table is not None and (table.first > first or table.end < end):
            raise EngineError(
                f"a chunk has blocks {table.first} to {table.end - 1} of a window of "
                f"{group.window} tokens; it needs {first} to {end - 1}"
            )
        blocks = chunk.block_table if table is None else table.blocks
        if min(blocks) < 0 or max(blocks) >= group.num_blocks:
            raise EngineError(
                f"a block of a window of {group.window} tokens is outside 0 to "
                f"{group.num_blocks - 1}: {list(blocks)}"
            )


def mask_bytes(vocab_size: int) -> int:
    """Return the bytes of one row's mask."""
    return 4 * -(-vocab_size // 32)


def logit_rows(data: memoryview, vocab_size: int) -> LogitRows:
    """Return rows over float32 [tokens, vocab_size], without a copy: ``data`` lives as they do."""
    numbers = data.cast("f")
    return [numbers[at : at + vocab_size] for at in range(0, len(numbers), vocab_size)]
