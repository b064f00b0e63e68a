"""FP4 (E2M1) in groups of 16 with scales in FP8 (NVFP4), or of 32 with powers of two (MXFP4).

MXFP4 is our own scheme; NVFP4 is read as float32, then stored anew: code times scale of its group,
over the one scale of the matrix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from zse.errors import CheckpointError, ConversionError
from zse.format.as_torch import scale_of_exponent
from zse.format.mxfp4 import MAX_EXPONENT, MXFP4_CODES, MXFP4_GROUP
from zse.models.weights import Packing
from zse.quantize.formats.matrix import KeptMatrix
from zse.quantize.packing import pack_int4

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.quantize.formats.matrix import Part

_NVFP4_GROUP = 16


class FP4Matrix(KeptMatrix):
    """A matrix of E2M1, two codes a byte, the first one low.

    Args:
        parts: The tensors, by how their names end; ``weight_global_scale`` makes it NVFP4.

    Raises:
        CheckpointError: Shapes do not fit together.
        UnsupportedModelError: A dtype is not known.
    """

    def __init__(self, parts: Mapping[str, Part]) -> None:
        self._packed, self._scale = parts["weight_packed"], parts["weight_scale"]
        self._global = parts.get("weight_global_scale")
        self.group_size = MXFP4_GROUP if self._global is None else _NVFP4_GROUP
        found = self._packed.tensor
        columns = 2 * found.shape[-1] if len(found.shape) == 2 else 0
        if columns < 1 or columns % self.group_size or not found.shape[0]:
            raise CheckpointError(
                f"tensor {found.name} has shape {list(found.shape)}; expected a matrix with rows "
                f"of a multiple of {self.group_size // 2} bytes"
            )
        self.shape = found.shape[0], columns
        scales = ((found.shape[0], columns // self.group_size),)
        if self._global is None:
            self._scale.expect(scales, "U8")
            return
        self._scale.expect(scales, "F8_E4M3")
        self._global.expect(((), (1,)), "F32")
        if not float(self._global.read().view(-1)[0]) > 0:
            raise CheckpointError(f"tensor {self._global.tensor.name} is no scale above 0")

    @property
    def packing(self) -> Packing | None:
        """MXFP4, which is a scheme of ours."""
        return Packing(scheme="mxfp4", group_size=MXFP4_GROUP) if self._global is None else None

    def read_rows(self, start: int, stop: int) -> torch.Tensor:
        """Return rows as float32."""
        values = torch.tensor(MXFP4_CODES)[self._codes(start, stop)]
        if self._global is None:
            scales = scale_of_exponent(self._exponent(start, stop))
        else:
            scales = self._scale.read(start, stop).float() / self._global.read().view(1, 1)
        return values.mul_(scales.repeat_interleave(self.group_size, dim=1))

    def read_packed(self, start: int, stop: int) -> dict[str, torch.Tensor]:
        """Return the same codes and exponents.

        Raises:
            ConversionError: An exponent stands for no finite number.
        """
        codes = self._codes(start, stop).to(torch.uint8)
        return {
            "qweight": pack_int4(codes, MXFP4_GROUP),
            "exponent": self._exponent(start, stop),
        }

    def _codes(self, start: int, stop: int) -> torch.Tensor:
        pairs = self._packed.read(start, stop)
        return torch.stack((pairs & 15, pairs >> 4), dim=2).view(stop - start, -1).int()

    def _exponent(self, start: int, stop: int) -> torch.Tensor:
        found = self._scale.read(start, stop)
        if int(found.max()) > MAX_EXPONENT:
            raise ConversionError(
                f"tensor {self._scale.tensor.name}, rows {start} to {stop}: exponent "
                f"{int(found.max())}; expected at most {MAX_EXPONENT}",
                hint="Download the checkpoint again: it is damaged.",
            )
        return found
