"""The torch backend: weights and a KV pool in this process's memory, steps computed at once."""

from __future__ import annotations

import math
import mmap
from typing import TYPE_CHECKING

import torch

from zse.backends.adapters import adapted_matrices
from zse.backends.cpu.threads import choose_threads
from zse.backends.kv_dtypes import named
from zse.backends.kv_groups import groups_of
from zse.backends.kv_images import KVImages, layout_name
from zse.backends.operations import is_attention
from zse.backends.pool_size import choose_num_blocks, limited
from zse.backends.resident import kv_layer_bytes
from zse.backends.single import all_single, can_be_single
from zse.backends.states import MOST_DRAFT_STATES, StateLayout, check_states, states_of
from zse.backends.torch.adapters import BoundAdapter
from zse.backends.torch.delta import States
from zse.backends.torch.kept import kept_rows
from zse.backends.torch.operations import TorchOperations, check_supported
from zse.backends.torch.step import PagedMemory, Step, StepMemory, build_step
from zse.backends.torch.weights import Weights
from zse.backends.types import DeviceUsed, FinishedStep, logit_rows
from zse.device.probe import probe
from zse.errors import DeviceError
from zse.format.as_torch import bytes_from

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.backends.adapters import AdapterWeights
    from zse.backends.operations import Forward
    from zse.backends.torch.kept import KeptRows
    from zse.backends.types import Answers, LogitRows, StepBatch
    from zse.format.reader import ZSEReader
    from zse.models.spec import ModelSpec
    from zse.options import LoadOptions

_KV_DTYPES = {
    "auto": torch.float32,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "int8": torch.int8,
    "int4": torch.uint8,
}


