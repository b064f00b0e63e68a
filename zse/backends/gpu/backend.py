"""The GPU backend: kernel packs on raw memory, one graph launch a decode step, no torch."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from zse.backends.gpu.forward import Residual, Step
from zse.backends.gpu.graphs import (
    ENTRY_ROOMS,
    MAX_BUCKET,
    CapturedStep,
    GraphKey,
    Rehearsal,
    bucket_of,
    room_for,
    tile_room,
)
from zse.backends.gpu.inputs import InputShape
from zse.backends.gpu.kinds import (
    block_copies_of,
    host_arena_of,
    images_of,
    state_pool_of,
    text_operations_of,
)
from zse.backends.gpu.kv_pool import BLOCK_SIZE, KVPool
from zse.backends.gpu.masked import MaskedStep
from zse.backends.gpu.memory import SequenceMemory
from zse.backends.gpu.operations import GPUOperations
from zse.backends.gpu.retained import Retained
from zse.backends.gpu.scratch import Scratch
from zse.backends.gpu.step import StepPlan, plan_step, shape_of
from zse.backends.gpu.step_inputs import write_inputs
from zse.backends.gpu.transfers import DeviceRows, ResultRing, StagingRing
from zse.backends.key_factors import NARROW_KV_DTYPES
from zse.backends.states import check_states, states_of
from zse.backends.types import DeviceUsed, logit_rows, mask_bytes
from zse.errors import DeviceError, UnsupportedModelError
from zse.kernels.lm_head_sample.arrays import SamplingKind

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from zse.backends.adapters import AdapterWeights
    from zse.backends.gpu.adapters import GPUAdapter
    from zse.backends.gpu.block_copies import BlockCopies
    from zse.backends.gpu.host_arena import HostArena
    from zse.backends.gpu.memory import DeviceMemory
    from zse.backends.gpu.model import DeviceModel
    from zse.backends.gpu.transfers import PendingResults
    from zse.backends.kv_images import KVImages
    from zse.backends.operations import Forward, PendingStep
    from zse.backends.types import LogitRows, StepBatch
    from zse.device.gpu import Block, Gpu, GraphExec, Stream
    from zse.format.spec import ZSEHeader
    from zse.kernels.launcher import Launcher
    from zse.models.spec import HeadSpec, ModelSpec, Pooling
    from zse.stream.placement import Placement
    from zse.stream.weights import StreamFacts

GREEDY = GraphKey("decode", 1, SamplingKind())
FIRST_SAMPLINGS = (SamplingKind(random=True), SamplingKind(random=True, truncated=True))
"""How a first request has its tokens chosen that does not ask for the likeliest."""


class GPUBackend(GPUOperations):
    """See ``zse.backends.operations.Backend``. ``launcher`` puts kernels into ``stream``."""

    block_size = BLOCK_SIZE

    def __init__(
        self, gpu: Gpu, stream: Stream, launcher: Launcher, model: DeviceModel, memory: DeviceMemory
    ) -> None:
        self._gpu = gpu
        self.device = DeviceUsed(
            name=gpu.name, hardware=gpu.info.name, instructions=gpu.info.target
        )
        self._stream = stream
        self._launcher = launcher
        self._passes = model.passes
        self.looks_ahead = self._passes.looks_ahead
        self._memory = memory
        self._limits = model.limits(memory.sequences.cache)
        self._staging = StagingRing(gpu)
        self._mask_staging = StagingRing(gpu)
        limits = self._limits
        self.states = states_of(model.spec, model.options)
        self._result_ring = ResultRing(
            gpu,
            max_rows=limits.max_sampled,
            max_slots=limits.max_slots,
            stream=stream,
            check=self._check_ranks,
        )
        self._texts = text_operations_of(model)
        self._graphs: dict[GraphKey, CapturedStep] = {}
        self._eager_inputs: Block | None = None
        self._retained: Retained | None = None
        self._arena: HostArena | None = None
        self._is_first = True
        """Whether no decode step was asked for yet."""
        self.num_blocks = memory.sequences.cache.num_blocks
        self.windows = memory.sequences.cache.windows
        super().__init__(model, self._result_ring.arrays)

    # --- steps ---------------------------------------------------------------------------------

    def submit(self, batch: StepBatch, forward: Forward) -> PendingStep:
        """Enqueue one step and the copy of its tokens to the host."""
        self._gpu.make_current()
        self._passes.make_room(self._moved)
        plan = plan_step(batch, self._limits)
        check_states(batch.chunks, self.states)
        self._send_adapters(plan)
        states = self._memory.sequences.states
        if states is None:
            return self._compute_anyway(plan, forward)
        for chunk in batch.chunks:
            if (source := chunk.restored_from) is not None:
                states.copy(self.states.slot_of(source), chunk.sequence_slot, self._stream)
        pending = self._compute(plan, forward)
        for chunk in batch.chunks:
            if (target := chunk.saved_to) is not None:
                states.copy(chunk.sequence_slot, self.states.slot_of(target), self._stream)
        return pending

    def _compute_anyway(self, plan: StepPlan, forward: Forward) -> PendingStep:
        """Compute a step; once more, where memory ran out and some could be given up for it.

        What the first try has written of keys and values the second one writes again.
        """
        try:
            return self._compute(plan, forward)
        except DeviceError as error:
            if not (error.is_out_of_memory and self._passes.give_up(self._moved)):
                raise
            return self._compute(plan, forward)

    def _compute(self, plan: StepPlan, forward: Forward) -> PendingStep:
        if self._is_captured(plan) and self._is_due():
            captured = self._replay(plan, forward)
            if (choice := captured.choice) is None:
                return self._result_ring.receive(plan, self._stream)
            replay = partial(choice.launch, self._stream)
            return MaskedStep(partial(self._choose, plan, captured.masks, replay))
        step = self._begin(plan, self._memory.sequences)
        forward(self, step)
        hidden = self._hidden_of(plan, step)
        if not plan.sampling_kind.masked:
            return self._result_ring.receive(plan, self._stream, hidden)
        choose = partial(self.choose, step)
        return MaskedStep(partial(self._choose, plan, step.scratch.masks, choose, hidden))

    @property
    def begins_with_capture(self) -> bool:
        """Whether steps must be captured before the first one: by all ranks, or with streams."""
        return self._model.collectives is not None or not self._passes.looks_ahead

    def _is_due(self) -> bool:
        """Whether steps are captured by now: where none is, the first one is launched as it is.

        It stands in the stream behind the first prompt, whose token would wait for the capture.
        """
        is_first, self._is_first = self._is_first, False
        return bool(self._graphs) or not is_first or self.begins_with_capture

    def _is_captured(self, plan: StepPlan) -> bool:
        """Whether a step is one of those that are repeated from a graph."""
        fits = plan.single_rows <= MAX_BUCKET and len(plan.entries.rows) <= ENTRY_ROOMS[-1]
        all_sampled = plan.kind != "prefill" and len(plan.sampled) == plan.single_rows
        return fits and all_sampled and not plan.wants_hidden

    def _choose(
        self,
        plan: StepPlan,
        masks_address: int,
        choose: Callable[[], None],
        hidden: DeviceRows | None = None,
    ) -> PendingResults:
        """Have the masks of a step written, send them and enqueue what chooses by them."""
        self._gpu.make_current()
        row_bytes = mask_bytes(self._limits.vocab_size)
        length = row_bytes * (1 + max(plan.mask_rows))
        masks = plan.batch.masks
        assert masks is not None
        masks.write(self._mask_staging.acquire(length).address, row_bytes)
        self._mask_staging.send(masks_address, length, self._stream)
        choose()
        return self._result_ring.receive(plan, self._stream, hidden)

    def _hidden_of(self, plan: StepPlan, step: Step) -> DeviceRows | None:
        """Return where the head's inputs lie after a pass, if they are asked for."""
        if not plan.wants_hidden:
            return None
        plain = step.scratch.plain(step.shape.wanted, self._model.spec.hidden_size)
        return DeviceRows(address=plain.values, rows=plain.rows, columns=plain.columns)

    def warm(self, forward: Forward) -> None:
        """Capture the step of a single greedy sequence, so that the first answer finds it.

        The weights need not be there yet.
        """
        self._gpu.make_current()
        self._graph(GREEDY, forward)
        self._stream.synchronize()

    def prepare_prompt(self, forward: Forward, rows: int) -> None:
        """Load the kernels that a first prompt of about so many tokens goes through."""
        self._gpu.make_current()
        is_single = self._limits.all_single
        tiled_rows = 0 if is_single else rows
        shape = InputShape(
            decode_rows=rows - tiled_rows,
            rows_follow=is_single,
            prefill_rows=tiled_rows,
            tiles=-(-tiled_rows // self._limits.tile_queries),
            runs=1,
            longest_run=tiled_rows,
            sequences=rows if is_single else 1,
            table_stride=self._limits.table_stride,
            windows=len(self._limits.windows),
            wanted=int(not self._model.spec.is_encoder),
        )
        step = self._step(shape, 0, self._memory.sequences, GREEDY.sampling)
        self._rehearsed(step, partial(forward, self))
        for sampling in FIRST_SAMPLINGS[: shape.wanted * len(FIRST_SAMPLINGS)]:
            self._rehearsed(replace(step, sampling=sampling), self.choose)

    def begin(self, batch: StepBatch, cache: SequenceMemory | None = None) -> Step:
        """Send the inputs of one pass, whose operations are then launched one by one."""
        self._gpu.make_current()
        limits = self._limits if cache is None else self._model.limits(cache.cache)
        plan = plan_step(batch, limits)
        self._send_adapters(plan)
        return self._begin(plan, cache or self._memory.sequences)

    def _send_adapters(self, plan: StepPlan) -> None:
        """Send what a step uses of adapters and the device has not got yet."""
        if plan.adapter_tiles:
            assert self._model.adapters is not None
            self._model.adapters.send(plan.batch.chunks, self._stream)

    def _begin(self, plan: StepPlan, memory: SequenceMemory) -> Step:
        shape = shape_of(plan, self._limits)
        length = shape.length_bytes
        if self._eager_inputs is None or self._eager_inputs.length_bytes < length:
            if self._eager_inputs is not None:
                self._eager_inputs.free()  # the driver waits for steps that still read it
            self._eager_inputs = self._gpu.allocate(1 << (length - 1).bit_length())
        self._send(plan, shape, self._eager_inputs.address)
        step = self._step(shape, self._eager_inputs.address, memory, plan.sampling_kind)
        # What is told to the host stays in 16 bits.
        told = plan.wants_hidden and not self._model.plans.deterministic
        if step.rounding == "tokens":
            self._model.row_maxima.find(self._launcher)
        return replace(step, rounding="none") if told else step

    def _replay(self, plan: StepPlan, forward: Forward) -> CapturedStep:
        bucket = bucket_of(plan.single_rows)
        room = room_for(len(plan.entries.rows))
        tiles = tile_room(plan.adapter_tiles, bucket)
        key = GraphKey(plan.kind, bucket, plan.sampling_kind, room, tiles)
        captured = self._graph(key, forward)
        shape = shape_of(plan, self._limits, bucket=bucket, entry_room=room, adapter_room=tiles)
        self._send(plan, shape, captured.inputs.address)
        captured.graph.launch(self._stream)
        return captured

    def _graph(self, key: GraphKey, forward: Forward) -> CapturedStep:
        if key not in self._graphs:
            self._graphs[key] = self._capture(key, forward)
        return self._graphs[key]

    def _capture(self, key: GraphKey, forward: Forward) -> CapturedStep:
        shape = InputShape(
            decode_rows=key.rows,
            rows_follow=key.kind == "verify",
            sequences=key.rows,
            table_stride=self._limits.table_stride,
            windows=len(self.windows),
            wanted=key.rows,
            entries=key.entry_room,
            adapter_tiles=key.adapter_tiles,
        )
        inputs = self._gpu.allocate(shape.length_bytes)
        step = self._step(shape, inputs.address, self._memory.sequences, key.sampling)
        graph = self._recorded(step, partial(forward, self))
        choice = self._recorded(step, self.choose) if key.sampling.masked else None
        return CapturedStep(graph=graph, choice=choice, inputs=inputs, masks=step.scratch.masks)

    def _recorded(self, step: Step, work: Callable[[Step], object]) -> GraphExec:
        """Return a graph of what some work launches for a step."""
        rehearsal = self._rehearsed(step, work)  # a stream that is captured loads no code
        return self._passes.capture(self._gpu, self._stream, rehearsal, self._launcher)

    def _rehearsed(self, step: Step, work: Callable[[Step], object]) -> Rehearsal:
        """Return what some work launches for a step, when the code of all of it is loaded."""
        rehearsal = Rehearsal(self._launcher.device)
        with self._passes.rehearsing(rehearsal):
            work(replace(step, launcher=rehearsal))
        rehearsal.prepare_on(self._launcher)
        return rehearsal

    def _step(
        self, shape: InputShape, inputs: int, memory: SequenceMemory, sampling: SamplingKind
    ) -> Step:
        return Step(
            launcher=self._launcher,
            shape=shape,
            inputs=shape.arrays_at(inputs),
            scratch=Scratch(self._memory.scratch, self._model.plans.scratch(shape)),
            cache=memory.cache,
            states=memory.states,
            sampling=sampling,
            rounding=self._model.plans.rounding(shape),
        )

    def _send(self, plan: StepPlan, shape: InputShape, address: int) -> None:
        length = shape.length_bytes
        buffer = self._staging.acquire(length)
        write_inputs(buffer.view, plan, shape, self._limits)
        self._staging.send(address, length, self._stream)

    def _moved(self, placement: Placement, block: Block) -> None:
        """Forget what holds addresses of weights, which lie elsewhere now."""
        self._stream.synchronize()
        self._model.move(placement, block)
        for captured in self._graphs.values():
            captured.free()
        self._graphs.clear()

    def _check_ranks(self) -> None:
        """Refuse what was computed without another rank, which is gone or hangs."""
        if self._model.collectives is not None:
            self._model.collectives.check()

    # --- memory --------------------------------------------------------------------------------

    def lm_head(self, step: Step, residual: Residual, head: HeadSpec) -> bytes:
        """Return float32 logits of the wanted rows on the host."""
        self.write_logits(step, residual, head)
        length = step.shape.wanted * self._model.spec.vocab_size * 4
        host = self._gpu.allocate_host(length)
        try:
            self._gpu.copy_to_host(host.address, step.scratch.logits, length, self._stream)
            self._stream.synchronize()
            self._check_ranks()
            return bytes(host.view)
        finally:
            host.free()

    def pool(self, step: Step, residual: Residual, pooling: Pooling) -> Sequence[Sequence[float]]:
        """Return the vector of each text of a step, or its scores."""
        assert self._texts is not None
        head = self._model.spec.head
        found = self._texts.write_numbers(step, residual, self.ends, head, pooling)
        length = step.shape.runs * found.columns * 4
        host = self._gpu.allocate_host(length)
        try:
            self._gpu.copy_to_host(host.address, found.address, length, self._stream)
            self._stream.synchronize()
            numbers = memoryview(bytes(host.view[:length])).cast("f")
        finally:
            host.free()
        each = range(0, len(numbers), found.columns)
        return [numbers[at : at + found.columns].tolist() for at in each]

    def join_rows(self, parts: Sequence[bytes]) -> LogitRows:
        joined = bytearray().join(parts)  # not bytes: a view of it may be written to
        return logit_rows(memoryview(joined), self._model.spec.vocab_size)

    def new_cache(self, num_blocks: int) -> SequenceMemory:
        self._gpu.make_current()
        layout = self._memory.sequences.cache.layout
        return SequenceMemory(
            cache=KVPool(self._gpu, layout, [num_blocks] * (1 + len(self.windows))),
            states=state_pool_of(self._gpu, self.states, 1),
        )

    def release_cache(self, cache: SequenceMemory) -> None:
        self._stream.synchronize()
        cache.close()

    def bind_adapter(self, adapter: AdapterWeights) -> GPUAdapter:
        """Return a handle of an adapter; its numbers are sent with the first step that uses it."""
        if (pool := self._model.adapters) is None:
            raise UnsupportedModelError(
                f"no GPU memory is set aside for the adapter '{adapter.name}'",
                hint="Name adapters when the model is loaded (--lora, LLM(loras=...)), or set "
                "memory aside with --lora-gib.",
            )
        return pool.bind(adapter)

    def host_blocks(self, length_bytes: int) -> HostArena:
        """Return host memory for blocks of the pool; it goes with the backend."""
        cache = self._memory.sequences.cache
        self._arena = host_arena_of(self._gpu, cache, self._stream, length_bytes)
        return self._arena

    @property
    def kv_images(self) -> KVImages:
        return images_of(self._model.spec, self._memory.sequences.cache, self.block_size)

    def read_blocks(self, group: int, blocks: Sequence[int], image: memoryview) -> None:
        self.kv_images.check(group, len(blocks), image)
        with self._block_copies() as copies:
            copies.read(group, blocks, image)

    def write_blocks(
        self, group: int, blocks: Sequence[int], image: memoryview, *, first: int = 0
    ) -> None:
        self.kv_images.check(group, len(blocks), image, first)
        with self._block_copies() as copies:
            copies.write(group, blocks, image, first)

    @contextmanager
    def _block_copies(self) -> Iterator[BlockCopies]:
        self._gpu.make_current()
        copies = block_copies_of(self._gpu, self._memory.sequences.cache, self._stream)
        try:
            yield copies
        finally:
            copies.finish()

    def rest(self, free_blocks: Sequence[Sequence[int]]) -> None:
        """Keep all memory: a GPU's pool is taken whole, so that others know what is left."""

    def memory_bytes(self) -> dict[str, int]:
        held = {
            "weights": self._model.weights.memory_bytes(),
            "kv_cache": self._memory.sequences.cache.length_bytes,
            "scratch": self._memory.scratch.length_bytes,
        }
        states, adapters = self._memory.sequences.states, self._model.adapters
        if states is not None:
            held["states"] = states.length_bytes
        if adapters is not None:
            held["adapters"] = adapters.length_bytes
        return held

    @property
    def streaming(self) -> StreamFacts | None:
        """What of the model streams through memory; None where all of it is there."""
        return self._passes.facts()

    @property
    def gpu(self) -> Gpu:
        return self._gpu

    @property
    def spec(self) -> ModelSpec:
        return self._model.spec

    @property
    def weights(self) -> Block:
        """What holds them."""
        return self._model.weights.block

    @property
    def key_factors(self) -> Mapping[int, array[float]]:
        """What keys are divided by, by layer; a layer without any is absent."""
        return self._model.key_factors.factors

    def retain(self) -> Retained | None:
        """Have ``close`` leave everything to a model of the same shape; None where it cannot be."""
        is_shared = self._model.collectives is not None or not self._passes.looks_ahead
        if self._model.adapters is not None or is_shared:
            return None  # whose numbers, streaming layers or other ranks are of this model
        is_narrow = self._model.options.cache.kv_dtype in NARROW_KV_DTYPES
        self._retained = Retained(self, self._model.weights.header, is_narrow=is_narrow)
        return self._retained

    def release(self) -> None:
        """Undo ``retain``."""
        self._retained = None

    def begin_again(self, header: ZSEHeader) -> None:
        """Compute with the weights of another model, which are where those of the last one were."""
        self._gpu.make_current()
        self._retained = None
        self._model.weights.header = header
        self._model.weights.widen_vectors(self._stream)
        self._model.row_maxima.forget()
        self._memory.sequences.cache.clear_unseen(self._stream)

    def close(self) -> None:
        """Give everything back; work in flight ends first."""
        if self._arena is not None:
            self._gpu.make_current()
            self._stream.synchronize()
            self._arena.close()
            self._arena = None  # the model that takes this over asks for its own
        if self._retained is None:
            try:
                self._passes.close()
            finally:
                self._gpu.close()
            return
        self._gpu.make_current()
        self._stream.synchronize()
        self._retained.close()
