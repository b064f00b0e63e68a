"""How a GPU's steps are made: for a batch, from graphs that were captured, and only rehearsed.

A step is its inputs on the device, scratch memory for its shape and a launcher. What is captured
reads its inputs from memory of its own; all others share one block, which grows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.backends.gpu.forward import Step
from zse.backends.gpu.graphs import CapturedStep, GraphKey, Rehearsal, SampledRehearsal
from zse.backends.gpu.inputs import InputShape
from zse.backends.gpu.passes import WholePasses
from zse.backends.gpu.patterns import Patterns
from zse.backends.gpu.repeating import RepeatingLauncher
from zse.backends.gpu.scratch import Scratch
from zse.backends.gpu.step import LINES_ROWS, shape_of
from zse.backends.gpu.step_inputs import write_inputs
from zse.backends.gpu.transfers import StagingRing
from zse.kernels.attention.context import aligned_blocks
from zse.kernels.lm_head_sample.arrays import SamplingKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from zse.backends.gpu.memory import DeviceMemory, SequenceMemory
    from zse.backends.gpu.model import DeviceModel
    from zse.backends.gpu.step import StepPlan
    from zse.device.gpu import Block, Gpu, GraphExec, Stream
    from zse.kernels.launcher import Launcher

GREEDY = GraphKey("decode", 1, SamplingKind())
FIRST_SAMPLINGS = (SamplingKind(random=True), SamplingKind(random=True, truncated=True))
"""How a first request has its tokens chosen that does not ask for the likeliest."""


class StepMaker:
    """Makes the steps of one model, whose GPU is current whenever this is called.

    What a step launches is passed in as ``work``: the model's program; and as ``choose``: what
    chooses tokens by its logits.
    """

    def __init__(
        self, gpu: Gpu, stream: Stream, launcher: Launcher, model: DeviceModel, memory: DeviceMemory
    ) -> None:
        self._gpu = gpu
        self._stream = stream
        self._launcher = launcher
        self._model = model
        self._memory = memory
        self.limits = model.limits(memory.sequences.cache)
        self._staging = StagingRing(gpu)
        self._eager_inputs: Block | None = None
        self.patterns = Patterns(len(model.spec.layers))
        self._kept_bytes = 0
        self.reads_prompts = False
        """Whether any step had a long prompt: then others may."""

    def use(self, memory: DeviceMemory) -> None:
        """Make steps for another pool from now on; none is in flight."""
        self.patterns.forget()
        self._memory = memory
        self.limits = self._model.limits(memory.sequences.cache)

    def begin(self, plan: StepPlan, memory: SequenceMemory) -> Step:
        """Send the inputs of a step whose operations are then launched one by one."""
        self._model.note_arrived()
        shape = shape_of(plan, self.limits)
        self.reads_prompts |= shape.prefill_rows >= LINES_ROWS
        length = shape.length_bytes
        if self._eager_inputs is None or self._eager_inputs.length_bytes < length:
            if self._eager_inputs is not None:
                self._eager_inputs.free()  # the driver waits for steps that still read it
            self._eager_inputs = self._gpu.allocate(1 << (length - 1).bit_length())
        self.send(plan, shape, self._eager_inputs.address)
        if self._model.plans.rounding(shape) == "tokens":
            self._model.prepare_turned(self._launcher)
        step = self._step(shape, self._eager_inputs.address, memory, plan.sampling_kind)
        if self._repeats(shape):
            coming = self._model.passes.coming
            launcher = RepeatingLauncher(self._launcher, self.patterns, shape, coming)
            step = replace(step, launcher=launcher)
        if not plan.wants_hidden:
            return step
        # What is told to the host stays in 16 bits.
        is_fixed = self._model.plans.deterministic
        return replace(step, tells_states=True, rounding=step.rounding if is_fixed else "none")

    def _repeats(self, shape: InputShape) -> bool:
        """Whether layers of a step may be launched after the pattern of one of them.

        Not where ranks exchange their parts, or where weights or adapters come and go.
        """
        model, passes = self._model, self._model.passes
        if self._kept_bytes != (taken := model.kept_weights.taken_bytes):
            self._kept_bytes = taken
            self.patterns.forget()  # layers read their weights elsewhere
        is_alone = model.collectives is None and model.flow is None
        stays = isinstance(passes, WholePasses)
        stays &= not passes.is_arriving or self.patterns.are_known  # a start learns none
        return is_alone and stays and not shape.adapter_tiles and self.patterns.are_wanted

    def send(self, plan: StepPlan, shape: InputShape, address: int) -> None:
        """Send the inputs of a step to where it reads them."""
        length = shape.length_bytes
        buffer = self._staging.acquire(length)
        write_inputs(buffer.view, plan, shape, self.limits)
        self._staging.send(address, length, self._stream)

    def capture(
        self, key: GraphKey, work: Callable[[Step], object], choose: Callable[[Step], object]
    ) -> CapturedStep:
        """Return a step of one kind that can be repeated; it is not computed."""
        self._model.note_arrived()
        shape = InputShape(
            decode_rows=key.rows,
            rows_follow=key.kind == "verify",
            state_rows=key.rows * self.limits.has_draft_states,
            sequences=key.rows,
            table_stride=self.limits.table_stride,
            windows=len(self.limits.windows),
            wanted=key.rows,
            entries=key.entry_room,
            adapter_tiles=key.adapter_tiles,
        )
        if self._model.plans.rounding(shape) == "tokens":
            self._model.prepare_turned(self._launcher)
        inputs = self._gpu.allocate(shape.length_bytes)
        step = self._step(shape, inputs.address, self._memory.sequences, key.sampling)
        step = replace(step, norms_behind=self._model.norms_behind(shape))
        graph = self._recorded(step, work)
        choice = self._recorded(step, choose) if key.sampling.masked else None
        return CapturedStep(
            graph=graph,
            choice=choice,
            inputs=inputs,
            masks=step.scratch.masks,
            residual=step.scratch.residual,
            left=step.scratch.left,
            is_turned=step.rounding == "tokens",
        )

    def rehearse_prompt(
        self, rows: int, work: Callable[[Step], object], choose: Callable[[Step], object]
    ) -> Iterator[None]:
        """Load the code that a first prompt of about so many tokens goes through.

        Each next item loads a kernel: whoever waits for the device meanwhile waits for one.
        """
        shape = self._prompt_shape(rows)
        if self._model.plans.rounding(shape) == "tokens" and not self._model.passes.is_arriving:
            self._model.prepare_turned(self._launcher)  # products are chosen by what is kept
        step = self._step(shape, 0, self._memory.sequences, GREEDY.sampling)
        yield from self._loading(step, work)
        for sampling in FIRST_SAMPLINGS[: shape.wanted * len(FIRST_SAMPLINGS)]:
            yield from self._loading(replace(step, sampling=sampling), choose)

    def expect_prompt(
        self, rows: int, ends: Callable[[Step], object], work: Callable[[Step], object]
    ) -> None:
        """Begin with what a prompt of about so many tokens needs, which comes at once.

        The device turns weights while the host loads the code of layers. That of the ``ends`` of
        the model comes first: loading some of it waits until the device has nothing to do.
        """
        shape = self._prompt_shape(rows)
        begins = self._model.passes.is_arriving  # of a model of this device alone
        if not begins or self._model.plans.rounding(shape) != "tokens":
            return
        step = self._step(shape, 0, self._memory.sequences, GREEDY.sampling)
        for _ in self._loading(step, ends):
            pass
        self._model.prepare_turned(self._launcher)
        self._model.passes.turn_arrived()
        for _ in self._loading(step, work):
            pass

    def rehearse_beside(self, answers: int, rows: int, work: Callable[[Step], object]) -> bool:
        """Load the code of a step with so many answers and a prompt's rows, and learn its pattern.

        Weights are there, and a long prompt has been read. Returns whether the pattern is known, or
        there is none to learn.
        """
        shape = self._prompt_shape(rows, answers)
        inputs = 0 if self._eager_inputs is None else self._eager_inputs.address
        step = self._step(shape, inputs, self._memory.sequences, GREEDY.sampling)
        rehearsal = Rehearsal(self._launcher.device)
        launcher = RepeatingLauncher(rehearsal, self.patterns, shape)
        repeats = self._repeats(shape)
        work(replace(step, launcher=launcher if repeats else rehearsal))
        rehearsal.prepare_on(self._launcher)
        return launcher.has_pattern or not repeats

    def _prompt_shape(self, rows: int, answers: int = 0) -> InputShape:
        """Return the shape of a step with one new prompt of so many tokens beside answers."""
        is_single = self.limits.all_single
        tiled_rows = 0 if is_single else rows
        context_blocks = self._lines_of(tiled_rows)
        return InputShape(
            decode_rows=answers + rows - tiled_rows,
            rows_follow=is_single,
            prefill_rows=tiled_rows,
            context_blocks=context_blocks,
            context_tiles=-(-tiled_rows // self.limits.context_queries) if context_blocks else 0,
            tiles=-(-tiled_rows // self.limits.tile_queries),
            runs=1,
            longest_run=tiled_rows,
            sequences=answers + (rows if is_single else 1),
            table_stride=self.limits.table_stride,
            windows=len(self.limits.windows),
            wanted=answers + int(not self._model.spec.is_encoder),
        )

    def _lines_of(self, rows: int) -> int:
        """Return the blocks that are copied to lines for one new prompt of so many tokens."""
        blocks = aligned_blocks(rows) if rows >= LINES_ROWS else 0
        return blocks if blocks <= self.limits.most_context_blocks else 0

    def _recorded(self, step: Step, work: Callable[[Step], object]) -> GraphExec:
        """Return a graph of what some work launches for a step."""
        rehearsal = self._rehearsed(step, work)  # a stream that is captured loads no code
        return self._model.passes.capture(self._gpu, self._stream, rehearsal, self._launcher)

    def _rehearsed(self, step: Step, work: Callable[[Step], object]) -> Rehearsal:
        """Return what some work launches for a step, when the code of all of it is loaded."""
        rehearsal = self._remembered(step, work, Rehearsal(self._launcher.device))
        rehearsal.prepare_on(self._launcher)
        return rehearsal

    def _loading(self, step: Step, work: Callable[[Step], object]) -> Iterator[None]:
        """Load the code of what some work launches for a step, a kernel at a time.

        Of layers that are alike one is enough.
        """
        sample = SampledRehearsal(self._launcher.device, self._model.unlike_layers)
        for variant in self._remembered(step, work, sample).variants():
            self._launcher.prepare(variant)
            yield

    def _remembered(
        self, step: Step, work: Callable[[Step], object], rehearsal: Rehearsal
    ) -> Rehearsal:
        with self._model.passes.rehearsing(rehearsal):
            work(replace(step, launcher=rehearsal))
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
