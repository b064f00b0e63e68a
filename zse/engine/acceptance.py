"""What an answer adds to its sequence: tokens up to an end, and what callers are told of them.

What a sequence computed past its end never comes here. Where the form of an answer leaves no choice
about what follows, that is added without asking the model.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from zse.backends.types import SampledToken
from zse.engine.request import TokenEvent
from zse.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence as TokenIds

    from zse.engine.chunks import ScheduledChunk
    from zse.engine.reading import PromptReport
    from zse.engine.scheduler import Scheduler
    from zse.engine.sequence import Sequence

logger = logging.getLogger(__name__)

_LONGEST_JUMP = 32
"""Tokens that forms hardly ever leave no choice about."""


class Acceptance:
    """Adds tokens to sequences that are alive. Whoever calls retires those that have ended.

    Args:
        scheduler: Told of tokens that fill a block; it says whether a jump has room.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.num_tokens = 0
        """Tokens that were added."""

    def accept(self, chunk: ScheduledChunk, answer: TokenIds[SampledToken]) -> list[TokenEvent]:
        """Add what followed a chunk to its sequence, up to its end.

        The sequence is alive: what is computed past an end is never accepted.
        """
        sequence, num_wanted, num_answered = chunk.sequence, chunk.num_wanted, len(answer)
        # Of drafts some may be wrong; the token that follows what was known stands in any case.
        least = 1 if chunk.kind == "verify" else num_wanted
        if not least <= num_answered <= num_wanted:
            raise EngineError(
                f"the runner sampled {num_answered} tokens where {num_wanted} were asked for"
            )
        sequence.answered(num_wanted, num_answered)
        query = sequence.request.query
        if query is not None and not query.generates:
            return [self._end_with_prompt(sequence, answer[0])]
        report = sequence.end_reading(answer[0]) if query is not None else None
        events = self._append(sequence, answer, report)
        if sequence.num_pending and sequence.finish_reason is None:
            self._scheduler.commit(sequence)  # the token may have filled a block in flight
        return events

    def jump(self, sequence: Sequence, least_each: int) -> list[TokenEvent]:
        """Add the tokens that the form of an answer leaves no choice about, where that saves time.

        They are computed together, as those of a prompt are, and what is in flight for the first of
        them is not waited for. Log-probabilities take a step each, so none are added then.

        Args:
            sequence: Its answer has a form.
            least_each: Tokens for each running sequence that are worth it.
        """
        assert sequence.grammar is not None
        if sequence.finish_reason is not None or sequence.request.params.logprobs is not None:
            return []
        least = max(1, least_each * len(self._scheduler.running))
        if least > _LONGEST_JUMP:
            return []  # not worth asking
        most = sequence.num_left + sequence.num_pending
        forced = sequence.grammar.forced_tokens()[:most]
        if len(forced) < least or not self._scheduler.takes(sequence, len(forced)):
            return []
        sequence.void_pending()
        return self._append(sequence, [SampledToken(token_id) for token_id in forced])

    def _append(
        self,
        sequence: Sequence,
        tokens: TokenIds[SampledToken],
        report: PromptReport | None = None,
    ) -> list[TokenEvent]:
        """Add tokens to a sequence, up to its end, and return what is told of them.

        The first of them carries the report of the prompt.
        """
        events: list[TokenEvent] = []
        for token in tokens:
            sequence.append(token.token_id)
            self.num_tokens += 1
            reason = sequence.finish_reason = sequence.reason_to_finish()
            is_end = token.token_id in sequence.end_token_ids
            events.append(
                TokenEvent(
                    request_id=sequence.request.request_id,
                    index=sequence.index,
                    token_id=token.token_id,
                    logprob=token.logprob,
                    top=token.top,
                    finish_reason=reason,
                    is_stop_token=reason == "stop" and is_end,
                    cached_tokens=sequence.cached_tokens or 0,
                    report=report,
                    drafts=sequence.checked_drafts,
                )
            )
            report = None
            if reason is not None:
                if reason == "abort" and sequence.grammar is not None:
                    request_id, why = sequence.request.request_id, sequence.grammar.error[:500]
                    logger.warning("request %s cannot keep its form: %s", request_id, why)
                break
        return events

    def _end_with_prompt(self, sequence: Sequence, sampled: SampledToken) -> TokenEvent:
        sequence.finish_reason = "length"
        report = sequence.end_reading(sampled)
        return TokenEvent(
            request_id=sequence.request.request_id,
            index=sequence.index,
            token_id=None,
            finish_reason="length",
            cached_tokens=sequence.cached_tokens or 0,
            report=report,
        )
