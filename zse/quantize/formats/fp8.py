"""FP8 (E4M3) with a scale for each block, output or matrix: read as float32, then stored anew.

``quant_method`` is ``fp8`` for blocks of 128 by 128, as DeepSeek and Qwen ship them, and for one
scale a matrix; checkpoints of ``compressed-tensors`` have all three. Activations that were to be
quantized too (``input_scale``) are computed in more bits here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from zse.errors import CheckpointError, UnsupportedModelError
from zse.quantize.formats.matrix import refuse_unless

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.quantize.formats.matrix import Part
    from zse.quantize.safetensors_file import StoredTensor

DTYPE = "F8_E4M3"
_SCALES = ("F32", "BF16", "F16")
_LARGEST_BLOCK = 65536


class FP8:
    """Matrices of E4M3 and their scales.

    Args:
        config: ``quantization_config``.

    Raises:
        UnsupportedModelError: Its numbers are of another kind.
    """

    title = "FP8"
    optional: tuple[str, ...] = ()
    ignored: tuple[str, ...] = (".input_scale", ".k_scale", ".v_scale")
    nearest = "int8"

    def __init__(self, config: Mapping[str, Any]) -> None:
        refuse_unless(config, "fmt", "e4m3")
        self._block = block_of(config.get("weight_block_size"))
        scale = "weight_scale_inv" if self._block else "weight_scale"
        self.required: tuple[str, ...] = ("weight", scale)

    def form_of(self, tensor: StoredTensor) -> FP8 | None:
        return self if tensor.dtype == DTYPE and tensor.name.endswith(".weight") else None

    def matrix(self, parts: Mapping[str, Part]) -> FP8Matrix:
        weight, scale = (parts[ending] for ending in self.required)
        return FP8Matrix(weight, scale, self._block)


class FP8Matrix:
    """A matrix [N, K] of E4M3.

    Args:
        weight: Its numbers.
        scale: What they are multiplied by: for each block, each row, or all.
        block: Rows and columns of a block; None where there are none.

    Raises:
        CheckpointError: The shapes do not fit together.
        UnsupportedModelError: The scales are of another type.
    """

    def __init__(self, weight: Part, scale: Part, block: tuple[int, int] | None) -> None:
        found = weight.tensor.shape
        if len(found) != 2 or 0 in found:
            raise CheckpointError(
                f"tensor {weight.tensor.name} has shape {list(found)}; expected a matrix of FP8"
            )
        self._weight, self._scale = weight, scale
        self.shape = rows, columns = found[0], found[1]
        if block is None:
            scale.expect(((), (1,), (1, 1), (rows,), (rows, 1)), *_SCALES)
            # All rows are one block where there is one scale.
            self._block = (1 if scale.tensor.num_rows == rows else rows, columns)
        else:
            scale.expect(((-(-rows // block[0]), -(-columns // block[1])),), *_SCALES)
            self._block = block

    def read_rows(self, start: int, stop: int) -> torch.Tensor:
        """Return rows as float32: the number times its scale."""
        high, wide = self._block
        first, end = start // high, -(-stop // high)
        scales = self._scale.read(first, end).float().view(end - first, -1)
        of_rows = scales.index_select(0, torch.arange(start, stop) // high - first)
        spread = of_rows.index_select(1, torch.arange(self.shape[1]) // wide)
        return spread.mul_(self._weight.read(start, stop).float())


def block_of(found: Any) -> tuple[int, int] | None:
    """Return rows and columns of a block, as ``quantization_config`` says them; None for none.

    Raises:
        UnsupportedModelError: They are no two whole numbers.
    """
    if found is None:
        return None
    is_pair = isinstance(found, list) and len(found) == 2
    if not is_pair or any(type(n) is not int or not 0 < n <= _LARGEST_BLOCK for n in found):
        raise UnsupportedModelError(
            f"quantization_config: blocks are {str(found)[:100]}; expected two whole numbers"
        )
    return found[0], found[1]
