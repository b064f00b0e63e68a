"""A model that runs: the decoder, a backend's operations and a KV pool."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from zse.backends import ModelLoad, create_backend
from zse.backends.abilities import (
    FillsDevice,
    Guesser,
    Pooler,
    PreparesIdle,
    TimesSteps,
)
from zse.backends.types import LOGITS_ROWS, FinishedStep, StepBatch
from zse.device.open import runs_on_gpu
from zse.device.phases import Phases, no_phases
from zse.errors import (
    ContextLengthError,
    FormatError,
    InvalidParameterError,
    UnsupportedModelError,
)
from zse.format import ZSEReader
from zse.models.decoder import forward_of
from zse.models.families import read_header
from zse.models.runner_blocks import RunnerBlocks
from zse.models.runner_weights import RunnerWeights
from zse.option import with_values

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from zse.backends.adapters import AdapterWeights
    from zse.backends.gpu.arrival import Arrival
    from zse.backends.gpu.streamed_arrival import StreamedArrival
    from zse.backends.handles import Handle
    from zse.backends.operations import Backend, Forward, PendingStep
    from zse.backends.ranks import RankPart
    from zse.backends.types import Answers, DeviceUsed, LogitRows
    from zse.format.model_file import ModelFile
    from zse.models.spec import ModelSpec, Pooling
    from zse.options import LoadOptions

_LOG = logging.getLogger("zse.models")
_CPU_TOKENS_BESIDE, _GPU_TOKENS_BESIDE = 256, 2048
"""A prompt is in pieces that stages share: of as many rows as are computed well at once."""


class ModelRunner(RunnerBlocks, RunnerWeights):
    """Executes steps of one model. Not reentrant: a lock keeps steps apart.

    Args:
        backend: Its weights and pool on a device.
        spec: The model.
        part: What the backend computes of it, where it is one of several ranks.
        owned: What is closed with the runner: the backend, and the file where it is not another's.
        max_position: Longest sequence accepted, in tokens.
    """

    def __init__(
        self,
        backend: Backend,
        spec: ModelSpec,
        part: RankPart | None = None,
        *,
        owned: ExitStack,
        max_position: int,
    ) -> None:
        self.spec = spec
        self._computed = spec if part is None else part.spec.within(max_position)
        self._crew = None if part is None else part.crew
        edges = None if part is None else part.edges
        self._num_stages = 1 if edges is None else edges.num_stages
        self.max_position = max_position
        self.vocab_size = spec.vocab_size
        self.is_encoder = spec.is_encoder
        self.num_blocks = backend.num_blocks
        self.block_size = backend.block_size
        self.windows = backend.windows
        self.device: DeviceUsed = backend.device
        self._owned = owned
        self._backend = backend
        self._forward = forward_of(self._computed)
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def steps_in_flight(self) -> int:
        """Steps of different sequences that there should be at once; 1: as ``looks_ahead`` says."""
        return self._num_stages

    @property
    def tokens_beside(self) -> int:
        """Tokens of a step at most that others are in flight beside, or answers: read well."""
        return _GPU_TOKENS_BESIDE if runs_on_gpu(self.device.name) else _CPU_TOKENS_BESIDE

    def filled_rows(self, most_rows: int) -> int:
        """Return how many rows a step with prompts best has, of so many that it may have."""
        backend = self._backend
        return backend.filled_rows(most_rows) if isinstance(backend, FillsDevice) else most_rows

    @property
    def looks_ahead(self) -> bool:
        return self._backend.looks_ahead

    @property
    def can_compute_alone(self) -> bool:
        """Whether single sequences can have bits that nobody beside them changes."""
        return self._crew is None and getattr(self._backend, "computes_alone", False)

    @property
    def makes_guesses(self) -> bool:
        """Whether other passes over the same blocks are made: see ``guess``."""
        return self._crew is None and isinstance(self._backend, Guesser)

    @property
    def leaves_states(self) -> bool:
        """Whether steps leave states of tokens: see ``SequenceChunk.states_to``."""
        return self._crew is None and getattr(self._backend, "leaves_states", False)

    @property
    def most_sequences(self) -> int | None:
        """Sequences that there are states for; None where sequences have none."""
        states = self._backend.states
        return states.num_sequences if states.shapes else None

    def prepare_idle(self) -> bool:
        """Make one step ready that may come, as nobody asks anything; whether there was one."""
        backend = self._backend
        if not isinstance(backend, PreparesIdle):
            return False
        with self._lock:
            return backend.prepare_idle(self._forward)

    def time_steps(self) -> None:
        """Have steps say when the device worked at them, where it can tell."""
        if isinstance(self._backend, TimesSteps):
            self._backend.time_steps()

    def submit(self, batch: StepBatch) -> PendingStep:
        """Hand one step to the device: write the chunks' KV and sample where a row asks for it.

        Raises:
            EngineError: A chunk is empty, names an unknown token or lacks blocks.
        """
        if not batch.chunks:
            return FinishedStep(answers=[])
        self._is_asked = True
        with self._lock:
            if self._crew is not None:
                batch = self._crew.submit(batch)
            return self._backend.submit(batch, self._forward)

    def execute(self, batch: StepBatch) -> Answers:
        """Compute one step and wait for the tokens that follow each chunk; fails as ``submit``."""
        return self.submit(batch).wait()

    def guess(self, batch: StepBatch, forward: Forward) -> Answers:
        """Compute another pass over the model's blocks, and wait: see ``Guesser``."""
        assert isinstance(self._backend, Guesser)
        with self._lock:
            return self._backend.guess(batch, forward)

    def bind_adapter(self, adapter: AdapterWeights) -> Handle:
        """Return an adapter as requests name it; safe while steps run.

        Raises:
            LoRAError: A number in it is not finite.
            UnsupportedModelError: This device adds no adapters.
        """
        if self._crew is not None:
            raise UnsupportedModelError(
                f"the adapter '{adapter.name}' cannot be added by several ranks",
                hint="Merge it when the model is converted, or leave --tensor-parallel out.",
            )
        return self._backend.bind_adapter(adapter)

    def logits(
        self,
        token_ids: Sequence[int],
        *,
        chunk_tokens: int = LOGITS_ROWS,
        adapter: Handle | None = None,
    ) -> LogitRows:
        """Return float32 logits of one sequence, a row a token, computed outside the KV pool.

        Args:
            token_ids: The sequence.
            chunk_tokens: Tokens of a step. With 1 every token takes the way of a decoded one.
            adapter: What is added to the model's matrices, of ``bind_adapter``.

        Raises:
            InvalidParameterError: There are no tokens.
            ContextLengthError: There are more tokens than the model takes.
        """
        count = len(token_ids)
        if count == 0:
            raise InvalidParameterError("logits of no tokens were asked for", param="token_ids")
        if count > self.max_position:
            raise ContextLengthError(f"{count} tokens are more than the {self.max_position} taken")
        from zse.models.outside import logits_outside

        with self._lock:
            if self._crew is not None:
                self._crew.logits(token_ids, chunk_tokens)
            return logits_outside(self._backend, self._computed, token_ids, chunk_tokens, adapter)

    def vectors(
        self,
        texts: Sequence[Sequence[int]],
        pooling: Pooling,
        second_from: Sequence[int | None] = (),
    ) -> list[Sequence[float]]:
        """Return an encoder's vector of each text, float32, computed outside the KV pool.

        Args:
            texts: Token ids of each.
            pooling: Which states make the vector.
            second_from: Of each text the place where the second of a pair begins, or None; empty
                where no text is a pair.

        Raises:
            UnsupportedModelError: The model is no encoder, or its backend computes none.
        """
        from zse.models.outside import batches_of_texts, vectors_outside

        backend = self._backend
        if not self.spec.is_encoder or not isinstance(backend, Pooler):
            raise UnsupportedModelError("this model on this device makes no vectors of whole texts")
        types = self.spec.embedding.token_types
        if types is None or types.shape[0] <= 1:
            second_from = ()  # the model does not tell the texts of a pair apart
        found: list[Sequence[float]] = []
        for batch in batches_of_texts(texts, second_from, block_size=self.block_size):
            with self._lock:
                found += vectors_outside(backend, self.spec, batch, pooling)
        return found

    def rest(self, free_blocks: Sequence[Sequence[int]]) -> None:
        """Give back memory that no step needs, with that of blocks whose content is of no use.

        Nothing may be in flight. What is given back comes again with its use.
        """
        with self._lock:
            if self._crew is not None:
                self._crew.rest(free_blocks)
            self._backend.rest(free_blocks)

    def memory_bytes(self) -> dict[str, int]:
        return self._backend.memory_bytes()

    def owns(self, close: Callable[[], None]) -> None:
        """Have something closed with the runner, before anything else is."""
        with self._lock:
            is_closed = self._is_closed
            if not is_closed:
                self._owned.callback(close)
        if is_closed:
            close()

    def owns_file(self, reader: ModelFile) -> None:
        """Have the file closed behind everything that reads it."""
        with ExitStack() as both:
            both.callback(reader.close)
            both.push(self._owned.pop_all())
            self._owned = both.pop_all()

    def close(self) -> None:
        """Give the memory back; the runner cannot be used afterwards."""
        with self._lock:
            self._is_closed = True
            self._owned.close()


