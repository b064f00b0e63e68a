"""bitsandbytes: NF4 and FP4 with a maximum for each block, INT8 with one for each row.

Blocks of four bits run through the whole matrix, row by row, the first code of a byte high. Maxima
may be quantized themselves ("double quantization"), and are then read as float32. Where blocks end
with rows, NF4 has the codes of ours, and INT8 always has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from zse.errors import CheckpointError, UnsupportedModelError
from zse.format.nf4 import NF4_CODES
from zse.models.weights import Packing
from zse.quantize.formats.kept import int8_parts, nf4_parts, packing_in_groups
from zse.quantize.formats.matrix import KeptMatrix, refuse_unless
from zse.quantize.weight_files import parse_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.quantize.formats.matrix import MatrixForm, Part
    from zse.quantize.safetensors_file import StoredTensor

_STATE = "weight.quant_state.bitsandbytes__"
_MAX_STATE_BYTES = 4096
_MOST_NUMBERS = 2**60
_LARGEST_BLOCK = 1 << 16
_INT8_RANGE = 127.0


class BitsAndBytes:
    """A checkpoint that transformers saved with bitsandbytes' layers.

    Args:
        config: ``quantization_config``.

    Raises:
        UnsupportedModelError: It says neither four nor eight bits.
    """

    title = "bitsandbytes"
    ignored: tuple[str, ...] = ()

    def __init__(self, config: Mapping[str, Any]) -> None:
        is_small, is_byte = config.get("load_in_4bit"), config.get("load_in_8bit")
        if (is_small is True) == (is_byte is True):
            raise UnsupportedModelError(
                f"quantization_config: load_in_4bit is {str(is_small)[:100]}, load_in_8bit "
                f"{str(is_byte)[:100]}; expected one of them to be true",
                hint="Convert the checkpoint that was not quantized.",
            )
        refuse_unless(config, "bnb_4bit_quant_storage", "uint8")
        self.nearest = "int8" if is_byte else "nf4"

    def form_of(self, tensor: StoredTensor) -> MatrixForm | None:
        base, found, kind = tensor.name.rpartition(_STATE)
        if found and base.endswith("."):
            return _FourBits(kind)
        return _EIGHT_BITS if tensor.dtype == "I8" and tensor.name.endswith(".weight") else None


class _FourBits:
    optional: tuple[str, ...] = ("weight.nested_absmax", "weight.nested_quant_map")

    def __init__(self, kind: str) -> None:
        refuse_unless({"quant_state": kind}, "quant_state", "nf4", "fp4")
        self._kind = kind
        self.required: tuple[str, ...] = (
            f"{_STATE}{kind}", "weight", "weight.absmax", "weight.quant_map",
        )  # fmt: skip

    def matrix(self, parts: Mapping[str, Part]) -> FourBitMatrix:
        return FourBitMatrix(parts, _read_state(parts[self.required[0]]), self._kind)


class _EightBits:
    required: tuple[str, ...] = ("weight", "SCB")
    optional: tuple[str, ...] = ("weight_format",)

    def matrix(self, parts: Mapping[str, Part]) -> EightBitMatrix:
        return EightBitMatrix(parts)


_EIGHT_BITS = _EightBits()


class FourBitMatrix(KeptMatrix):
    """A matrix of indices into a table of sixteen numbers, times the maximum of their block.

    Args:
        parts: The tensors, by how their names end.
        state: What the checkpoint says beside them.
        kind: ``nf4`` or ``fp4``.

    Raises:
        CheckpointError: Shapes do not fit together, or a table has a number that is none.
        UnsupportedModelError: A dtype is not known, or rows do not end with a byte.
    """

    def __init__(self, parts: Mapping[str, Part], state: Mapping[str, Any], kind: str) -> None:
        self._parts, self._kind = parts, kind
        self._where = parts["weight"].tensor.name
        self.shape = rows, columns = self._checked_shape(state)
        self.block = self._size(state, "blocksize")
        parts["weight"].expect(((rows * columns // 2, 1),), "U8")
        count = -(-rows * columns // self.block)
        self._is_nested = "weight.nested_absmax" in parts
        parts["weight.absmax"].expect(((count,),), "U8" if self._is_nested else "F32")
        self._table = self._checked_table("weight.quant_map", 16)
        if not self._is_nested:
            return
        self._nested_block = self._size(state, "nested_blocksize")
        outer = -(-count // self._nested_block)
        parts["weight.nested_absmax"].expect(((outer,),), "F32")
        if "weight.nested_quant_map" not in parts:
            raise CheckpointError(f"{self._where} has nested_absmax, but no nested_quant_map")
        self._nested_table = self._checked_table("weight.nested_quant_map", 256)
        offset = state.get("nested_offset")
        if type(offset) not in (int, float):
            raise CheckpointError(f"{self._where}: nested_offset is {str(offset)[:100]}")
        self._offset = float(offset)  # type: ignore[arg-type]

    @property
    def packing(self) -> Packing | None:
        """NF4 where the table is ours and blocks end with rows."""
        is_ours = torch.equal(self._table, torch.tensor(NF4_CODES))
        if self._kind != "nf4" or not is_ours or self.shape[1] % self.block:
            return None
        return packing_in_groups("nf4", self.block)

    def read_rows(self, start: int, stop: int) -> torch.Tensor:
        """Return rows as float32."""
        columns = self.shape[1]
        blocks = torch.arange(start * columns, stop * columns) // self.block
        first, end = int(blocks[0]), int(blocks[-1]) + 1
        largest = self._maxima(first, end).index_select(0, blocks - first)
        return self._table[self._codes(start, stop)] * largest.view(stop - start, columns)

    def read_packed(self, start: int, stop: int) -> dict[str, torch.Tensor]:
        """Return NF4 with the same codes; maxima are rounded to float16.

        Raises:
            ConversionError: A maximum is above the range of float16.
        """
        assert self.packing is not None
        each = self.shape[1] // self.block
        maxima = self._maxima(start * each, stop * each).view(stop - start, each)
        return nf4_parts(self._codes(start, stop), maxima, self.packing)

    def _codes(self, start: int, stop: int) -> torch.Tensor:
        columns = self.shape[1]
        pairs = self._parts["weight"].read(start * columns // 2, stop * columns // 2).view(-1)
        return torch.stack((pairs >> 4, pairs & 15), dim=1).view(stop - start, columns).int()

    def _maxima(self, start: int, stop: int) -> torch.Tensor:
        """Return the maxima of blocks, float32."""
        found = self._parts["weight.absmax"].read(start, stop)
        if not self._is_nested:
            return found
        blocks = torch.arange(start, stop) // self._nested_block
        first, end = int(blocks[0]), int(blocks[-1]) + 1
        outer = self._parts["weight.nested_absmax"].read(first, end)
        scaled = self._nested_table[found.int()] * outer.index_select(0, blocks - first)
        return scaled + self._offset

    def _checked_shape(self, state: Mapping[str, Any]) -> tuple[int, int]:
        found = state.get("shape")
        is_pair = isinstance(found, list) and len(found) == 2
        if not is_pair or any(type(size) is not int or size < 1 for size in found):  # type: ignore[union-attr]
            raise CheckpointError(f"{self._where}: its shape is {str(found)[:100]}")
        rows, columns = found  # type: ignore[misc]
        if rows * columns > _MOST_NUMBERS:
            raise CheckpointError(f"{self._where}: its shape is {rows} by {columns}")
        if columns % 2:
            raise UnsupportedModelError(
                f"{self._where} has rows of {columns} numbers; expected an even number",
                hint="Convert the checkpoint that was not quantized.",
            )
        return rows, columns

    def _size(self, state: Mapping[str, Any], name: str) -> int:
        size = state.get(name)
        if type(size) is not int or not 2 <= size <= _LARGEST_BLOCK:
            raise CheckpointError(f"{self._where}: {name} is {str(size)[:100]}")
        return size

    def _checked_table(self, ending: str, count: int) -> torch.Tensor:
        part = self._parts[ending]
        part.expect(((count,),), "F32")
        table = part.read()
        if not bool(table.isfinite().all()):
            raise CheckpointError(f"tensor {part.tensor.name} has a number that is not finite")
        return table


class EightBitMatrix(KeptMatrix):
    """A matrix of bytes, each row over 127 times its maximum: LLM.int8().

    Raises:
        CheckpointError: Shapes do not fit together.
        UnsupportedModelError: A dtype or an order of numbers is not known.
    """

    packing = Packing(scheme="int8", group_size=0)

    def __init__(self, parts: Mapping[str, Part]) -> None:
        self._weight, self._maxima = parts["weight"], parts["SCB"]
        found = self._weight.tensor.shape
        if len(found) != 2 or 0 in found:
            raise CheckpointError(
                f"tensor {self._weight.tensor.name} has shape {list(found)}; expected a matrix"
            )
        self.shape = found[0], found[1]
        self._maxima.expect(((found[0],),), "F32")
        if (order := parts.get("weight_format")) is None:
            return
        order.expect(((), (1,)), "U8")
        refuse_unless({"weight_format": int(order.read().view(-1)[0])}, "weight_format", 0)

    def read_rows(self, start: int, stop: int) -> torch.Tensor:
        """Return rows as float32."""
        return self._weight.read(start, stop) * self._scales(start, stop).unsqueeze(1)

    def read_packed(self, start: int, stop: int) -> dict[str, torch.Tensor]:
        """Return INT8 with the same codes.

        Raises:
            ConversionError: A maximum is not finite.
        """
        return int8_parts(self._weight.read(start, stop), self._scales(start, stop))

    def _scales(self, start: int, stop: int) -> torch.Tensor:
        return self._maxima.read(start, stop) / _INT8_RANGE


def _read_state(part: Part) -> dict[str, Any]:
    """Return the JSON that bitsandbytes keeps beside a matrix, as bytes of a tensor."""
    found = part.tensor
    if found.dtype != "U8" or len(found.shape) != 1 or not 0 < found.num_rows <= _MAX_STATE_BYTES:
        raise CheckpointError(
            f"tensor {found.name} is {found.dtype} {list(found.shape)}; expected at most "
            f"{_MAX_STATE_BYTES} bytes of JSON"
        )
    return parse_json(bytes(part.read().tolist()), found.name)
