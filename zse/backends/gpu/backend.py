"""The GPU backend: kernel packs on raw memory, one graph launch a decode step, no torch."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from zse.backends.gpu.captured import CapturedSteps
from zse.backends.gpu.described import Described
from zse.backends.gpu.draft_states import DraftStates
from zse.backends.gpu.kinds import text_operations_of
from zse.backends.gpu.masked import MaskedStep
from zse.backends.gpu.medusa import MedusaBackend
from zse.backends.gpu.parted import MOST_UNREAD, PartedStep, has_single, parts_of
from zse.backends.gpu.pooled_blocks import PooledBlocks
from zse.backends.gpu.read_back import ReadBack
from zse.backends.gpu.retained import FileShapes, Retained
from zse.backends.gpu.step import StepPlan, plan_step, without_choice
from zse.backends.gpu.step_maker import StepMaker
from zse.backends.gpu.step_timer import StepTimer
from zse.backends.gpu.transfers import NOTHING, RING, ResultRing, SampledMemory, StagingRing
from zse.backends.key_factors import NARROW_KV_DTYPES
from zse.backends.states import check_states
from zse.backends.types import DeviceUsed, FinishedStep, mask_bytes
from zse.errors import DeviceError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from zse.backends.adapters import AdapterWeights
    from zse.backends.gpu.adapters import GPUAdapter
    from zse.backends.gpu.arrival import Arrival
    from zse.backends.gpu.arriving import RestOfStart
    from zse.backends.gpu.flow import PassedStep
    from zse.backends.gpu.forward import Step
    from zse.backends.gpu.memory import DeviceMemory, SequenceMemory
    from zse.backends.gpu.model import DeviceModel
    from zse.backends.gpu.parted import Part
    from zse.backends.gpu.state_pool import StatePool
    from zse.backends.gpu.transfers import PendingResults, Told
    from zse.backends.operations import Forward, PendingStep
    from zse.backends.types import StepBatch
    from zse.device.gpu import Block, Gpu, Stream
    from zse.format.spec import ZSEHeader
    from zse.kernels.launcher import Launcher
    from zse.stream.placement import Placement


class GPUBackend(ReadBack, Described, PooledBlocks, MedusaBackend):
    """See ``zse.backends.operations.Backend``. ``launcher`` puts kernels into ``stream``."""

    def __init__(
        self, gpu: Gpu, stream: Stream, launcher: Launcher, model: DeviceModel, memory: DeviceMemory
    ) -> None:
        self._gpu = gpu
        self.device = DeviceUsed(
            name=gpu.name,
            hardware=gpu.info.name,
            instructions=gpu.info.target,
            weights_alone=model.plans.weights_alone,
        )
        self._stream = stream
        self._launcher = launcher
        self._passes = model.passes
        self.looks_ahead = self._passes.looks_ahead
        self.filled_rows = model.plans.filled_rows
        self._memory = memory
        self._maker = StepMaker(gpu, stream, launcher, model, memory)
        self._limits = limits = self._maker.limits
        self._mask_staging = StagingRing(gpu)
        self.leaves_states = model.plans.leaves_states
        self.states = model.plans.states
        self._draft_states = DraftStates(self.states)
        self._sampled = SampledMemory(
            gpu, max_rows=limits.max_sampled, max_slots=limits.max_slots, stream=stream
        )
        num_stages = 1 if model.flow is None else model.flow.num_stages
        self._result_ring = ResultRing(
            gpu, self._sampled, check=self.check_ranks, count=max(RING, num_stages + 1)
        )
        self._flow = model.flow
        self._ends_here = model.spec.place.is_last
        self._texts = text_operations_of(model)
        self._graphs = CapturedSteps(stream, launcher, model, self._maker, self._receive)
        self._all_graphs = [self._graphs]
        self.computes_alone = model.computes_alone
        self._alone: tuple[StepMaker, CapturedSteps] | None = None
        """What makes steps of rows whose bits depend on nothing else, from the first one on."""
        self._retained: Retained | None = None
        self.file_shapes = FileShapes()
        """Of the files that were asked whether they may take its model's place."""
        self._timer: StepTimer | None = None
        self.num_blocks = memory.sequences.cache.num_blocks
        self.windows = memory.sequences.cache.windows
        super().__init__(model, self._sampled.arrays)

    # --- steps ---------------------------------------------------------------------------------

    def time_steps(self) -> None:
        """Have events stand around each step from now on."""
        self._gpu.make_current()
        self._timer = self._timer or StepTimer(self._gpu, self._stream)

    def submit(self, batch: StepBatch, forward: Forward) -> PendingStep:
        """Enqueue one step and the copy of its tokens to the host."""
        self._gpu.make_current()
        if self._timer is None:
            return self._submit(batch, forward)
        return self._timer.time(partial(self._submit, batch, forward))

    def _submit(self, batch: StepBatch, forward: Forward) -> PendingStep:
        self._is_asked = True
        if not (self.computes_alone and has_single(batch)):
            return self._submit_whole(batch, forward)
        parts = parts_of(batch, self._model.plans.most_single_rows)
        return PartedStep(parts, len(batch.chunks), partial(self._submit_part, forward))

    def _submit_part(self, forward: Forward, part: Part) -> PendingStep:
        self._gpu.make_current()
        if not part.is_alone:
            return self._submit_whole(part.batch, forward)
        with self._computing_alone():
            return self._submit_whole(part.batch, forward)

    @contextmanager
    def _computing_alone(self) -> Iterator[None]:
        """Make steps whose rows' bits depend on nothing else, as long as this is open."""
        usual = self._maker, self._graphs, self._limits
        with self._model.computing_alone():
            self._maker, self._graphs = self._alone = self._alone or self._begin_alone()
            self._limits = self._maker.limits
            try:
                yield
            finally:
                self._maker, self._graphs, self._limits = usual

    def _begin_alone(self) -> tuple[StepMaker, CapturedSteps]:
        self._result_ring.widen(2 * (MOST_UNREAD + 1))
        self._model.begin_alone()
        launcher, model = self._launcher, self._model
        maker = StepMaker(self._gpu, self._stream, launcher, model, self._memory)
        graphs = CapturedSteps(self._stream, launcher, model, maker, self._receive)
        self._all_graphs.append(graphs)
        return maker, graphs

    def _submit_whole(self, batch: StepBatch, forward: Forward) -> PendingStep:
        self._passes.make_room(self._moved)
        plan = plan_step(batch, self._limits)
        if not self._ends_here:
            plan = without_choice(plan)
        check_states(batch.chunks, self.states)
        self._send_adapters(plan)
        states = self._memory.sequences.states
        if states is None:
            return self._compute_anyway(plan, forward)
        return self._compute_with(states, plan, forward)

    def _compute_with(self, states: StatePool, plan: StepPlan, forward: Forward) -> PendingStep:
        """Compute a step of sequences that have states; copy them from and to checkpoints."""
        places, chunks = self._draft_states, plan.batch.chunks
        places.settle_for(plan)
        lent: dict[int, list[int]] = {}
        if self.states.num_drafts:
            rows, lent = places.rows_of(plan)
            plan = replace(plan, states=rows)
        for chunk in chunks:
            if (source := chunk.restored_from) is not None:
                checkpoint = self.states.slot_of(source)
                states.copy(checkpoint, places.of(chunk.sequence_slot), self._stream)
        try:
            pending = self._compute(plan, forward)
        except BaseException:
            places.take_back(plan, lent)
            raise
        for chunk in chunks:
            if (target := chunk.saved_to) is not None:
                checkpoint = self.states.slot_of(target)
                states.copy(places.of(chunk.sequence_slot), checkpoint, self._stream)
        return places.settling(pending, plan, lent)

    def _compute_anyway(self, plan: StepPlan, forward: Forward) -> PendingStep:
        """Compute a step; once more, where memory ran out and some could be given up for it.

        What the first try has written of keys and values the second one writes again.
        """
        try:
            return self._compute(plan, forward)
        except DeviceError as error:
            is_repeatable = self._flow is None  # what came from another stage comes once
            if not (error.is_out_of_memory and is_repeatable and self._give_up()):
                raise
            return self._compute(plan, forward)

    def _give_up(self) -> bool:
        """Give back memory that steps can do without; whether there was some."""
        self._stream.synchronize()
        if self._model.give_up_turned():
            self._forget_graphs()
            return True
        return self._passes.give_up(self._moved)

    def _compute(self, plan: StepPlan, forward: Forward) -> PendingStep:
        if self._graphs.repeats(plan):
            captured = self._graphs.repeat(plan, partial(forward, self), self.choose)
            if not self._ends_here:
                return self._pass_on(captured.residual, plan)
            told = self._told(plan, captured.left)
            if (choice := captured.choice) is None:
                return self._result_ring.receive(plan, self._stream, told)
            replay = partial(choice.launch, self._stream)
            return MaskedStep(partial(self._choose, plan, captured.masks, replay, told))
        step = self._maker.begin(plan, self._memory.sequences)
        self._receive(step.scratch.residual, plan)
        self._give(plan, step)
        forward(self, step)
        if not self._ends_here:
            return self._pass_on(step.scratch.residual, plan)
        told = self._told(plan, step.scratch.left, step)
        is_alone = self._alone is not None and self._maker is self._alone[0]
        if is_alone and not plan.sampled and told is NOTHING:
            return FinishedStep(answers=[()] * len(plan.batch.chunks))  # a piece of a prompt
        if not plan.sampling_kind.masked:
            return self._result_ring.receive(plan, self._stream, told)
        choose = partial(self.choose, step)
        return MaskedStep(partial(self._choose, plan, step.scratch.masks, choose, told))

    def _receive(self, residual: int, plan: StepPlan) -> None:
        """Have the stream of a step come from the stage before, if there is one."""
        if self._flow is not None:
            self._flow.receive(residual, plan.num_rows)

    def _pass_on(self, residual: int, plan: StepPlan) -> PassedStep:
        assert self._flow is not None
        self._flow.send(residual, plan.num_rows)
        return self._flow.passed(len(plan.batch.chunks))

    def pass_on(self, step: Step, _left: object) -> None:
        """Send the stream of a step outside of the pool on, and wait until it has gone."""
        assert self._flow is not None
        self._flow.send(step.scratch.residual, step.shape.rows)
        self._flow.passed(0).wait()

    def _choose(
        self,
        plan: StepPlan,
        masks_address: int,
        choose: Callable[[], None],
        told: Told,
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
        return self._result_ring.receive(plan, self._stream, told)

    def begin(self, batch: StepBatch, cache: SequenceMemory | None = None) -> Step:
        """Send the inputs of one pass, whose operations are then launched one by one."""
        self._gpu.make_current()
        limits = self._limits if cache is None else self._model.limits(cache.cache)
        plan = plan_step(batch, limits)
        self._send_adapters(plan)
        step = self._maker.begin(plan, cache or self._memory.sequences)
        self._receive(step.scratch.residual, plan)
        return step

    def _send_adapters(self, plan: StepPlan) -> None:
        """Send what a step uses of adapters and the device has not got yet."""
        if plan.adapter_tiles:
            assert self._model.adapters is not None
            if self._model.adapters.send(plan.batch.chunks, self._stream):
                self._forget_graphs()  # which add nothing to experts

    def _forget_graphs(self) -> None:
        for graphs in self._all_graphs:
            graphs.forget()

    def _moved(self, placement: Placement, block: Block) -> None:
        """Forget what holds addresses of weights, which lie elsewhere now."""
        self._stream.synchronize()
        self._model.move(placement, block)
        self._forget_graphs()

    def shrink(self, num_blocks: int, *, least_blocks: int) -> None:
        """Have so many blocks of the KV pool from now on, or fewer; what they hold is lost.

        Raises:
            DeviceError: There is not even memory for ``least_blocks``.
        """
        self._gpu.make_current()
        self._stream.synchronize()
        self._forget_graphs()  # which have addresses of the pool
        pool = self._smaller_pool(num_blocks, least_blocks)
        sequences = replace(self._memory.sequences, cache=pool)
        self._memory = replace(self._memory, sequences=sequences)
        self._maker.use(self._memory)
        self._limits = self._maker.limits
        if self._alone is not None:
            with self._model.computing_alone():
                self._alone[0].use(self._memory)
        self.num_blocks, self.windows = pool.num_blocks, pool.windows
        pool.clear_unseen(self._stream)
        if self._arena is not None:
            self._arena.use_pool(pool)

    def check_ranks(self) -> None:
        """Refuse what was computed without another rank, which is gone or hangs."""
        for one in (self._model.collectives, self._flow):
            if one is not None:
                one.check()

    # --- memory --------------------------------------------------------------------------------

    def bind_adapter(self, adapter: AdapterWeights) -> GPUAdapter:
        """Return a handle of an adapter; its numbers are sent with the first step that uses it."""
        if (pool := self._model.adapters) is None:
            raise UnsupportedModelError(
                f"no GPU memory is set aside for the adapter '{adapter.name}'",
                hint="Name adapters when the model is loaded (--lora, LLM(loras=...)), or set "
                "memory aside with --lora-gib.",
            )
        return pool.bind(adapter)

    def retain(self) -> Retained | None:
        """Have ``close`` leave everything to a model of the same shape; None where it cannot be."""
        is_shared = self._model.collectives is not None or self._flow is not None
        is_shared |= not self._passes.looks_ahead
        if self._model.adapters is not None or is_shared or self._passes.is_arriving:
            return None  # whose numbers, streaming layers or other ranks are of this model
        is_narrow = self._model.options.cache.kv_dtype in NARROW_KV_DTYPES
        self._retained = Retained(self, self._model.weights.header, is_narrow=is_narrow)
        return self._retained

    def release(self) -> None:
        """Undo ``retain``."""
        self._retained = None

    def awaits(self, arrival: Arrival, rest: RestOfStart) -> bool:
        """Have passes wait for weights that are on their way; whether these passes can.

        What is left to do then is the ``rest``.
        """
        if not arrival.arrives_again(self._passes):
            return False
        self.rest_of_start, self._is_asked = rest, False
        return True

    def begin_again(self, header: ZSEHeader) -> None:
        """Compute with the weights of another model, which are where those of the last one were."""
        self._gpu.make_current()
        self._retained = None
        self._model.weights.header = header
        self._model.weights.widen_vectors(self._stream)
        self._model.row_maxima.forget()
        self._model.kept_weights.forget()
        self._memory.sequences.cache.clear_unseen(self._stream)

    def close(self) -> None:
        """Give everything back; work in flight ends first."""
        with ExitStack() as undo:
            undo.callback(self._gpu.close)
            if self._retained is None:
                undo.callback(self._passes.close)
            self._close_host_blocks()
            if self._retained is None:
                return
            self._gpu.make_current()
            self._stream.synchronize()
            undo.pop_all()
            self._retained.close()
