"""EngineCore: requests in, token events out, one step at a time. Single-threaded, no text.

    add_request --> waiting --> running --> step(): schedule -> execute -> events --> finished
                       ^           |
                       +-----------+  preempted: blocks gone, tokens kept

It owns no thread: ``AsyncEngine`` and ``LLM`` drive it, and so do the tests.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.backends.types import MAX_DRAFTS
from zse.engine.acceptance import Acceptance
from zse.engine.admission import check_request, resolve_max_tokens
from zse.engine.intake import Intake
from zse.engine.limits import Limits
from zse.engine.request import Request, TokenEvent
from zse.engine.ring import pipeline_of
from zse.engine.scheduler import MOST_BESIDE, Scheduler
from zse.engine.stats import EngineStats, SpeculationCounts
from zse.errors import DeviceError, UsageError
from zse.kv.cache import KVCache
from zse.kv.host_tier import HostTier

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as TokenIds

    from zse.backends.types import LogitRows, SampledToken
    from zse.engine.adapters import Adapter
    from zse.engine.chunks import ScheduledChunk
    from zse.engine.drafting.speculator import Speculator
    from zse.engine.drafting.token_states import TokenStates
    from zse.engine.reading import PromptQuery
    from zse.engine.relief import MemoryRelief
    from zse.engine.request import SamplingParams
    from zse.engine.sequence import Sequence
    from zse.engine.step_trace import StepTrace
    from zse.models.runner import ModelRunner
    from zse.options import BatchOptions, LoadOptions

_LEAST_JUMP_AHEAD = 3
"""Forced tokens for each running sequence that make a jump worth its step, on a device that looks
ahead. A step with a jump replays no captured graph there: it takes as long as about two steps that
do, and every sequence waits for it."""


class EngineCore:
    """Continuous batching over one runner.

    Args:
        runner: The model with its KV pool; closed with the core.
        options: How much is computed together, and whether prefixes are kept.
        eos_token_ids: Tokens that end an answer unless ``ignore_eos`` is set.
        aging_steps: Steps of waiting that weigh as much as one unit of priority.
        begin_speculation: Makes the speculator, behind the engine's first token; None: no drafts.
        collect_states: What makes the place of a sequence's states, where whoever guesses reads
            them.
    """

    def __init__(
        self,
        runner: ModelRunner,
        options: LoadOptions,
        *,
        eos_token_ids: tuple[int, ...] = (),
        aging_steps: int = 64,
        begin_speculation: Callable[[], Speculator] | None = None,
        collect_states: Callable[[], TokenStates] | None = None,
    ) -> None:
        self.runner = runner
        self.options = _within_runner(runner, options.batch)
        self.cache = KVCache(
            num_blocks=runner.num_blocks,
            block_size=runner.block_size,
            prefix_cache=options.cache.prefix_cache,
            num_checkpoints=runner.num_checkpoints,
            windows=runner.windows,
            tier=_tier_of(runner, options),
        )
        self._scheduler = Scheduler(
            self.cache,
            max_batch_tokens=self.options.max_batch_tokens,
            max_sequences=self.options.max_sequences,
            well_at_once=getattr(runner, "tokens_beside", MOST_BESIDE),
            filled_rows=getattr(runner, "filled_rows", None),
            most_drafts=getattr(runner, "most_drafts", MAX_DRAFTS),
        )
        self._limits = Limits(runner, self.options, computes_all_alone=options.device.deterministic)
        self._pipeline = pipeline_of(self._scheduler, runner)
        self._relief: MemoryRelief | None = None
        """Made when a step first finds no memory."""
        self._begin_speculation = begin_speculation
        self._speculator: Speculator | None = None
        self.least_jump = _LEAST_JUMP_AHEAD if runner.looks_ahead else 0
        """Forced tokens for each running sequence that make a jump worth its step."""
        # A configuration may name tokens that the model has no logits for: they never come.
        self.end_token_ids = tuple(
            token_id for token_id in eos_token_ids if 0 <= token_id < runner.vocab_size
        )
        self._intake = Intake(self.end_token_ids, aging_steps, collect_states)
        self.parting: Callable[[], None] | None = None
        """Called by ``close`` when no step is in flight any more and the KV blocks still hold."""
        self._requests: dict[str, list[Sequence]] = {}
        self._pending: list[TokenEvent] = []
        self._num_steps = 0
        self._num_prompt_tokens = 0
        self._num_computed_tokens = 0
        self._acceptance = Acceptance(self._scheduler)

    @property
    def max_context(self) -> int:
        """Longest sequence in tokens that the model and the options allow."""
        return self._limits.max_context

    @property
    def capacity_tokens(self) -> int:
        """Longest sequence in tokens that can finish: the context, or the KV pool if smaller."""
        return self._limits.capacity_tokens

    def limit_running(self, max_sequences: int) -> None:
        """Let so many sequences run at once from now on; what runs already is let end."""
        self._scheduler.admission.max_running = max_sequences

    @property
    def has_work(self) -> bool:
        """Whether a step has anything to do or to report."""
        return bool(self._pending or self._requests or self._pipeline.is_busy)

    @property
    def patience_seconds(self) -> float:
        """How long the caller may put off ``step`` at no cost, to add requests first."""
        return self._pipeline.patience_seconds

    def watch_readers(self, are_busy: Callable[[], bool]) -> None:
        """Put off a step, at no cost, while readers are busy with the tokens of the last one."""
        self._pipeline.readers_are_busy = are_busy

    def check(
        self,
        prompt_token_ids: TokenIds[int],
        params: SamplingParams,
        query: PromptQuery | None = None,
    ) -> int:
        """Return how many tokens may be generated. Touches no state: any thread may call it.

        Raises:
            InvalidParameterError: The prompt is empty, a token id is out of range, or the pooling
                is an encoder's.
            ContextLengthError: Prompt and completion exceed the context.
            CapacityError: They exceed the KV pool.
        """
        return self._limits.check(prompt_token_ids, params, query)

    def add_request(self, request: Request) -> None:
        """Accept a request; its ``n`` choices share the prompt's blocks.

        Raises:
            UsageError: The id is in use.
            ZSEError: As ``check``.
        """
        if request.request_id in self._requests:
            raise UsageError(f"request {request.request_id!r} is running already")
        max_tokens = self.check(request.prompt_token_ids, request.params, request.query)
        request = self._limits.as_computed(request)
        sequences = self._intake.sequences_of(request, max_tokens, step=self._num_steps)
        self._requests[request.request_id] = sequences
        if request.steps is not None:
            self._pipeline.time_steps()
        self._num_prompt_tokens += len(request.prompt_token_ids)
        for sequence in sequences:
            self._scheduler.add(sequence)

    def abort(self, request_id: str, index: int | None = None) -> None:
        """End a request, or one choice of it, now; the next step reports it as ``abort``.

        An id that is unknown or finished is ignored: it lost a race that the caller cannot see.
        """
        for sequence in list(self._requests.get(request_id, ())):
            if index in (None, sequence.index):
                sequence.finish_reason = "abort"
                self._retire(sequence)
                reused = sequence.cached_tokens or 0
                self._pending.append(
                    TokenEvent(
                        request_id,
                        sequence.index,
                        None,
                        finish_reason="abort",
                        cached_tokens=reused,
                    )
                )

    def step(self) -> list[TokenEvent]:
        """Compute one step and return what it produced, in schedule order.

        Raises:
            EngineError: The runner broke its contract.
        """
        events, self._pending = self._pending, []
        speculator = self._speculator or self._speculator_once_due()
        if speculator is not None:
            speculator.prepare(self._scheduler.running, self._scheduler.takes_drafts)
        finished = self._next_finished()
        if speculator is not None:
            speculator.stepped(finished)
        self._num_steps += bool(finished)
        for chunk, answer in finished:
            self._num_computed_tokens += chunk.num_tokens
            sequence = chunk.sequence
            if sequence.finish_reason is not None:
                continue
            if chunk.num_read and sequence.reading is not None:
                answer = sequence.reading.take(answer, chunk.num_read)
            if not chunk.num_wanted:
                continue
            if sequence.num_void:
                sequence.num_void -= 1
                continue
            events.extend(self._accept(chunk, answer))
        self._pipeline.sample()
        return events

    def _next_finished(self) -> list[tuple[ScheduledChunk, TokenIds[SampledToken]]]:
        """Run the pipeline and return the oldest step that is done.

        Where the device is out of memory, the KV cache is made smaller and steps are planned again.
        """
        try:
            if self._relief is not None and self._relief.is_due:
                self._relief.apply()
            return self._pipeline.next()
        except DeviceError as error:
            if self._relief is None:
                from zse.engine.relief import MemoryRelief  # which few servers ever need

                self._relief = MemoryRelief(self._scheduler, self.cache, self.runner)
            self._relief.note(error)
            return self._pipeline.finish()

    def trace_steps(self, trace: StepTrace) -> None:
        """Record every step from now on in a trace, which is closed with the core."""
        time_steps = getattr(self.runner, "time_steps", None)  # a mesh's devices are elsewhere
        if time_steps is not None:
            time_steps()
        self._pipeline.trace = trace

    def stats(self) -> EngineStats:
        scheduler, cache, speculator = self._scheduler, self.cache, self._speculator
        tier = cache.tier
        return EngineStats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            block_size=self.runner.block_size,
            kv_blocks_total=cache.num_blocks,
            kv_blocks_used=cache.num_blocks - cache.num_available,
            kv_blocks_cached=cache.num_cached,
            prefix_query_tokens=scheduler.admission.num_prefix_queries,
            prefix_hit_tokens=scheduler.admission.num_prefix_hits,
            preemptions=scheduler.num_preemptions,
            prompt_tokens=self._num_prompt_tokens,
            computed_tokens=self._num_computed_tokens,
            generated_tokens=self._acceptance.num_tokens,
            steps=self._num_steps,
            restored_file_tokens=cache.restored_hits["file"],
            host_hit_tokens=tier.hit_tokens if tier is not None else 0,
            host_blocks_total=tier.num_blocks if tier is not None else 0,
            host_blocks_used=tier.num_used if tier is not None else 0,
            host_blocks_kept=tier.kept_blocks if tier is not None else 0,
            restored_store_tokens=cache.restored_hits["store"],
            speculation=speculator.counts() if speculator is not None else SpeculationCounts(),
        )

    def logits(self, token_ids: TokenIds[int], adapter: Adapter | None = None) -> LogitRows:
        """Return float32 logits of one sequence: a row a token, ``vocab_size`` wide.

        Raises:
            InvalidParameterError: The list is empty, or a token id is out of range.
            ContextLengthError: It is longer than the context.
        """
        check_request(token_ids, None, vocab_size=self.runner.vocab_size)
        resolve_max_tokens(
            len(token_ids), 0, max_context=self.max_context, capacity_tokens=self.max_context
        )
        handle = None if adapter is None else adapter.handle
        return self.runner.logits(token_ids, adapter=handle)

    def check_consistency(self) -> None:
        """Prove that blocks have the owners they count. Slow: for tests and for debugging.

        Raises:
            EngineError: A block has another number of owners than it counts.
        """
        self.cache.check_consistency(self._scheduler.tables())

    def prepare_idle(self) -> bool:
        """Make one step ready that may come; whether there was one.

        For an engine that has no work, behind its first answer.
        """
        prepare = getattr(self.runner, "prepare_idle", None)  # a mesh's devices are elsewhere
        return prepare is not None and self._acceptance.num_tokens > 0 and bool(prepare())

    def rest(self) -> None:
        """Give back memory that no step needs; for an engine that has no work."""
        if self._pipeline.trace is not None:
            self._pipeline.trace.flush()
        self.runner.rest(self.cache.free_blocks())

    def close(self) -> None:
        self._pipeline.abandon()
        if self._pipeline.trace is not None:
            self._pipeline.trace.close()
            self._pipeline.trace = None
        for request_id in list(self._requests):
            self.abort(request_id)
        self._pending.clear()
        if self.parting is not None:
            self.parting()
        begin = self._begin_speculation
        speculator = begin() if begin is not None else self._speculator
        if speculator is not None:
            speculator.close()
        self.runner.close()

    def _speculator_once_due(self) -> Speculator | None:
        """Make the speculator once a token has come: making it must not delay the first one."""
        if self._begin_speculation is not None and self._acceptance.num_tokens:
            self._speculator, self._begin_speculation = self._begin_speculation(), None
        return self._speculator

    def _accept(self, chunk: ScheduledChunk, answer: TokenIds[SampledToken]) -> list[TokenEvent]:
        """Add what followed a chunk to its sequence, which is alive; retire it at its end."""
        sequence = chunk.sequence
        events = self._acceptance.accept(chunk, answer)
        if sequence.grammar is not None:
            events.extend(self._acceptance.jump(sequence, self.least_jump))
        if sequence.finish_reason is not None:
            self._retire(sequence)
        return events

    def _retire(self, sequence: Sequence) -> None:
        self._scheduler.remove(sequence)
        if self._speculator is not None:
            self._speculator.forget(sequence)
        request_id = sequence.request.request_id
        siblings = self._requests[request_id]
        siblings.remove(sequence)
        if not siblings:
            del self._requests[request_id]


def _tier_of(runner: ModelRunner, options: LoadOptions) -> HostTier | None:
    """Return the tier in host memory for evicted prefixes; None where none is asked for."""
    cache = options.cache
    if not (cache.prefix_host_bytes and cache.prefix_cache):
        return None
    return HostTier(runner.host_blocks(cache.prefix_host_bytes))


def _within_runner(runner: ModelRunner, options: BatchOptions) -> BatchOptions:
    """Return the options with no more sequences, and no longer steps, than the runner can take.

    A model with recurrent states has room for so many of them.
    """
    most, tokens = runner.most_sequences, getattr(runner, "most_batch_tokens", 0)
    if most is not None and most < options.max_sequences:
        options = replace(options, max_sequences=most)
    return replace(options, max_batch_tokens=tokens) if tokens else options
