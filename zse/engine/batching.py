"""BatchingEngine: many callers of one asyncio program share the steps of one model.

    async with BatchingEngine("tiny", BatchConfig(max_batch_size=8)) as engine:
        texts = await asyncio.gather(*(engine.generate(prompt) for prompt in prompts))

It is ``AsyncEngine`` with texts instead of token ids. A request joins the running ones at the next
step, so nobody waits for a batch to fill.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self, Unpack

from zse.engine.admission import default_max_tokens
from zse.engine.async_engine import AsyncEngine
from zse.engine.loading import LoadedModel, load_model
from zse.engine.request import Request, SamplingParams
from zse.engine.request import Request as BatchRequest
from zse.errors import UsageError
from zse.options import LoadFields, load_options
from zse.records import record
from zse.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from zse.options import LoadOptions

__all__ = ["BatchConfig", "BatchRequest", "BatchingEngine"]


@record
class BatchConfig:
    """How much is computed together."""

    max_batch_size: int = 32
    """Answers that run at once; the others wait."""
    max_tokens_per_batch: int = 4096
    """Most tokens in a step, prompts and answers together."""
    batch_wait_timeout_ms: int = 50
    """Without effect: nobody waits for a batch to fill."""
    enable_cuda_graphs: bool = False
    """Without effect: on a GPU, steps that decode are captured graphs anyway."""

    def to_options(self, **options: Unpack[LoadFields]) -> LoadOptions:
        """Return the options of a load that computes so much together.

        Raises:
            UsageError: A value is out of range.
        """
        options.setdefault("max_sequences", self.max_batch_size)
        options.setdefault("max_batch_tokens", self.max_tokens_per_batch)
        return load_options(**options)


class BatchingEngine:
    """One model for many concurrent callers.

    Args:
        model: Whatever ``LLM`` takes.
        config: How much is computed together.
        options: Where and how it runs: the fields of ``zse.options.LoadFields``.
    """

    def __init__(
        self,
        model: str | Path,
        config: BatchConfig | None = None,
        **options: Unpack[LoadFields],
    ) -> None:
        self._model = model
        self._options = (config or BatchConfig()).to_options(**options)
        self._loaded: LoadedModel | None = None
        self._engine: AsyncEngine | None = None
        self._changing = asyncio.Lock()
        """Held while the model is loaded or closed: tasks that start it together load it once."""

    async def start(self) -> None:
        """Load the model and begin to compute; twice does nothing.

        Raises:
            ZSEError: The model is missing, damaged or does not fit.
        """
        async with self._changing:
            if self._engine is None:
                self._loaded = await asyncio.to_thread(
                    load_model, self._model, self._options, load_settings()
                )
                self._engine = AsyncEngine(self._loaded.core, self._loaded.tokenizer)

    async def stop(self) -> None:
        """Fail what is in flight and give the memory back; ``start`` may be called again."""
        async with self._changing:
            engine, loaded = self._engine, self._loaded
            self._engine = self._loaded = None
            if engine is None or loaded is None:
                return
            try:
                await asyncio.to_thread(engine.close)
            finally:
                loaded.reader.close()

    async def generate(self, prompt: str, **sampling: Any) -> str:
        """Return the whole answer to a text; ``sampling`` is as for ``generate_stream``.

        Raises:
            ZSEError: As ``generate_stream``.
        """
        async with aclosing(self.generate_stream(prompt, **sampling)) as pieces:
            return "".join([piece async for piece in pieces])

    async def generate_stream(self, prompt: str, **sampling: Any) -> AsyncGenerator[str, None]:
        """Yield the answer to a text piece by piece; closing the generator cancels it.

        Args:
            prompt: Is answered as it stands, without a chat template.
            sampling: Fields of ``SamplingParams``; ``max_new_tokens`` is ``max_tokens``, too.

        Raises:
            UsageError: The engine was not started.
            ZSEError: The request is refused, or the engine crashes on the way.
        """
        if self._engine is None:
            raise UsageError("the engine was not started", hint="await engine.start() first.")
        token_ids = self._engine.tokenizer.encode(prompt)
        room = self._engine.capacity_tokens - len(token_ids)
        limit = sampling.pop("max_new_tokens", None) or default_max_tokens(room)
        params = SamplingParams(**{"max_tokens": limit, **sampling})
        request = Request(request_id="", prompt_token_ids=token_ids, params=params)
        async with aclosing(self._engine.generate(request)) as deltas:
            async for delta in deltas:
                if delta.text:
                    yield delta.text

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
