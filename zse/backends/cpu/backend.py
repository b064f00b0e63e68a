"""The CPU backend: a recorded program, a pool of threads, and steps that are one call each."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from zse.backends.cpu.adapters import NativeAdapter
from zse.backends.cpu.execution import Stream, computed
from zse.backends.cpu.flow import StreamFlow
from zse.backends.cpu.kept import Logits
from zse.backends.cpu.later import LaterStep
from zse.backends.cpu.memory import Pages
from zse.backends.cpu.pacing import PacedWeights, say, window_of
from zse.backends.cpu.page_mapping import PageArrival
from zse.backends.cpu.ranks import Meetings, ShareOfFile
from zse.backends.cpu.recorder import Recorder
from zse.backends.cpu.registers import Registers
from zse.backends.cpu.sampling import Choices
from zse.backends.cpu.sequences import Sequences
from zse.backends.cpu.step import Step
from zse.backends.cpu.supported import check_supported, warn_of_size
from zse.backends.cpu.texts import TextStep, computed_texts, text_program
from zse.backends.cpu.threads import choose_threads
from zse.backends.cpu.token_states import given_states, hand_out, states_of
from zse.backends.cpu.weights import Weights
from zse.backends.kv_groups import groups_of
from zse.backends.ranks import StageEdges
from zse.backends.resident import ROWS_AT_ONCE, is_read_whole
from zse.backends.single import all_single, can_be_single
from zse.backends.states import check_states
from zse.backends.types import DeviceUsed, FinishedStep, accepted
from zse.device.probe import probe
from zse.kernels.native.codes import Register
from zse.kernels.native.library import load, spin_nanoseconds
from zse.stream.opening import source_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.backends.adapters import AdapterWeights
    from zse.backends.cpu.kept import SequenceMemory
    from zse.backends.cpu.program import Program
    from zse.backends.cpu.weights import Tensors
    from zse.backends.kv_groups import KVGroups
    from zse.backends.kv_images import KVImages
    from zse.backends.operations import Forward, PendingStep
    from zse.backends.ranks import RankPart
    from zse.backends.types import Answers, LogitRows, SampledToken, StepBatch
    from zse.device.probe import DeviceInfo
    from zse.format.reader import ZSEReader
    from zse.models.spec import HeadSpec, ModelSpec, Pooling
    from zse.options import LoadOptions
    from zse.stream.fit import WindowPlan


class CPUBackend(Recorder):
    """See ``zse.backends.operations.Backend``."""

    looks_ahead = False
    leaves_states = True
    _stream: Stream | None = None
    """What comes from layers that are computed elsewhere; None: all of them are here."""

    def __init__(
        self,
        reader: ZSEReader,
        spec: ModelSpec,
        options: LoadOptions,
        part: RankPart | None = None,
    ) -> None:
        check_supported(spec)
        machine = probe() if part is None else probe().divided(part.num_processes)
        warn_of_size(reader, machine)
        self._library = library = load(options.device.cpu_instructions)
        tensors: Tensors = reader
        if part is not None:
            tensors = ShareOfFile(reader, part.cuts, library)
        self._weights = Weights(tensors, library)
        super().__init__(
            self._weights,
            spec,
            exact=options.device.exact_activations,
            max_rank=options.lora.max_rank,
            kv_dtype=options.cache.kv_dtype,
        )
        self._spec = spec
        self._weight_bytes = self._count_weight_bytes(tensors)
        self._all_single = all_single(spec, options)
        self.computes_alone = can_be_single(spec)
        """Whether a chunk of any kind can be computed token by token."""
        self._sequences = sequences = Sequences(
            spec,
            options,
            machine,
            self._choose_groups(options),
            self.kv_dtypes,
            None if part is None else part.link,
        )
        self._memory = sequences.memory
        self.states, self.windows = sequences.states, sequences.memory.blocks.windows
        self.block_size, self.num_blocks = sequences.block_size, sequences.num_blocks
        self._registers = Registers(spec, low_rank_columns=self._low_rank.columns)
        self._programs: dict[tuple[Forward, bool], Program] = {}
        """By passes, and whether states of tokens are wanted of them."""
        self._adapting: dict[tuple[Forward, bool], Program] | None = None
        """Programs of steps with adapters; None: no adapter was ever bound."""
        threads = self._choose_threads(options, machine, part)
        self._pool = library.start_pool(
            threads, spin_nanoseconds=spin_nanoseconds(machine, threads)
        )
        self._meetings: Meetings | None = None
        self._flow: StreamFlow | None = None
        self._later: deque[LaterStep] = deque()
        """Steps of rank 0 of several stages, which are computed when they are waited for."""
        self._is_later = part is not None and part.edges is not None and part.crew is not None
        self._pages: PageArrival | None = None
        if part is None:
            self._begin_to_bring(reader, options, machine)
        else:
            self._join(part, spin_nanoseconds(probe(), threads * part.num_processes))
        self.device = DeviceUsed(
            name="cpu",
            hardware=machine.cpu_model,
            instructions=library.instructions,
            threads=threads,
        )

    def _choose_threads(
        self, options: LoadOptions, machine: DeviceInfo, part: RankPart | None
    ) -> int:
        """Return how many threads compute; of those that were asked for each rank has its share."""
        threads = options.device.threads or choose_threads(machine, self._weight_bytes)
        if part is not None and options.device.threads:
            return max(1, threads // part.num_processes)
        return threads

    def _begin_to_bring(self, reader: ZSEReader, options: LoadOptions, machine: DeviceInfo) -> None:
        """Have weights come step by step where they are more than the memory; else map them all."""
        plan = window_of(reader, self._spec, options.stream, machine)
        if plan is None:
            self._pages = self._begin_arrival(machine.available_memory_bytes)
        else:
            self.pace(self._begin_pacing(reader, plan, machine))

    def _join(self, part: RankPart, spin: int) -> None:
        """Have steps meet those of the other ranks, and the stream go on, from now on."""
        if isinstance(part.edges, StageEdges):
            width = self._spec.hidden_size
            self._flow = StreamFlow(part.edges, width, self._library, spin_nanoseconds=spin)
        if part.is_divided:
            self._meetings = Meetings(
                part.link,
                self._spec,
                rows=ROWS_AT_ONCE,
                wanted=self._registers.most_wanted,
                spin_nanoseconds=spin,
            )
            self._registers.step.ranks = self._meetings.pointer

    def _count_weight_bytes(self, tensors: Tensors) -> int:
        """Return the bytes that steps read of a file, or of a share of it."""
        return sum(
            tensors.entry(weight.name).length_bytes
            for weight in self._spec.weights()
            if is_read_whole(self._spec, weight.name)
        )

    def _choose_groups(self, options: LoadOptions) -> KVGroups:
        return groups_of(self._spec, options)

    def _begin_arrival(self, room_bytes: int) -> PageArrival | None:
        """Have the weights mapped while a start goes on, unless that would drive others out."""
        if self._weight_bytes > room_bytes:
            return None
        return PageArrival(*self._weights.span(without=self._spec.gathered))

    def _begin_pacing(
        self, reader: ZSEReader, plan: WindowPlan, machine: DeviceInfo
    ) -> PacedWeights:
        say(plan)
        is_larger = self._weight_bytes > machine.available_memory_bytes
        return PacedWeights(reader, source_of(reader), plan, drops_cache=is_larger)

    # --- the pass ------------------------------------------------------------------------------

    def submit(self, batch: StepBatch, forward: Forward) -> PendingStep:
        """Compute a step; rank 0 of several stages does when it is waited for.

        Until then other steps are sent on their way, which the stages before it compute.
        """
        compute = partial(self._compute, batch, forward)
        if not self._is_later:
            return FinishedStep(answers=compute())
        later = LaterStep(compute, self._later)
        self._later.append(later)
        return later

    def guess(self, batch: StepBatch, forward: Forward) -> Answers:
        """Compute another pass than the model's own: see ``Guesser``."""
        return self.submit(batch, forward).wait()

    def _compute(self, batch: StepBatch, forward: Forward) -> Answers:
        check_states(batch.chunks, self.states)
        step, states = self.begin(batch), self._memory.states
        programs = self._programs
        if step.adapters is not None:
            assert self._adapting is not None
            programs = self._adapting
        program = programs.get((forward, step.leaves_states))
        if program is None:
            program = programs[forward, step.leaves_states] = forward(self, step)
        for chunk in batch.chunks:
            if chunk.restored_from is not None:
                states.copy(self.states.slot_of(chunk.restored_from), chunk.sequence_slot)
        if self._spec.place.is_last:
            self._stream = self._arriving(step)
            answers = self._answered(program, step)
            if self._stream is not None:
                hand_out(step, self._stream)
        else:
            self.pass_on(step, program)
            answers = [()] * len(batch.chunks)
        for chunk in batch.chunks:
            if chunk.saved_to is not None:
                states.copy(chunk.sequence_slot, self.states.slot_of(chunk.saved_to))
        return answers

    def _answered(self, program: Program, step: Step) -> Answers:
        answers: Answers = ()
        try:
            answers = self._sample(program, step)
        finally:
            step.settle_states(answers)
        return answers

    def _arriving(self, step: Step) -> Stream | None:
        """Wait for the stream that layers before these leave; or return the tokens' states."""
        if self._flow is None:
            spec = self._spec
            if spec.medusa:
                return Stream(spec.hidden_size, given_states(step, spec.hidden_size), None)
            is_joined = spec.embedding.join is not None
            return states_of(step, spec.hidden_size, is_joined=is_joined)
        return Stream(self._spec.hidden_size, self._flow.receive(len(step.tokens)), None)

    def pass_on(self, step: Step, program: Program) -> None:
        """Compute a step's layers and send the stream behind them to the next stage."""
        width, count = self._spec.hidden_size, len(step.tokens)
        assert self._flow is not None
        outgoing = memoryview(bytearray(4 * count * width)).cast("f")
        stream = Stream(width, self._flow.receive(count), outgoing)
        for _ in computed(self._pool, self._registers, program, step, [], stream=stream):
            pass
        self._check_ranks()
        self._flow.send(outgoing)

    def begin(self, batch: StepBatch, cache: SequenceMemory | None = None) -> Step:
        if cache is not None:
            while self._later:
                self._later.popleft().compute()  # what was sent before comes before
        kind = TextStep if self._spec.is_encoder else Step
        memory, vocab_size = cache or self._memory, self._spec.vocab_size
        step = kind(batch, *memory, vocab_size, all_single=self._all_single)
        if self._adapting is not None:
            step.find_adapters()
        return step

    def pool(self, step: TextStep, _residual: Register, pooling: Pooling) -> list[list[float]]:
        head, width = self._spec.head, self._spec.hidden_size
        program = text_program(
            self._recording, self.ends, head, pooling, width=width, stretches=self._stretches()
        )
        if head.classifier is not None:
            width = head.classifier.output.weight.shape[0]
        return [
            list(self._registers.row(Register.ADDED, index, width))
            for count in computed_texts(self._pool, self._registers, program, step)
            for index in range(count)
        ]

    def lm_head(self, step: Step, _residual: Register, head: HeadSpec) -> Logits:
        program = self.with_head(head)
        counts = [one.wants_logits * len(one.token_ids) for one in step.batch.chunks]
        wanted = step.last_rows(counts)
        length_bytes = 4 * len(wanted) * self._spec.vocab_size
        logits = Logits(Pages(length_bytes), length_bytes, step.batch_order(counts))
        for _ in computed(
            self._pool,
            self._registers,
            program,
            step,
            wanted,
            logits=logits.pages.address,
            at_once=0 if self._meetings is None else self._registers.most_wanted,
            stream=self._arriving(step),
        ):
            pass  # all of them stay
        self._registers.put_logits()
        self._check_ranks()
        return logits

    def _sample(self, program: Program, step: Step) -> Answers:
        batch = step.batch
        wanted = step.last_rows([len(rows) for rows in batch.sampling])
        if self._meetings is not None and not self._meetings.is_first:
            return self._compute_part(program, step, wanted)
        choices = Choices(batch, step.order, self._spec.vocab_size)
        tokens: list[SampledToken] = []
        for first, count in computed(
            self._pool,
            self._registers,
            program,
            step,
            wanted,
            sampling=choices.address,
            stream=self._stream,
        ):
            for index in range(first, first + count):
                token = choices.answer(index)
                if choices.rows[index].wants_hidden:
                    token = token._replace(hidden=self._hidden(index - first))
                tokens.append(token)
        self._check_ranks()
        answers: list[Sequence[SampledToken]] = [()] * len(batch.chunks)
        end = 0
        for index in step.order:
            first, end = end, end + len(batch.sampling[index])
            answers[index] = accepted(batch.chunks[index], tokens[first:end])
        return answers

    def _compute_part(self, program: Program, step: Step, wanted: list[int]) -> Answers:
        """Compute what another rank's tokens are chosen from."""
        for _ in computed(self._pool, self._registers, program, step, wanted, stream=self._stream):
            pass
        self._check_ranks()
        return [()] * len(step.batch.chunks)

    def _check_ranks(self) -> None:
        if self._meetings is not None:
            self._meetings.check()

    def _hidden(self, index: int) -> list[float]:
        """Return the normed state of a wanted row, which the head's scale has multiplied."""
        scale = self._spec.head.logit_scale
        return [number / scale for number in self._registers.normed_row(index)]

    # --- memory --------------------------------------------------------------------------------

    def new_cache(self, num_blocks: int) -> SequenceMemory:
        return self._sequences.memory_of_one(num_blocks)

    def release_cache(self, cache: SequenceMemory) -> None:
        cache.blocks.close()
        cache.states.close()

    def bind_adapter(self, adapter: AdapterWeights) -> NativeAdapter:
        bound = NativeAdapter(adapter, self._adapted, self._library)
        if self._adapting is None:
            self._adapting = {}
        return bound

    @property
    def kv_images(self) -> KVImages:
        return self._sequences.images.form

    def read_blocks(self, group: int, blocks: Sequence[int], image: memoryview) -> None:
        self._sequences.images.read(group, blocks, image)

    def write_blocks(
        self, group: int, blocks: Sequence[int], image: memoryview, *, first: int = 0
    ) -> None:
        self._sequences.images.write(group, blocks, image, first)

    def rest(self, free_blocks: Sequence[Sequence[int]]) -> None:
        self._registers.rest()
        self._memory.blocks.empty(free_blocks)

    def join_rows(self, parts: Sequence[Logits]) -> LogitRows:
        return [row for part in parts for row in part.rows(self._spec.vocab_size)]

    def memory_bytes(self) -> dict[str, int]:
        return {"weights": self._weight_bytes, **self._sequences.length_bytes()}

    def close(self) -> None:
        if self._pages is not None:
            self._pages.close()
        if self._paced is not None:
            self._paced.close()
        self.drop()
        self._programs.clear()
        self._adapting = None
        self._weights.clear()
        self.release_cache(self._memory)
        self._pool.close()