class TorchBackend(TorchOperations):
    """See ``zse.backends.operations.Backend``."""

    looks_ahead = False
    leaves_states = True

    def __init__(self, reader: ZSEReader, spec: ModelSpec, options: LoadOptions) -> None:
        check_supported(spec)
        machine = probe()
        weight_bytes = sum(entry.length_bytes for entry in reader.header.tensors)
        torch.set_num_threads(options.device.threads or choose_threads(machine, weight_bytes))
        self.device = DeviceUsed(
            name="torch",
            hardware=machine.cpu_model,
            instructions=torch.backends.cpu.get_cpu_capability(),
            threads=torch.get_num_threads(),
        )
        self._spec = spec
        self._all_single = all_single(spec, options)
        self.computes_alone = can_be_single(spec)
        """Whether a chunk of any kind can be computed token by token."""
        self.block_size = options.cache.block_size
        if options.cache.kv_dtype not in _KV_DTYPES:
            raise DeviceError(
                f"the torch backend keeps no {options.cache.kv_dtype} KV cache",
                hint=f"Choose one of {', '.join(_KV_DTYPES)}.",
            )
        self._storing = {
            layer.index: layer.mixer
            for layer in spec.layers
            if is_attention(layer.mixer) and layer.mixer.kv_of_layer is None
        }
        groups = groups_of(spec, options)
        kv_dtype = "fp32" if options.cache.kv_dtype == "auto" else options.cache.kv_dtype
        self._weights = Weights(reader, spec)
        super().__init__(self._weights, spec, kv_dtype=kv_dtype)
        # An encoder's keys live for one step, and lie there as they are.
        self._dtypes = {index: self.kv_dtypes.get(index, "fp32") for index in self._storing}
        self._block_bytes = [0] * (1 + len(groups.windows))
        for index, one in self._storing.items():
            length_bytes = kv_layer_bytes(one, self.block_size, self._dtypes[index])
            self._block_bytes[groups.of_layer[index]] += length_bytes
        self._groups = groups = limited(groups, options, machine, self._block_bytes)
        self.states = states_of(spec, options, num_drafts=MOST_DRAFT_STATES)
        self.num_blocks = options.cache.num_blocks or choose_num_blocks(
            spec, options, machine, groups=groups, block_bytes=self._block_bytes
        )
        num_blocks = groups.num_blocks(self.num_blocks)
        self.windows = groups.pools_of(num_blocks)
        self._memory = self._new_memory(num_blocks, self.states)

    # --- the pass ------------------------------------------------------------------------------

    def guess(self, batch: StepBatch, forward: Forward) -> Answers:
        """Compute another pass than the model's own: see ``Guesser``."""
        return self.submit(batch, forward).wait()

    def submit(self, batch: StepBatch, forward: Forward) -> FinishedStep:
        self._claim_thread()
        check_states(batch.chunks, self.states)
        step = self.begin(batch)
        for chunk in batch.chunks:
            if chunk.restored_from is not None:
                source = self.states.slot_of(chunk.restored_from)
                self._memory.states.copy(source, chunk.sequence_slot)
        answers: Answers = ()
        try:
            answers = forward(self, step)
        finally:
            step.settle_states(answers)
        for chunk in batch.chunks:
            if chunk.saved_to is not None:
                destination = self.states.slot_of(chunk.saved_to)
                self._memory.states.copy(chunk.sequence_slot, destination)
        return FinishedStep(answers=answers)

    def _claim_thread(self) -> None:
        """Let the calling thread compute with this model's threads.

        torch gives each thread, at its first operation, as many as were asked for last, by
        whichever model or conversion of the process that was.
        """
        if torch.get_num_threads() != self.device.threads:
            torch.set_num_threads(self.device.threads)

    def begin(self, batch: StepBatch, cache: StepMemory | None = None) -> Step:
        step = build_step(
            batch, cache or self._memory, self._spec.vocab_size, all_single=self._all_single
        )
        self.turn(step)
        return step

    # --- memory --------------------------------------------------------------------------------

    def new_cache(self, num_blocks: int) -> StepMemory:
        """Return zeroed memory for one sequence, whose slot is 0."""
        states = StateLayout(shapes=self.states.shapes, num_sequences=1, num_checkpoints=0)
        return self._new_memory([num_blocks] * len(self._block_bytes), states)

    def _new_memory(self, num_blocks: Sequence[int], states: StateLayout) -> StepMemory:
        """Return zeroed memory of so many blocks for each group of layers."""
        groups, size = self._groups, self.block_size
        blocks = {}
        for index, attention in self._storing.items():
            count, kept = num_blocks[groups.of_layer[index]], attention.cached_rows
            shape = (count, size, kept, attention.head_dim)
            blocks[index] = kept_rows(shape, _KV_DTYPES[self._dtypes[index]], _untouched_zeros)
        return StepMemory(
            PagedMemory(
                block_size=size,
                num_blocks=num_blocks[0],
                windows=groups.pools_of(num_blocks),
                layers=blocks,
                group_of=groups.of_layer,
            ),
            States(states, _untouched_zeros),
        )

    def release_cache(self, cache: StepMemory) -> None:
        cache.blocks.layers.clear()
        cache.states.layers.clear()

    def bind_adapter(self, adapter: AdapterWeights) -> BoundAdapter:
        return BoundAdapter(adapter, adapted_matrices(self._spec))

    @property
    def kv_images(self) -> KVImages:
        groups, sizes = self._groups, [0] * len(self._block_bytes)
        for index, rows in self._memory.blocks.layers.items():
            sizes[groups.of_layer[index]] += sum(rows.block_bytes())
        name = named(self._dtypes)
        layout = layout_name("torch", self._spec, groups, dtype=name, block_size=self.block_size)
        return KVImages(layout=layout, block_bytes=tuple(sizes))

    def read_blocks(self, group: int, blocks: Sequence[int], image: memoryview) -> None:
        self.kv_images.check(group, len(blocks), image)
        end = 0
        for rows in self._rows_of(group):
            start, end = end, end + len(blocks) * sum(rows.block_bytes())
            image[start:end] = rows.taken(blocks)

    def write_blocks(
        self, group: int, blocks: Sequence[int], image: memoryview, *, first: int = 0
    ) -> None:
        images = self.kv_images
        images.check(group, len(blocks), image, first)
        num_blocks, end = len(image) // images.block_bytes[group], 0
        for rows in self._rows_of(group):
            start, end = end, end + num_blocks * sum(rows.block_bytes())
            rows.put(blocks, image[start:end], first)

    def _rows_of(self, group: int) -> list[KeptRows]:
        layers, of_layer = self._memory.blocks.layers, self._groups.of_layer
        return [layers[index] for index in sorted(layers) if of_layer[index] == group]

    def rest(self, free_blocks: Sequence[Sequence[int]]) -> None:
        """Keep all memory: it is the reference, and serves nobody."""

    def join_rows(self, parts: Sequence[torch.Tensor]) -> LogitRows:
        return logit_rows(bytes_from(torch.cat(list(parts))), self._spec.vocab_size)

    def memory_bytes(self) -> dict[str, int]:
        held = {
            "weights": self._weights.kept_bytes,
            "kv_cache": self._groups.length_bytes(self.num_blocks, self._block_bytes),
        }
        return held | ({"states": self.states.length_bytes} if self.states.shapes else {})

    def close(self) -> None:
        self.drop()
        self._weights.clear()
        self.release_cache(self._memory)


def _untouched_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return zeros that take no memory until they are written.

    ``torch.zeros`` writes every page. The kernel's own zero pages come one by one, as sequences
    reach them: a pool of gigabytes costs what its tokens need.
    """
    length_bytes = math.prod(shape) * dtype.itemsize
    pages = mmap.mmap(-1, length_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype).view(shape)
