"""Token events become text: detokenized, stop strings cut, one delta at a time per choice."""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 - help() reads what Delta's fields are
from dataclasses import field
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from zse.engine.reading import PromptReport  # noqa: TC001 - as above
from zse.engine.request import NO_DRAFTS, CheckedDrafts, FinishReason
from zse.records import record
from zse.text.detokenize import IncrementalDetokenizer
from zse.text.stop import StopChecker

if TYPE_CHECKING:
    from zse.engine.request import Request, SamplingParams, TokenEvent
    from zse.text.tokenizer import Tokenizer


class TopLogprob(NamedTuple):
    """An alternative token and its natural log-probability."""

    token: str
    token_id: int
    logprob: float
    bytes: list[int]


@record
class TokenLogprob:
    """A chosen token, its natural log-probability and the likeliest alternatives."""

    token: str
    token_id: int
    logprob: float
    bytes: list[int]
    """UTF-8 bytes of the token; a part of a character may stand alone here."""
    top: list[TopLogprob] = field(default_factory=list)


class Delta(Struct, frozen=True, gc=False):
    """What one choice gained since its last delta."""

    index: int
    text: str
    """Whole characters only; never part of a stop string. Empty only with a finish reason or with
    what was asked of the prompt."""
    token_ids: Sequence[int] = ()
    """All tokens since the last delta, the one that ended the answer included."""
    logprobs: Sequence[TokenLogprob] = ()
    """One for each token that belongs to the text; empty unless asked for. Beside those of the
    prompt the token that ended the choice has one, too: who scores texts counts on one for every
    token that was generated."""
    finish_reason: FinishReason | None = None
    """Set on the last delta of the choice, and only there."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    stop: str | None = None
    """The stop string that ended the choice; None when something else did."""
    report: PromptReport | None = None
    """What was asked of the prompt, on the first delta of the first choice."""
    drafts: CheckedDrafts = NO_DRAFTS
    """Guessed tokens of the choice that were checked so far."""


class ChoiceText:
    """The text of one choice while it grows."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        params: SamplingParams,
        prompt: list[int],
        index: int,
        *,
        tells_end: bool,
    ) -> None:
        self._tells_end = tells_end
        self._tokenizer = tokenizer
        self._detokenizer = IncrementalDetokenizer(tokenizer, prompt, params.shown_special_ids)
        self._stop = StopChecker(params.stop) if params.stop else None
        self._may_be_plain = self._stop is None and params.logprobs is None
        self._min_tokens = params.min_tokens
        self._num_prompt_tokens = len(prompt)
        self._index = index
        self._num_tokens = 0
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._report: PromptReport | None = None
        self.is_finished = False

    @property
    def is_plain(self) -> bool:
        """Whether a token that does not end the choice adds its own text alone.

        Whoever shows such a token need not push it, for nothing is noted of it here.
        """
        is_free = self._may_be_plain and not self._token_ids and not self.is_finished
        return is_free and self._detokenizer.is_at_rest

    def push(self, event: TokenEvent) -> Delta | None:
        """Take an event; return a delta when there is text to show or the choice ends."""
        if self.is_finished:
            return None
        text, reason = "", event.finish_reason
        if event.report is not None:
            self._report = event.report
        if event.token_id is not None:
            self._num_tokens += 1
            self._token_ids.append(event.token_id)
            if not event.is_stop_token:
                text = self._detokenizer.push(event.token_id)
            if event.logprob is not None and (self._tells_end or not event.is_stop_token):
                self._note_logprob(event.token_id, event.logprob, event.top)
        if reason is not None:
            text += self._detokenizer.flush()
        if self._stop is not None and self._num_tokens > self._min_tokens:
            text, is_stopped = self._stop.push(text)
            if is_stopped:
                reason = "stop"
            elif reason is not None:
                text += self._stop.flush()
        if not text and reason is None and self._report is None:
            return None
        self.is_finished = reason is not None
        return self._delta(text, reason, event)

    def _delta(self, text: str, reason: FinishReason | None, event: TokenEvent) -> Delta:
        token_ids, self._token_ids = self._token_ids, []
        logprobs: Sequence[TokenLogprob] = ()
        if self._logprobs:
            logprobs, self._logprobs = self._logprobs, []
        report, self._report = self._report, None
        return Delta(
            self._index,
            text,
            token_ids,
            logprobs,
            reason,
            self._num_prompt_tokens,
            event.cached_tokens,
            self._stop.found if self._stop is not None else None,
            report,
            event.drafts,
        )

    def _note_logprob(
        self, token_id: int, logprob: float, top: Sequence[tuple[int, float]]
    ) -> None:
        self._logprobs.append(describe_logprob(self._tokenizer, token_id, logprob, top))


def describe_logprob(
    tokenizer: Tokenizer, token_id: int, logprob: float, top: Sequence[tuple[int, float]]
) -> TokenLogprob:
    """Return a token and its likeliest alternatives with their texts."""
    chosen = _alternative(tokenizer, token_id, logprob)
    alternatives = [_alternative(tokenizer, other, value) for other, value in top]
    return TokenLogprob(**chosen._asdict(), top=alternatives)


def _alternative(tokenizer: Tokenizer, token_id: int, logprob: float) -> TopLogprob:
    text, data = tokenizer.token_text(token_id), tokenizer.token_bytes(token_id)
    return TopLogprob(text, token_id, logprob, list(data))


class RequestText:
    """The texts of all choices of a request."""

    def __init__(self, tokenizer: Tokenizer, request: Request) -> None:
        prompt = list(request.prompt_token_ids)
        self._choices = [
            ChoiceText(
                tokenizer, request.params, prompt, index, tells_end=request.query is not None
            )
            for index in range(request.params.n)
        ]
        self.plain: set[int] = set()
        """Choices that are plain, as ``ChoiceText`` has it, and have been pushed to before."""

    @property
    def is_finished(self) -> bool:
        return all(choice.is_finished for choice in self._choices)

    def push(self, event: TokenEvent) -> Delta | None:
        """Hand an event to its choice.

        A delta that ends a choice whose event does not means that a stop string was found: the
        engine is to be told to abort that choice.
        """
        choice = self._choices[event.index]
        delta = choice.push(event)
        (self.plain.add if choice.is_plain else self.plain.discard)(event.index)
        return delta
