"""Matrices of a GGUF file whose codes a scheme of ours holds as they are, and those of other types.

Q4_0 and Q4_1 are our INT4 in groups of 32: a scale in float16, and what is added, which for Q4_0 is
eight scales and thus exact too. MXFP4 is MXFP4. No scheme of ours has the grid of the others: Q8_0
has a scale for 32 numbers, where our INT8 has one a row; K-quants have scales of scales.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from zse.errors import ConversionError
from zse.format.mxfp4 import MAX_EXPONENT
from zse.format.schemes import Scheme
from zse.models.weights import Packing
from zse.quantize.finite import check_finite
from zse.quantize.formats.matrix import KeptMatrix
from zse.quantize.gguf.types import BLOCK_TYPES
from zse.quantize.gguf.weights import GgufFile
from zse.quantize.packing import pack_int4

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    from zse.quantize.formats.matrix import Part
    from zse.quantize.gguf.header import GgufHeader
    from zse.quantize.safetensors_file import StoredTensor

_GROUP = 32
_SCHEMES: Mapping[str, Literal["int4", "mxfp4"]] = {
    "Q4_0": "int4",
    "Q4_1": "int4",
    "MXFP4": "mxfp4",
}
_QUANTIZED = frozenset(kind.name for kind in BLOCK_TYPES.values() if kind.numbers > 1)
_EIGHT_BITS = 6.0
"""Bits a number from which on INT8 is nearer than INT4."""


class GgufFormat:
    """How the matrices of a GGUF file are stored.

    Args:
        header: Of the file.
    """

    required: tuple[str, ...] = ("weight",)
    optional: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def __init__(self, header: GgufHeader) -> None:
        found = [tensor for tensor in header.tensors.values() if tensor.type.name in _QUANTIZED]
        self.title = "/".join(sorted({tensor.type.name for tensor in found}))
        bits = 8 * sum(tensor.length_bytes for tensor in found)
        numbers = sum(tensor.num_rows * tensor.shape[-1] for tensor in found)
        self.nearest = "int8" if numbers and bits / numbers >= _EIGHT_BITS else "int4"

    def form_of(self, tensor: StoredTensor) -> GgufFormat | None:
        return self if tensor.dtype in _QUANTIZED else None

    def matrix(self, parts: Mapping[str, Part]) -> GgufMatrix:
        return GgufMatrix(parts["weight"])


def gguf_format(header: GgufHeader) -> GgufFormat | None:
    """Return how matrices are stored; None where all are plain numbers."""
    found = GgufFormat(header)
    return found if found.title else None


class GgufMatrix(KeptMatrix):
    """A matrix of blocks.

    Args:
        part: Of a GGUF file.
    """

    def __init__(self, part: Part) -> None:
        assert isinstance(part.file, GgufFile)
        self._part = part
        self._file = part.file
        self.shape = part.tensor.shape[0], part.tensor.shape[1]

    @property
    def packing(self) -> Packing | None:
        scheme = _SCHEMES.get(self._part.tensor.dtype)
        return None if scheme is None else Packing(scheme=scheme, group_size=_GROUP)

    def read_rows(self, start: int, stop: int) -> torch.Tensor:
        return self._part.read(start, stop)

    def read_packed(self, start: int, stop: int) -> dict[str, torch.Tensor]:
        """Return the parts of rows, as a file has them.

        Raises:
            CheckpointError: The file is shorter than its header says.
            ConversionError: A scale or an exponent stands for no finite number.
        """
        blocks = self._file.read_blocks(self._part.tensor, start, stop)
        codes = torch.cat((blocks[..., -16:] & 15, blocks[..., -16:] >> 4), 2)
        qweight = pack_int4(codes.view(stop - start, -1), _GROUP)
        if self._part.tensor.dtype == "MXFP4":
            return {"qweight": qweight, "exponent": self._exponents(blocks[..., 0])}
        halves = blocks[..., :-16].contiguous().view(torch.float16)
        scale = halves[..., 0]
        offset = halves[..., 1] if self._part.tensor.dtype == "Q4_1" else scale * -8
        pairs = torch.stack((scale, offset), dim=2).view(torch.int32).squeeze(2)
        return check_finite({"qweight": qweight, "scale_zero": pairs}, Scheme.INT4)

    def _exponents(self, found: torch.Tensor) -> torch.Tensor:
        if int(found.max()) > MAX_EXPONENT:
            raise ConversionError(
                f"tensor {self._part.tensor.name}: exponent {int(found.max())}; expected at most "
                f"{MAX_EXPONENT}, as larger ones stand for no finite number",
                hint="Download the file again: it is damaged.",
            )
        return found.contiguous()
