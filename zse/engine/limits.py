"""What a request may ask of an engine: lengths, and what its device computes.

All of it is read when it is asked for: a KV cache may become smaller meanwhile.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.engine.admission import check_request, resolve_max_tokens
from zse.errors import InvalidParameterError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.engine.reading import PromptQuery
    from zse.engine.request import Request, SamplingParams
    from zse.models.runner import ModelRunner
    from zse.options import BatchOptions


class Limits:
    """Those of one engine. Has no state of its own: any thread may ask.

    Args:
        runner: The model with its KV pool.
        options: How long a sequence may be.
        computes_all_alone: Whether every request is computed as if it were alone.
    """

    def __init__(
        self, runner: ModelRunner, options: BatchOptions, *, computes_all_alone: bool
    ) -> None:
        self._runner = runner
        self._options = options
        self._computes_all_alone = computes_all_alone

    @property
    def max_context(self) -> int:
        """Longest sequence in tokens that the model and the options allow."""
        allowed = self._options.max_context
        return min(allowed, self._runner.max_position) if allowed else self._runner.max_position

    @property
    def capacity_tokens(self) -> int:
        """Longest sequence in tokens that can finish: the context, or the KV pool if smaller."""
        # The last token is never fed back, so it needs no room in the pool.
        return min(self.max_context, self._num_cells + 1)

    @property
    def _num_cells(self) -> int:
        """Tokens that the pool holds."""
        return self._runner.num_blocks * self._runner.block_size

    def check(
        self, prompt_token_ids: Sequence[int], params: SamplingParams, query: PromptQuery | None
    ) -> int:
        """Return how many tokens may be generated; see ``EngineCore.check``."""
        if query is not None and query.pooling == "first":
            raise InvalidParameterError(
                "the first token of a text sees no other in this model; expected last or mean",
                param="pooling",
            )
        check_request(prompt_token_ids, params, vocab_size=self._runner.vocab_size)
        self._check_alone(params)
        generates = query is None or query.generates
        # Where nothing follows a prompt, it may fill the pool.
        read = min(self.max_context, self._num_cells)
        return resolve_max_tokens(
            len(prompt_token_ids),
            params.max_tokens if generates else 0,
            max_context=self.max_context,
            capacity_tokens=self.capacity_tokens if generates else read,
        )

    def as_computed(self, request: Request) -> Request:
        """Return a request without what holds for all of them."""
        if not (request.params.deterministic and self._computes_all_alone):
            return request
        return replace(request, params=replace(request.params, deterministic=False))

    def _check_alone(self, params: SamplingParams) -> None:
        """Refuse to compute one request alone where this device cannot."""
        if not params.deterministic or self._computes_all_alone:
            return
        if not getattr(self._runner, "can_compute_alone", False):
            raise InvalidParameterError(
                "'deterministic' was asked for, and this server computes no single requests alone: "
                "start it with --deterministic",
                param="deterministic",
            )
