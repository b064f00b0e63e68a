"""What is told of a prompt itself: how likely its tokens are, and where it lies as a vector.

Each token of a prompt that is asked about goes through the head as a decoded one does, so such rows
are counted: a step has room for a few beside those of everybody's next token.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Literal, TypeAlias

from zse.errors import EngineError
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.backends.types import SampledToken
    from zse.engine.request import Request

Pooling: TypeAlias = Literal["last", "mean", "first"]
"""Which final hidden states make the vector of a prompt: its last token's, the mean of all or, in
encoders, its first token's."""


@record
class PromptQuery:
    """What is to be told of a prompt."""

    logprobs: int | None = None
    """Likeliest alternatives to report with each token; None reports no log-probabilities."""
    pooling: Pooling | None = None
    """None makes no vector."""
    generates: bool = True
    """Whether an answer follows; else the request ends with its prompt."""

    @property
    def asks_every_token(self) -> bool:
        return self.logprobs is not None or self.pooling == "mean"


@record
class PromptReport:
    """What was found, told with the first token of an answer or with its end."""

    tokens: Sequence[SampledToken] = ()
    """The prompt's tokens from the second on, each with its log-probability after those before."""
    vector: Sequence[float] | None = field(default=None, repr=False)
    """float32 [hidden]: the final hidden states, normed by the model and pooled, of any length; or
    the scores that a classifier makes of them."""


class PromptReading:
    """One prompt while it is read."""

    def __init__(self, query: PromptQuery, prompt_token_ids: Sequence[int]) -> None:
        self._query = query
        self._prompt = prompt_token_ids
        # The successor of the last token is not known: it is the answer's first.
        self._end = len(prompt_token_ids) - 1 if query.asks_every_token else 0
        self._tokens: list[SampledToken] = []
        self._total: list[float] = []
        self.num_asked = 0
        """Tokens of the prompt whose successors have been asked about, in submitted steps."""

    @classmethod
    def of(cls, request: Request) -> PromptReading | None:
        """Return the reading of a request's prompt; None where nothing is asked of it."""
        return cls(request.query, request.prompt_token_ids) if request.query else None

    @property
    def most_reused(self) -> int | None:
        """Tokens whose keys and values may be taken from the cache; None: any number."""
        return None if self.num_asked >= self._end else self.num_asked

    @property
    def wants_hidden(self) -> bool:
        return self._query.pooling is not None

    def num_rows(self, end: int) -> int:
        """Return how many tokens are asked about in a chunk that ends before ``end``.

        They are the last ones of the chunk that are followed by a token of the prompt.
        """
        return max(min(end, self._end) - self.num_asked, 0)

    def rows(self, count: int) -> list[SamplingRow]:
        """Return the rows of the next ``count`` tokens; their successors are known."""
        first = self.num_asked + 1
        return [
            SamplingRow(
                temperature=0.0,
                logprobs=self._query.logprobs,
                known_token_id=token_id,
                wants_hidden=self._query.pooling == "mean",
            )
            for token_id in self._prompt[first : first + count]
        ]

    def take(self, answers: Sequence[SampledToken], count: int) -> Sequence[SampledToken]:
        """Note what was answered of the next ``count`` tokens; return what follows them.

        Raises:
            EngineError: There are fewer answers.
        """
        if len(answers) < count:
            raise EngineError(f"the runner answered {len(answers)} of {count} known tokens")
        for answer in answers[:count]:
            if self._query.logprobs is not None:
                self._tokens.append(answer._replace(hidden=None))
            if answer.hidden is not None:
                self._add(answer.hidden)
        return answers[count:]

    def report(self, last: SampledToken) -> PromptReport:
        """Return what was found, when the token behind the prompt has come."""
        if last.hidden is not None:
            self._add(last.hidden)
        count = self._end + 1 if self._query.pooling == "mean" else 1
        vector = [value / count for value in self._total] if self.wants_hidden else None
        return PromptReport(tokens=self._tokens, vector=vector)

    def _add(self, hidden: Sequence[float]) -> None:
        if self._total:
            self._total = [a + b for a, b in zip(self._total, hidden, strict=True)]
        else:
            self._total = list(hidden)
