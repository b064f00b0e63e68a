"""Kernel parameters, packed: one C call writes all of them where the driver will read them."""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, TypeAlias

from zse.device.cuda.errors import CudaError

if TYPE_CHECKING:
    from collections.abc import Sequence

ParameterArray: TypeAlias = "ctypes.Array[ctypes.c_void_p]"
"""Where each parameter is: what a launch takes."""

_CODES = {
    "i1": "b", "i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i", "u32": "I",
    "i64": "q", "u64": "Q", "fp32": "f", "fp64": "d",
}  # fmt: skip


class ParameterBlock:
    """Room for the parameters of one kernel, and the list of addresses that a launch takes.

    Not for two threads at once. The driver copies the values during the launch call, so one block
    serves any number of launches and captures.

    Args:
        types: ``*fp32`` and the like for addresses; ``i32 i64 fp32`` and the like for numbers.

    Raises:
        CudaError: A type is not known.
    """

    def __init__(self, types: Sequence[str]) -> None:
        codes = [_code(kind) for kind in types]
        self._struct = struct.Struct("@" + "".join(codes))
        self._buffer = ctypes.create_string_buffer(max(self._struct.size, 1))
        base = ctypes.addressof(self._buffer)
        offsets = [
            struct.calcsize("@" + "".join(codes[: index + 1])) - struct.calcsize(code)
            for index, code in enumerate(codes)
        ]
        self.pointers = (ctypes.c_void_p * len(codes))(*(base + offset for offset in offsets))

    def pack(self, *values: float) -> ParameterArray:
        """Write the values; return what a launch takes as its parameters.

        Raises:
            CudaError: Too many or too few, or one does not fit its type.
        """
        try:
            self._struct.pack_into(self._buffer, 0, *values)
        except struct.error as error:
            raise CudaError(f"kernel parameters {values} cannot be packed: {error}") from error
        return self.pointers


def _code(kind: str) -> str:
    if kind.startswith("*"):
        return "Q"
    if kind not in _CODES:
        raise CudaError(f"a kernel parameter of type {kind!r} cannot be passed")
    return _CODES[kind]
