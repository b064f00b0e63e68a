"""A launcher that launches nothing, and operands that nobody reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.device.facts_of_gpus import H200
from zse.kernels.layout import BlockTables, Partials, Plain, Quantized

if TYPE_CHECKING:
    from zse.device.facts import DeviceFacts
    from zse.kernels.variant import Variant

TABLES = BlockTables(address=0, stride=1)


class Recorder:
    """Remembers the keys of what it is asked to launch."""

    def __init__(self, device: DeviceFacts = H200) -> None:
        self.device = device
        self.keys: set[str] = set()

    def launch(self, variant: Variant, _grid: tuple[int, int, int], *arguments: float) -> None:
        assert len(arguments) == len(variant.arguments)
        self.keys.add(variant.key)


def packed(*, of: tuple[Variant, ...]) -> set[str]:
    return {form.key for form in of}


def output(columns: int, *, quantized: bool, rows: int = 1) -> Plain | Quantized:
    if quantized:
        return Quantized(rows=rows, columns=columns, codes=0, scales=0, sums=0)
    return Plain(rows=rows, columns=columns, values=0)


def sums(columns: int, rows: int = 1) -> Partials:
    return Partials(rows=rows, columns=columns, splits=2, values=0)
