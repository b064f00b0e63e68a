"""A text on its way through a model: all of it through one layer, then through the next."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

import torch

from zse.backends.operations import is_attention
from zse.backends.states import StateLayout
from zse.backends.torch.delta import States
from zse.backends.torch.kept import KeptRows
from zse.backends.torch.operations import TorchOperations
from zse.backends.torch.step import PagedMemory, StepMemory, build_step
from zse.backends.types import SequenceChunk, StepBatch
from zse.models.decoder import run_layer
from zse.quantize.calibrate.weights import CheckpointWeights
from zse.quantize.place_of_work import CPU, made_on

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from zse.backends.torch.step import Step
    from zse.models.layer_spec import LayerSpec
    from zse.quantize.calibrate.moments import Moments
    from zse.quantize.checkpoint import Checkpoint

_STEP_TOKENS = 2048
"""Tokens that go through a layer together."""
_MOST_HELD_BYTES = 1 << 30
"""Of states in memory; more of them lie in a file."""
_NO_STATES = StateLayout(shapes={}, num_sequences=0, num_checkpoints=0)


class Walk:
    """Sequences of tokens between two layers of a checkpoint's model.

    Args:
        checkpoint: Whose weights; ``check_walkable`` has been asked.
        sequences: Token ids of each.
        device: Where it computes.
    """

    def __init__(
        self, checkpoint: Checkpoint, sequences: Sequence[Sequence[int]], device: torch.device = CPU
    ) -> None:
        spec = checkpoint.spec
        self._device = device
        self.num_tokens = sum(map(len, sequences))
        self._num_layers = len(spec.layers)
        self._block_size = max(map(len, sequences))
        with made_on(device):
            self._weights = CheckpointWeights(checkpoint, spec, device)
            self._operations = TorchOperations(self._weights, spec)
            self._steps = [self._step_of(batch, spec.vocab_size) for batch in _batches(sequences)]
            self.states = _states(self.num_tokens, spec.hidden_size, device)
            """float32 [tokens, hidden]: the residual streams where all sequences are now."""
            for rows, step in self._parts():
                embedding = self._operations.ends.embedding
                rows.copy_(self._operations.embed(step, embedding, spec.embedding.scale))

    def through(
        self,
        layer: LayerSpec,
        *,
        is_counting: bool,
        size_bytes: int,
        on_bytes: Callable[[int], None],
    ) -> Mapping[str, Sequence[Moments]]:
        """Take all tokens through the next layer.

        Args:
            layer: The first one at first, then the one after.
            is_counting: Whether to count what its matrices are given.
            size_bytes: What the layer counts as progress.
            on_bytes: Called with what was done of that since.

        Returns:
            Of each matrix by name the moments of its inputs; of a stack, those of each.
        """
        ops, done = self._operations, 0
        with (
            made_on(self._device),
            self._weights.observed(
                layer, is_counting=is_counting, num_tokens=self.num_tokens
            ) as found,
        ):
            for rows, step in self._parts():
                step.cache.layers[layer.index] = self._cache(layer, step)
                with ops.layer(layer) as handles:
                    rows.copy_(run_layer(ops, layer, handles, step, rows, None))
                step.cache.layers.clear()
                step.masks.clear()
                before, done = done, done + size_bytes * rows.shape[0]
                on_bytes(done // self.num_tokens - before // self.num_tokens)
        return found

    def _parts(self) -> list[tuple[torch.Tensor, Step]]:
        sizes = [step.token_ids.shape[0] for step in self._steps]
        return list(zip(torch.split(self.states, sizes), self._steps, strict=True))

    def _step_of(self, batch: Sequence[Sequence[int]], vocab_size: int) -> Step:
        chunks = [
            SequenceChunk(slot, list(ids), 0, [slot], "prefill") for slot, ids in enumerate(batch)
        ]
        layers = range(self._num_layers)
        memory = StepMemory(
            PagedMemory(
                block_size=self._block_size,
                num_blocks=len(batch),
                windows=(),
                layers={},
                group_of=dict.fromkeys(layers, 0),
            ),
            States(_NO_STATES, lambda shape, dtype: torch.zeros(shape, dtype=dtype)),
        )
        step = build_step(StepBatch(chunks=chunks, sampling=[()] * len(chunks)), memory, vocab_size)
        self._operations.turn(step)
        return step

    def _cache(self, layer: LayerSpec, step: Step) -> KeptRows:
        """Return memory for the keys and values of a step's sequences."""
        mixer = layer.mixer
        assert is_attention(mixer)  # ``check_walkable`` has refused others
        shape = (step.cache.num_blocks, self._block_size, mixer.cached_rows, mixer.head_dim)
        return KeptRows(numbers=torch.zeros(shape))


def _batches(sequences: Sequence[Sequence[int]]) -> list[list[Sequence[int]]]:
    batches: list[list[Sequence[int]]] = [[]]
    for ids in sequences:
        if batches[-1] and sum(map(len, batches[-1])) + len(ids) > _STEP_TOKENS:
            batches.append([])
        batches[-1].append(ids)
    return batches


def _states(num_tokens: int, hidden_size: int, device: torch.device) -> torch.Tensor:
    """Return room for float32 [tokens, hidden]: in memory, or in a file that nobody else sees."""
    count = num_tokens * hidden_size
    if device.type != "cpu" or count * 4 <= _MOST_HELD_BYTES:
        return torch.empty(num_tokens, hidden_size, device=device)
    with tempfile.NamedTemporaryFile(prefix="zse-calibrate-") as file:
        mapped = torch.from_file(file.name, shared=True, size=count, dtype=torch.float32)
    return mapped.view(num_tokens, hidden_size)
