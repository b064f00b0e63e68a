"""Compiled kernels on the GPU, and the prepared call that launches one.

A launch is on the path of every layer of a prefill, so everything about it that does not change is
laid out once; a call packs the arguments and writes three grid sizes and a stream.
"""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, NamedTuple

from zse.device.cuda import structs
from zse.device.cuda.errors import CudaError, CudaRule, error_for
from zse.device.cuda.resource import Resource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.device.cuda.library import Driver
    from zse.device.cuda.resource import Owner
    from zse.device.gpu import Grid, Stream

_MAX_DYNAMIC_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_SHARED_WITHOUT_ASKING = 48 * 1024
_NOT_FOUND = 500
_CODES = {
    "i1": "b", "i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i", "u32": "I",
    "i64": "q", "u64": "Q", "fp32": "f", "fp64": "d",
}  # fmt: skip


def load_code(driver: Driver, image: bytes) -> int:
    """Have the driver take a cubin; return its number for it.

    Raises:
        CudaError: It is for another GPU, or the driver cannot read it.
    """
    return driver.read(ctypes.c_void_p, "cuModuleLoadData", image)


class Module(Resource):
    """A cubin that the driver has taken; its kernels are invalid once it is destroyed.

    Args:
        handle: Of ``load_code``.
        is_kept: Whether somebody else gives it back.
    """

    noun = "a module"
    taken_back_by = "cuModuleUnload"

    def __init__(
        self, owner: Owner, handle: int, shared_limit_bytes: int, *, is_kept: bool = False
    ) -> None:
        super().__init__(owner, handle)
        self._is_kept = is_kept
        self._shared_limit_bytes = shared_limit_bytes
        self._kernels: list[Kernel] = []

    def kernel(
        self,
        entry: str,
        types: Sequence[str],
        *,
        num_threads: int,
        shared_bytes: int = 0,
        num_ctas: int = 1,
        programmatic: bool = False,
        cooperative: bool = False,
    ) -> Kernel:
        """Return a kernel, allowed to use its shared memory; see ``zse.device.gpu.Module``.

        Raises:
            CudaError: There is no such kernel, the GPU has less shared memory, or a type is not
                known.
        """
        kernel = Kernel(
            self._driver,
            entry,
            self._find(entry, shared_bytes),
            types,
            structs.LaunchConfig(
                block_x=num_threads, block_y=1, block_z=1, shared_bytes=shared_bytes
            ),
            _attributes(num_ctas, programmatic, cooperative),
            num_ctas,
        )
        self._kernels.append(kernel)
        return kernel

    def _find(self, entry: str, shared_bytes: int) -> int:
        if shared_bytes > self._shared_limit_bytes:
            raise CudaError(
                f"kernel {entry} needs {shared_bytes} bytes of shared memory; this GPU gives a "
                f"block {self._shared_limit_bytes}",
                hint="Build the kernel pack for this GPU: zse kernels build --gpu sm_NN.",
            )
        found = ctypes.c_void_p()
        code = self._driver.raw("cuModuleGetFunction")(
            ctypes.byref(found), self.handle, entry.encode()
        )
        if code == _NOT_FOUND:
            raise error_for("cuModuleGetFunction", code, "CUDA_ERROR_NOT_FOUND", f"no {entry}")
        if code:
            self._driver.fail("cuModuleGetFunction", code)
        if shared_bytes > _SHARED_WITHOUT_ASKING:
            self._driver.call(
                "cuFuncSetAttribute", found.value, _MAX_DYNAMIC_SHARED_BYTES, shared_bytes
            )
        return found.value or 0

    def _give_back(self, handle: int) -> None:
        for kernel in self._kernels:
            kernel.handle = None
        if not self._is_kept:
            super()._give_back(handle)


class Slot(NamedTuple):
    """Where a kernel's call has one of its arguments."""

    address: int
    length: int
    """In bytes."""
    code: str
    """Of ``struct``."""


