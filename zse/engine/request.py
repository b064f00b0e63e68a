"""What a caller asks of the engine and what comes back, as plain frozen values.

Parameters are checked when they are made, so that everything behind this file can trust them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import field
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec import Struct

from zse.errors import InvalidParameterError
from zse.kernels.layout import GREEDY_BELOW, MAX_ALTERNATIVES
from zse.kernels.lm_head_sample.row import Sampling
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zse.engine.adapters import Adapter
    from zse.engine.reading import PromptQuery, PromptReport
    from zse.engine.step_clock import StepLog
    from zse.kv.prefix import Namespace
    from zse.text.grammar.state import Grammar

FinishReason = Literal["stop", "length", "abort"]

SET_BY_MODEL = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""What a model's generation_config.json may set where a request does not."""
MAX_CHOICES = 128
MAX_TOP_LOGPROBS = MAX_ALTERNATIVES
MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 1024
"""Of one stop string: every token is checked against all of them, in the engine's one thread."""
MAX_STOP_TOKEN_IDS = 256
_MAX_INT32 = 2**31 - 1
_MAX_SHOWN = 200
"""Characters of a value that is refused."""
_ALONE = -2
"""Prefix namespaces of requests that are computed alone have numbers from here down; those of
adapters have 0 and up."""
_PENALTY_RANGE = (1e-6, 1e6)
"""Kernels compute in float32: a logit times or over what lies outside may not be a number."""


@record
class SamplingParams(Sampling):
    """How the tokens of one request are chosen and when it ends. A ``top_k`` of -1 keeps all too.

    Raises:
        InvalidParameterError: A value is out of its range; ``param`` names it.
    """

    max_tokens: int | None = 256
    """Most tokens to generate; None means as many as the context has room for."""
    seed: int | None = None
    """Fixes the random draws; None draws a fresh seed for each request."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer; they are not part of it. A single string or a list is accepted."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the answer, besides the model's own."""
    banned_token_ids: tuple[int, ...] = ()
    """Tokens that never come."""
    ignore_eos: bool = False
    """Generate past the model's own end tokens."""
    min_tokens: int = 0
    """Tokens before which neither end tokens nor stop texts end the answer."""
    shown_special_ids: tuple[int, ...] = ()
    """Control tokens whose text is part of the answer; that of all others is left out."""
    n: int = 1
    """Independent answers to the same prompt."""
    deterministic: bool = False
    """Compute every token alone, so that the answer does not depend on what shares its steps; where
    tokens are drawn that takes a seed."""
    max_new_tokens: int | None = field(default=None, repr=False, compare=False)
    """Another name for ``max_tokens``, and None once it has been read."""

    def __post_init__(self) -> None:
        if self.max_new_tokens is not None:
            object.__setattr__(self, "max_tokens", self.max_new_tokens)
            object.__setattr__(self, "max_new_tokens", None)
        if self.top_k == -1 or self.top_k > _MAX_INT32:  # more than any vocabulary has
            object.__setattr__(self, "top_k", 0)
        object.__setattr__(self, "stop", _tuple_of(self.stop, str))
        object.__setattr__(self, "stop_token_ids", _tuple_of(self.stop_token_ids, int))
        object.__setattr__(self, "banned_token_ids", _tuple_of(self.banned_token_ids, int))
        _check_ranges(self)
        _check_lengths(self)
        _check_bias(self.logit_bias)
        if self.deterministic:
            is_fixed = self.temperature < GREEDY_BELOW or self.seed is not None
            _require(is_fixed, "seed", None, "a number beside 'deterministic' and a temperature")


@record
class Request:
    """One prompt with its parameters, in token ids."""

    request_id: str
    prompt_token_ids: Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0
    """Higher goes first; waiting raises it, so a low one is late and never forgotten."""
    cache_salt: str = ""
    """Prefixes are shared only between requests with the same salt."""
    adapter: Adapter | None = None
    """What is added to the model for it. Prefixes are those of one adapter, too."""
    query: PromptQuery | None = None
    """What is to be told of the prompt itself."""
    second_from: int | None = None
    """Of a pair of texts, where the second begins; None where the prompt is no pair."""
    tenant: str = ""
    """Whose work it is: what waits is taken in fair shares between tenants."""
    weight: float = 1.0
    """Its tenant's share beside those of others, above 0."""
    grammar: Grammar | None = None
    """The form that its answers are held to."""
    on_start: Callable[[], None] | None = field(default=None, compare=False, repr=False)
    """Called when a choice is about to be computed for the first time."""
    steps: StepLog | None = field(default=None, compare=False, repr=False)
    """Where its steps are noted; None where nobody asks when they were."""

    @property
    def namespace(self) -> Namespace:
        """Whose prefixes it may reuse: no text that a client sends is another's.

        What was computed together has other bits than what was computed alone.
        """
        number = None if self.adapter is None else self.adapter.number
        if self.params.deterministic:
            return (_ALONE if number is None else _ALONE - 1 - number, self.cache_salt)
        return self.cache_salt if number is None else (number, self.cache_salt)


