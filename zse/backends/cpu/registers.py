"""What a step computes with: float32 rows between operations, and the structure that names them.

The memory grows to the largest step that came; its rows are of one step, so nothing is cleared.
"""

from __future__ import annotations

import struct
from ctypes import sizeof
from typing import TYPE_CHECKING

from zse.backends.cpu.memory import Pages
from zse.backends.operations import is_attention
from zse.backends.resident import (
    LEAST_GROUP,
    ROWS_AT_ONCE,
    chosen_columns,
    chosen_rows,
    quantized_columns,
    register_widths,
)
from zse.kernels.native import structs
from zse.kernels.native.codes import ATTENTION_PARTS, Register
from zse.units import MIB, align_up

if TYPE_CHECKING:
    from zse.models.spec import ModelSpec

_LOGITS_BYTES = 16 * MIB
_NUMBERS = struct.Struct("=4q10Q")
"""``struct zse_step`` before its registers: numbers and addresses of a step."""
_CACHE_LINE = 64
_OF_WANTED = (Register.LOGITS, Register.OWN_LOGITS)
_PART_SUMS = 2
"""What a part of a row's keys leaves besides its sum of values: its largest score, its weight."""


class Registers:
    """Registers of one model, as addresses in ``structs.Step``."""

    def __init__(self, spec: ModelSpec, *, low_rank_columns: int) -> None:
        self._widths = _register_widths(spec)
        chosen = chosen_rows(spec)
        self._widths[Register.LOW_RANK] = low_rank_columns * max(1, chosen)
        self._quantized = (1, quantized_columns(spec)), (chosen, chosen_columns(spec))
        """Of the step's rows and of those of chosen experts: how many a row has, their columns."""
        self._hidden = spec.hidden_size
        self._rows = self._wanted = 0
        self.most_wanted = max(1, min(ROWS_AT_ONCE, _LOGITS_BYTES // (4 * spec.vocab_size)))
        """Rows of logits that are computed at once."""
        self.logits_bytes = 4 * spec.vocab_size
        self._numbers = bytearray(sizeof(structs.Step))
        self.step = structs.Step.from_buffer(self._numbers)

    def fit(self, rows: int, wanted: int) -> None:
        """Make room for as many rows and rows of logits, which are at most ``most_wanted``."""
        if rows > self._rows or wanted > self._wanted:
            self._rows = max(self._rows, _power_of_two(rows))
            self._wanted = max(self._wanted, min(_power_of_two(wanted), self.most_wanted))
            self._place()

    def rest(self) -> None:
        """Give the memory back; the next step has it again, page by page."""
        if self._rows:
            self._pages.empty(0, len(self._pages.view))

    def write(self, *numbers: int) -> None:
        """Write the numbers and addresses of a step, those before its registers, in their order."""
        _NUMBERS.pack_into(self._numbers, 0, *numbers)

    def put_logits(self, address: int = 0) -> None:
        """Have logits written at an address; 0: into the register again."""
        self.step.registers[Register.LOGITS] = address or self._logits

    def normed_row(self, index: int) -> memoryview[float]:
        """Return float32 [hidden] of a wanted row; it is another's after the next step."""
        return self.row(Register.NORMED, index, self._hidden)

    def row(self, register: Register, index: int, width: int) -> memoryview[float]:
        """Return float32 [width] of a register's row; it is another's after the next step."""
        start = self._starts[register] + index * width * 4
        return self._pages.view[start : start + width * 4].cast("f")

    def rows(self, register: Register, count: int, width: int) -> memoryview[float]:
        """Return float32 [count * width], the first rows of a register; there is room for them."""
        start = self._starts[register]
        return self._pages.view[start : start + count * width * 4].cast("f")

    def _place(self) -> None:
        rows = self._rows
        sizes = {
            register: 4 * width * (self._wanted if register in _OF_WANTED else rows)
            for register, width in self._widths.items()
        }
        codes = [rows * times * columns for times, columns in self._quantized]
        quantized = [size for count in codes for size in (count, *(count // LEAST_GROUP * 4,) * 2)]
        offsets, end = _offsets([*sizes.values(), *quantized])
        self._pages = Pages(end)
        self._starts = dict(zip(sizes, offsets, strict=False))
        addresses = [self._pages.address + offset for offset in offsets]
        for register, address in zip(sizes, addresses, strict=False):
            self.step.registers[register] = address
        self._logits = self.step.registers[Register.LOGITS]
        place = len(sizes)
        for structure, (_, columns) in zip(
            (self.step.quantized, self.step.chosen), self._quantized, strict=True
        ):
            structure.codes, structure.scales, structure.sums = addresses[place : place + 3]
            structure.stride = columns
            place += 3


def _register_widths(spec: ModelSpec) -> dict[Register, int]:
    """Return the columns of each register."""
    attentions = [layer.mixer for layer in spec.layers if is_attention(layer.mixer)]
    widths = {Register[name.upper()]: width for name, width in register_widths(spec).items()}
    widths[Register.LOGITS] = 0 if spec.is_encoder else spec.vocab_size
    widths[Register.OWN_LOGITS] = 0 if spec.head.rows is None else spec.head.rows.count
    widths[Register.PARTIAL] = max(
        (ATTENTION_PARTS * one.num_heads * (one.value_dim + _PART_SUMS) for one in attentions),
        default=0,
    )
    widths[Register.ARRIVED] = max((one.num_kv_heads for one in attentions), default=0)
    return widths


def _offsets(sizes: list[int]) -> tuple[list[int], int]:
    """Return where parts of these bytes start, a cache line apart at least, and their end."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end = align_up(end + size, _CACHE_LINE) + _CACHE_LINE
    return offsets, end


def _power_of_two(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()