def load_runner(
    path_or_reader: str | os.PathLike[str] | ModelFile,
    options: LoadOptions,
    *,
    cache_dir: Path | None = None,
    spec: ModelSpec | None = None,
    arrival: Arrival | StreamedArrival | None = None,
    part: RankPart | None = None,
    phases: Phases = no_phases,
) -> ModelRunner:
    """Load a ``.zse`` file onto a device.

    A reader that is given stays the caller's to close; weights that are on their way to the device
    already (``arrival``) are taken over, and may be so still: see ``settle``. A ``spec`` is what
    ``spec_of`` returned for the file. With a ``part`` this process computes its share of the model,
    and other ranks theirs: each makes the same calls of its runner, in the same order.
    ``ModelLoad`` says what the rest means.

    Raises:
        FormatError: The file is damaged, or its tensors do not fit its model config.
        UnsupportedModelError: The model's family is not known.
        DeviceError: The device is unknown, absent or too small.
    """
    with ExitStack() as owned:
        if isinstance(path_or_reader, (str, os.PathLike)):
            reader: ModelFile = owned.enter_context(ZSEReader(path_or_reader))
        else:
            reader = path_or_reader
        spec = spec or spec_of(reader)
        max_position = _context_of(spec, options.batch.max_context)
        spec = spec.within(max_position)
        computed = spec if part is None else part.spec.within(max_position)
        load = ModelLoad(
            reader=reader,
            spec=computed,
            part=part,
            options=with_values(options, {"max_context": max_position}),
            forward=forward_of(computed),
            cache_dir=cache_dir,
            phases=phases,
        )
        backend = create_backend(load, arrival)
        owned.callback(backend.close)
        runner = ModelRunner(backend, spec, part, owned=owned.pop_all(), max_position=max_position)
    if arrival is None:
        with ExitStack() as undo:
            undo.callback(runner.close)
            runner.settle()
            undo.pop_all()
    return runner


def _context_of(spec: ModelSpec, wanted_tokens: int) -> int:
    """Return the longest sequence in tokens: what was asked for, up to what was trained."""
    if wanted_tokens > spec.max_position:
        _LOG.warning(
            "the context is %d tokens, as long as the model was trained for; %d were asked for",
            spec.max_position,
            wanted_tokens,
        )
    return min(wanted_tokens or spec.max_position, spec.max_position)


def spec_of(reader: ModelFile) -> ModelSpec:
    """Return what a file's header says of its model, whose tensors the file has.

    Raises:
        FormatError: A tensor that the model config calls for is missing, or of another shape.
        UnsupportedModelError: The model's family is not known.
    """
    header = reader.header.loaded()
    spec = read_header(header.model_config)
    found = {entry.name: entry.shape for entry in header.tensors}
    for weight in spec.weights():
        if weight.name not in found:
            raise FormatError(f"tensor {weight.name} is missing")
        if found[weight.name] != weight.shape:
            raise FormatError(
                f"tensor {weight.name} has shape {list(found[weight.name])}; "
                f"the model config calls for {list(weight.shape)}"
            )
    return spec
