"""A checkpoint's weights as operations use them, one layer's matrices in memory at a time."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from zse.backends.torch.linear import DenseLinear
from zse.backends.torch.weights import BoundWeights
from zse.models.spec import weights_of
from zse.quantize.calibrate.moments import Moments
from zse.quantize.place_of_work import CPU, made_on
from zse.quantize.source_rows import read_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from zse.models.layer_spec import LayerSpec
    from zse.models.spec import ModelSpec
    from zse.models.weights import Source, WeightSpec
    from zse.quantize.checkpoint import Checkpoint

MOST_PRODUCT_BYTES = 2 << 30
"""Of a stack's products of inputs: where they take more, squares alone are kept."""


class ObservedMatrix:
    """A matrix that is there while its layer runs, and counts what it is given if asked to."""

    def __init__(self) -> None:
        self.dense: DenseLinear | None = None
        self.moments: Moments | None = None

    def each_row(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.all_rows(inputs)

    def all_rows(self, inputs: torch.Tensor) -> torch.Tensor:
        assert self.dense is not None  # its layer is entered
        if self.moments is not None:
            self.moments.add(inputs)
        return self.dense.all_rows(inputs)


class CheckpointWeights(BoundWeights):
    """The weights of a checkpoint: vectors at once, the matrices of a layer while it runs.

    Args:
        checkpoint: Where they are.
        spec: The model.
        device: Where they are multiplied.

    Raises:
        CheckpointError: A file is shorter than its header says.
    """

    def __init__(self, checkpoint: Checkpoint, spec: ModelSpec, device: torch.device) -> None:
        super().__init__(self._rows_of)
        self._checkpoint, self._device = checkpoint, device
        self._table = spec.embedding.weight
        self._matrices: dict[str, list[ObservedMatrix]] = {}
        tables = {self._table.name, spec.head.weight.name if spec.head.weight else ""}
        for weight in spec.weights():
            if weight.name in tables:
                continue
            if len(weight.shape) == 1 or weight.kind == "position":
                self._vectors[weight.name] = _whole(checkpoint, weight, device)
                continue
            matrices = [ObservedMatrix() for _ in range(weight.members)]
            self._matrices[weight.name] = matrices
            if weight.kind == "experts":
                self._stacks[weight.name] = matrices
            else:
                self._linears[weight.name] = matrices[0]
        self._bind_embedding(spec.embedding)

    def head(self, _spec: ModelSpec) -> None:
        """Return nothing: texts end before the head."""

    @contextmanager
    def observed(
        self, layer: LayerSpec, *, is_counting: bool, num_tokens: int
    ) -> Iterator[Mapping[str, Sequence[Moments]]]:
        """Have a layer's matrices in memory, and yield what each is given, by name.

        A stack of matrices has moments for each. ``num_tokens`` are expected.
        """
        found: dict[str, list[Moments]] = {}
        for weight in weights_of(layer):
            if (matrices := self._matrices.get(weight.name)) is None:
                continue
            whole = _whole(self._checkpoint, weight, self._device)
            rows = whole.view(len(matrices), -1, weight.shape[1])
            for matrix, own in zip(matrices, rows, strict=True):
                matrix.dense = DenseLinear(own)
                if is_counting and weight.is_product:
                    is_full = _keeps_products(weight, layer, num_tokens)
                    matrix.moments = Moments(weight.shape[1], is_full=is_full, device=self._device)
                    found.setdefault(weight.name, []).append(matrix.moments)
        try:
            yield found
        finally:
            for weight in weights_of(layer):
                for matrix in self._matrices.get(weight.name, ()):
                    matrix.dense = matrix.moments = None

    def _rows_of(self, token_ids: torch.Tensor) -> torch.Tensor:
        source = self._table.sources[0]
        different, places = torch.unique(token_ids, return_inverse=True)
        rows = [
            read_on_cpu(self._checkpoint, self._table, source, index, index + 1)
            for index in different.tolist()
        ]
        return torch.cat(rows).to(places.device).float()[places]


def _whole(checkpoint: Checkpoint, weight: WeightSpec, device: torch.device) -> torch.Tensor:
    """Return all of a weight as float32."""
    pieces = [
        read_on_cpu(checkpoint, weight, piece, 0, piece.rows).to(device).float()
        for piece in weight.pieces()
    ]
    return torch.cat(pieces).view(weight.shape)


def read_on_cpu(
    checkpoint: Checkpoint, weight: WeightSpec, source: Source, start: int, stop: int
) -> torch.Tensor:
    """Return rows, as ``read_rows`` does: it unpacks on the CPUs whatever computes around it."""
    with made_on(CPU):
        return read_rows(checkpoint, weight, source, start, stop)


def _keeps_products(weight: WeightSpec, layer: LayerSpec, num_tokens: int) -> bool:
    """Whether products of inputs are worth their memory: enough tokens come to each matrix."""
    columns, experts = weight.shape[1], layer.experts
    if weight.kind != "experts" or experts is None:
        return True
    tokens = num_tokens * experts.experts_per_token / experts.num_experts
    return tokens >= columns / 2 and weight.members * columns**2 * 4 <= MOST_PRODUCT_BYTES
