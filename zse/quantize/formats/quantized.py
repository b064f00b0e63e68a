"""The quantized matrices of a checkpoint, under the names of the model that was not quantized."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import CheckpointError
from zse.quantize.formats.int4_grid import Int4Matrix
from zse.quantize.formats.matrix import Part
from zse.quantize.safetensors_file import StoredTensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from zse.quantize.formats.matrix import Matrix, WeightFormat
    from zse.quantize.place import TensorReader


class QuantizedMatrices:
    """The quantized matrices of a checkpoint, as tensors of the model that was not."""

    def __init__(self, matrices: Mapping[str, Matrix], length_bytes: Mapping[str, int]) -> None:
        self._matrices = matrices
        self.tensors = {
            name: StoredTensor(
                name=name,
                dtype="F32",
                shape=matrix.shape,
                offset_bytes=0,
                length_bytes=length_bytes[name],
            )
            for name, matrix in matrices.items()
        }

    def __contains__(self, name: str) -> bool:
        return name in self._matrices

    def int4_group(self, name: str) -> int:
        """Return the size of the groups of INT4 that hold a matrix's own codes; 0: none do."""
        matrix = self._matrices.get(name)
        return matrix.int4_group if isinstance(matrix, Int4Matrix) else 0

    def read_int4(self, name: str, start: int, stop: int) -> dict[str, torch.Tensor]:
        """Return the parts of rows as a file has them, where ``int4_group`` is not 0."""
        matrix = self._matrices[name]
        assert isinstance(matrix, Int4Matrix)
        return matrix.read_int4(start, stop)

    def read_rows(self, tensor: StoredTensor, start: int, stop: int) -> torch.Tensor:
        """Return rows of a matrix as float32."""
        return self._matrices[tensor.name].read_rows(start, stop)


def quantized_in(
    tensors: Mapping[str, tuple[TensorReader, StoredTensor]], form: WeightFormat
) -> tuple[QuantizedMatrices, set[str]]:
    """Return the quantized matrices of a checkpoint, and the tensors that stand for them.

    Raises:
        CheckpointError: A tensor is missing, or does not fit those beside it.
        UnsupportedModelError: A dtype or a group size is not known.
    """
    first, used = form.required[0], set()
    matrices, length_bytes = {}, {}
    for name in [name for name, (_, tensor) in tensors.items() if form.is_matrix(tensor)]:
        base = name.removesuffix(first)
        parts = {
            ending: Part(file=tensors[base + ending][0], tensor=tensors[base + ending][1])
            for ending in (*form.required, *form.optional)
            if base + ending in tensors
        }
        if missing := [ending for ending in form.required if ending not in parts]:
            raise CheckpointError(
                f"the checkpoint holds {name}, but no {base}{missing[0]} beside it",
                hint="Download the checkpoint again.",
            )
        matrices[f"{base}weight"] = form.matrix(parts)
        length_bytes[f"{base}weight"] = sum(part.tensor.length_bytes for part in parts.values())
        used |= {base + ending for ending in parts}
    if twice := [name for name in matrices if name in tensors and name not in used]:
        raise CheckpointError(f"the checkpoint holds {twice[0]} quantized and as it was before")
    used |= {name for name in tensors if form.ignored and name.endswith(form.ignored)}
    return QuantizedMatrices(matrices, length_bytes), used
