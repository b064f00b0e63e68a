"""The quantized matrices of a checkpoint, under the names of the model that was not quantized."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import CheckpointError
from zse.quantize.formats.matrix import KeptMatrix, Part
from zse.quantize.safetensors_file import StoredTensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from zse.models.weights import Packing
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

    def packing(self, name: str) -> Packing | None:
        """Return the scheme that holds a matrix's own codes; None: it is to be widened."""
        matrix = self._matrices.get(name)
        return matrix.packing if isinstance(matrix, KeptMatrix) else None

    def read_packed(self, name: str, start: int, stop: int) -> dict[str, torch.Tensor]:
        """Return the parts of rows as a file has them, where there is a packing."""
        matrix = self._matrices[name]
        assert isinstance(matrix, KeptMatrix)
        return matrix.read_packed(start, stop)

    def read_rows(self, tensor: StoredTensor, start: int, stop: int) -> torch.Tensor:
        """Return rows of a matrix as float32."""
        return self._matrices[tensor.name].read_rows(start, stop)


def quantized_in(
    tensors: Mapping[str, tuple[TensorReader, StoredTensor]], weights: WeightFormat
) -> tuple[QuantizedMatrices, set[str]]:
    """Return the quantized matrices of a checkpoint, and the tensors that stand for them.

    Raises:
        CheckpointError: A tensor is missing, or does not fit those beside it.
        UnsupportedModelError: A dtype or a group size is not known.
    """
    used: set[str] = set()
    matrices, length_bytes = {}, {}
    for name, (_, tensor) in tensors.items():
        if (form := weights.form_of(tensor)) is None:
            continue
        base = name.removesuffix(form.required[0])
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
    used |= {name for name in tensors if name.endswith(weights.ignored)}
    return QuantizedMatrices(matrices, length_bytes), used