class Kernel:
    """One kernel of a module, of whose launches only grid, stream and values are open.

    Not for two threads at once: a call writes into memory that the driver reads. The driver copies
    the values during the call, so one kernel serves any number of launches and captures.

    Raises:
        CudaError: A type is not known.
    """

    def __init__(
        self,
        driver: Driver,
        entry: str,
        handle: int,
        types: Sequence[str],
        config: structs.LaunchConfig,
        attributes: ctypes.Array[structs.LaunchAttribute],
        num_ctas: int,
    ) -> None:
        self.handle: int | None = handle
        """None once its module is gone."""
        self._driver = driver
        self._entry = entry
        self._types = types
        self._num_ctas = num_ctas
        self._attributes = attributes
        self._config = config
        config.attributes = ctypes.addressof(attributes)
        config.num_attributes = len(attributes)
        self._reference = ctypes.byref(config)
        self._grid = (0, 0, 0)
        self._raw = driver.raw("cuLaunchKernelEx")
        self._codes = codes = [_code(kind) for kind in types]
        self._values = struct.Struct("@" + "".join(codes))
        self._buffer = ctypes.create_string_buffer(max(self._values.size, 1))
        base = ctypes.addressof(self._buffer)
        ends = (struct.calcsize("@" + "".join(codes[: n + 1])) for n in range(len(codes)))
        starts = (end - struct.calcsize(code) for end, code in zip(ends, codes, strict=True))
        self._pointers = (ctypes.c_void_p * len(codes))(*(base + start for start in starts))

    def launch(self, grid: Grid, stream: Stream, *values: float) -> None:
        """Put it into a stream, with a value for each of its types.

        Raises:
            CudaError: Too many values or too few, one does not fit its type, or the driver
                refused the launch.
        """
        handle = self.pack(grid, stream, values)
        code = self._raw(self._reference, handle, self._pointers, None)
        if code:
            self._driver.fail("cuLaunchKernelEx", code)

    def pack(self, grid: Grid, stream: Stream, values: Sequence[float]) -> int:
        """Lay out a call of it; return what the driver calls it.

        Raises:
            CudaError: As ``launch``.
        """
        try:
            self._values.pack_into(self._buffer, 0, *values)
        except struct.error as error:
            raise CudaError(f"kernel parameters {values} cannot be packed: {error}") from error
        config = self._config
        if grid != self._grid:
            config.grid_x = grid[0] * self._num_ctas
            config.grid_y = grid[1]
            config.grid_z = grid[2]
            self._grid = grid
        config.stream = stream.handle
        handle = self.handle
        if handle is None:
            raise CudaRule.RELEASED(f"kernel {self._entry} was launched after its unloading")
        return handle

    def copy(self) -> Kernel:
        """Return the same kernel with a call of its own, for as long as its module is there."""
        config = structs.LaunchConfig.from_buffer_copy(self._config)
        handle = self.handle or 0
        return Kernel(
            self._driver, self._entry, handle, self._types, config, self._attributes, self._num_ctas
        )

    def slot(self, argument: int) -> Slot:
        """Return where its call has one of its arguments."""
        code = self._codes[argument]
        return Slot(self._pointers[argument] or 0, struct.calcsize(code), code)

    @property
    def parts(self) -> tuple[int, int, int]:
        """Addresses of its configuration, of itself and of the table of its arguments."""
        own = ctypes.addressof(self._config), ctypes.addressof(self._pointers)
        return own[0], self.handle or 0, own[1]


def _attributes(
    num_ctas: int, programmatic: bool, cooperative: bool
) -> ctypes.Array[structs.LaunchAttribute]:
    wanted: list[tuple[int, int]] = []
    if programmatic:
        wanted.append((structs.ATTRIBUTE_PROGRAMMATIC_SERIALIZATION, 1))
    if cooperative:
        wanted.append((structs.ATTRIBUTE_COOPERATIVE, 1))
    if num_ctas != 1:
        wanted.append((structs.ATTRIBUTE_CLUSTER_DIMENSION, num_ctas))
        wanted.append((structs.ATTRIBUTE_CLUSTER_SCHEDULING, structs.CLUSTER_SCHEDULING_SPREAD))
    attributes = (structs.LaunchAttribute * len(wanted))()
    for attribute, (identity, number) in zip(attributes, wanted, strict=True):
        attribute.id = identity
        if identity == structs.ATTRIBUTE_CLUSTER_DIMENSION:
            attribute.value.dimension[:] = (number, 1, 1)
        else:
            attribute.value.number = number
    return attributes


def _code(kind: str) -> str:
    if kind.startswith("*"):
        return "Q"
    if kind not in _CODES:
        raise CudaError(f"a kernel parameter of type {kind!r} cannot be passed")
    return _CODES[kind]
