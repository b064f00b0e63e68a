"""What a step computes: chunks of sequences, and what prompts may still take of it. No tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from zse.backends.types import kind_of

if TYPE_CHECKING:
    from zse.backends.types import StepKind
    from zse.engine.sequence import Sequence
    from zse.kv.cache import KVCache


class ScheduledChunk(NamedTuple):
    """Tokens [start, start + num_tokens) of a sequence, to be computed in this step."""

    sequence: Sequence
    start: int
    num_tokens: int
    kind: StepKind
    num_wanted: int
    """Tokens asked for: one where the chunk reaches the sequence's last token, with drafts one for
    each of its tokens."""
    num_read: int = 0
    """Tokens before these that are asked about, though their successors are known."""
    saved_to: int | None = None
    """Checkpoint that the sequence's state is kept in afterwards."""

    @property
    def num_certain(self) -> int:
        """Tokens of its sequence that are computed for good afterwards: drafts may be wrong."""
        return self.start + (1 if self.kind == "verify" else self.num_tokens)


@dataclass(kw_only=True)
class Room:
    """What prompts may still take of a step."""

    cache: KVCache
    num_tokens: int
    num_read: int
    """Tokens that may be asked about though their successors are known."""

    def add(self, sequence: Sequence, chunks: list[ScheduledChunk], *, num_more: int = 0) -> None:
        """Add the next chunk of a prompt; none where it may ask about no token.

        It ends where the state is kept, if it comes so far.

        Args:
            num_more: Tokens beyond the others that may be taken where they are its last ones.
        """
        assert sequence.table is not None
        start, num_read = sequence.num_computed, 0
        num_tokens = sequence.num_remaining
        if num_tokens > self.num_tokens + num_more:
            num_tokens = self.num_tokens
        kept = self.cache.next_checkpoint(sequence.table, start, len(sequence.token_ids))
        if kept:
            num_tokens = min(num_tokens, kept - start)
        if (reading := sequence.reading) is not None:
            num_read = reading.num_rows(start + num_tokens)
            if num_read > self.num_read:
                num_read = self.num_read
                num_tokens = reading.num_asked + num_read - start
        if num_tokens <= 0:
            return
        num_wanted = int(num_tokens == sequence.num_remaining)
        kind, saved_to = kind_of(num_tokens), None
        if kept and start + num_tokens == kept and self.cache.checkpoints is not None:
            saved_to = self.cache.checkpoints.reserve()
        chunks.append(
            ScheduledChunk(sequence, start, num_tokens, kind, num_wanted, num_read, saved_to)
        )
        self.num_tokens = max(0, self.num_tokens - num_tokens)
        self.num_read -= num_read