class CheckedDrafts(NamedTuple):
    """Guessed tokens of one choice that were checked so far."""

    accepted: int = 0
    """Those that the model chose too."""
    rejected: int = 0


NO_DRAFTS = CheckedDrafts()


class TokenEvent(Struct, frozen=True, gc=False):
    """One generated token of one choice, or the end of a choice.

    A struct, for one is made for every token: behind a sleep, with cold caches, it is made and read
    10 microseconds sooner than a named tuple.
    """

    request_id: str
    index: int
    """Which of the ``n`` choices."""
    token_id: int | None
    """None when the choice was aborted, or ended with its prompt."""
    logprob: float | None = None
    top: Sequence[tuple[int, float]] = ()
    """Likeliest alternatives as (token id, log-probability)."""
    finish_reason: FinishReason | None = None
    is_stop_token: bool = False
    """The token ended the answer and is no part of its text."""
    cached_tokens: int = 0
    """Prompt tokens whose KV was reused."""
    report: PromptReport | None = None
    """What was asked of the prompt: with the first event of the first choice."""
    drafts: CheckedDrafts = NO_DRAFTS


def _tuple_of(value: object, kind: type) -> tuple[object, ...]:
    if isinstance(value, kind):
        return (value,)
    return tuple(value) if isinstance(value, Iterable) else ()


def _require(holds: bool, param: str, value: object, wanted: str) -> None:
    if not holds:
        shown = repr(value)[:_MAX_SHOWN]
        raise InvalidParameterError(f"{param} is {shown}, expected {wanted}", param=param)


def _check_ranges(params: SamplingParams) -> None:
    # Every comparison is false for NaN, so NaN is refused with the rest.
    _require(0 <= params.temperature < math.inf, "temperature", params.temperature, "0 or more")
    _require(params.top_k >= 0, "top_k", params.top_k, "0 or more, or -1 for all")
    _require(0 < params.top_p <= 1, "top_p", params.top_p, "above 0 and at most 1")
    _require(0 <= params.min_p <= 1, "min_p", params.min_p, "from 0 to 1")
    penalty = params.repetition_penalty
    low, high = _PENALTY_RANGE
    _require(low <= penalty <= high, "repetition_penalty", penalty, f"from {low} to {high}")
    for name in ("presence_penalty", "frequency_penalty"):
        value = getattr(params, name)
        _require(-2 <= value <= 2, name, value, "from -2 to 2")


def _check_lengths(params: SamplingParams) -> None:
    limit = params.max_tokens
    _require(limit is None or limit >= 1, "max_tokens", limit, "1 or more")
    most = math.inf if limit is None else limit
    _require(0 <= params.min_tokens <= most, "min_tokens", params.min_tokens, "0 to max_tokens")
    wanted = f"1 to {MAX_CHOICES}"
    _require(1 <= params.n <= MAX_CHOICES, "n", params.n, wanted)
    top = params.logprobs
    _require(
        top is None or 0 <= top <= MAX_TOP_LOGPROBS, "logprobs", top, f"0 to {MAX_TOP_LOGPROBS}"
    )
    count = len(params.stop)
    _require(count <= MAX_STOP_STRINGS, "stop", count, f"at most {MAX_STOP_STRINGS} texts")
    _require(all(params.stop), "stop", params.stop, "texts that are not empty")
    length = max(map(len, params.stop), default=0)
    wanted = f"texts of at most {MAX_STOP_CHARACTERS} characters"
    _require(length <= MAX_STOP_CHARACTERS, "stop", f"a text of {length}", wanted)
    for name in ("stop_token_ids", "banned_token_ids"):
        count = len(getattr(params, name))
        wanted = f"at most {MAX_STOP_TOKEN_IDS} token ids"
        _require(count <= MAX_STOP_TOKEN_IDS, name, count, wanted)


def _check_bias(bias: Mapping[int, float]) -> None:
    for token_id, value in bias.items():
        _require(token_id >= 0, "logit_bias", token_id, "token ids of 0 or more")
        _require(-100 <= value <= 100, "logit_bias", value, "values from -100 to 100")
