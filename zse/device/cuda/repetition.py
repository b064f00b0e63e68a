"""Kernels launched in rounds, of whose arguments some are other ones each round: a model's layers.

What changes is laid out once, as a table of bytes; a call then packs the arguments of one round and
has all rounds launched by C, so that a launch takes the driver's time and no more. Without the
library of C they are launched one by one.
"""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, ClassVar

from zse.device.cuda.errors import CudaError
from zse.device.loader.library import load_library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.device.cuda.library import Driver
    from zse.device.cuda.module import Kernel
    from zse.device.gpu import Grid, Stream

_SLOT_BYTES = 8
"""Of the table, for each argument that changes."""


class _Call(ctypes.Structure):
    """``struct zse_call``."""

    _fields_: ClassVar = [
        ("config", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
    ]


class _Place(ctypes.Structure):
    """``struct zse_place``."""

    _fields_: ClassVar = [("argument", ctypes.c_void_p), ("length", ctypes.c_int64)]


class Repetition:
    """See ``zse.device.gpu.Gpu.repetition``. For one thread, and while the modules are there.

    Args:
        kernels: In the order of a round; each is a copy that nobody else launches.
        places: Kernel and argument, by number, of each value that changes.
        rounds: The values of each round, one for each place.
    """

    def __init__(
        self,
        driver: Driver,
        kernels: Sequence[Kernel],
        places: Sequence[tuple[int, int]],
        rounds: Sequence[Sequence[float]],
    ) -> None:
        self._driver = driver
        self._kernels = kernels
        slots = [kernels[call].slot(argument) for call, argument in places]
        self._places = (_Place * len(slots))(*[_Place(slot.address, slot.length) for slot in slots])
        row = [f"{slot.code}{_SLOT_BYTES - slot.length}x" for slot in slots]
        try:
            table = b"".join(struct.pack("<" + "".join(row), *values) for values in rounds)
        except struct.error as error:
            raise CudaError(f"kernel parameters cannot be packed: {error}") from error
        self._table = ctypes.create_string_buffer(table, max(len(table), 1))
        self._row_bytes = len(slots) * _SLOT_BYTES
        self._calls = (_Call * len(kernels))(*[_Call(*kernel.parts) for kernel in kernels])
        library = load_library()
        self._repeat = None if library is None else library.repeat
        self._launch = driver.raw("cuLaunchKernelEx")
        self._launch_address = driver.address("cuLaunchKernelEx")

    def launch(
        self, stream: Stream, calls: Sequence[tuple[Grid, Sequence[float]]], rounds: range
    ) -> None:
        """Put rounds into a stream.

        Args:
            calls: Grid and arguments of each kernel, those that change with any value.
            rounds: By number, one after the other.

        Raises:
            CudaError: As ``Kernel.launch``.
        """
        for kernel, (grid, values) in zip(self._kernels, calls, strict=True):
            kernel.pack(grid, stream, values)
        first = ctypes.addressof(self._table) + rounds.start * self._row_bytes
        if self._repeat is None:
            self._launch_each(first, len(rounds))
            return
        code = self._repeat(
            self._launch_address,
            self._calls,
            len(self._calls),
            self._places,
            len(self._places),
            first,
            len(rounds),
        )
        if code:
            self._driver.fail("cuLaunchKernelEx", code)

    def _launch_each(self, row: int, num_rounds: int) -> None:
        """Do what ``zse_repeat`` does."""
        for _ in range(num_rounds):
            for number, place in enumerate(self._places):
                ctypes.memmove(place.argument, row + number * _SLOT_BYTES, place.length)
            for call in self._calls:
                code = self._launch(call.config, call.kernel, call.arguments, None)
                if code:
                    self._driver.fail("cuLaunchKernelEx", code)
            row += self._row_bytes
