"""Compiled kernels on the GPU, and the prepared call that launches one.

A launch is on the path of every layer of a prefill, so everything about it that does not change is
laid out once; a call writes three grid sizes and a stream.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from zse.device.cuda import structs
from zse.device.cuda.errors import CudaError, ReleasedError, error_for
from zse.device.cuda.resource import Resource

if TYPE_CHECKING:
    from zse.device.cuda.library import Driver
    from zse.device.cuda.resource import Owner

_MAX_DYNAMIC_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_SHARED_WITHOUT_ASKING = 48 * 1024
_NOT_FOUND = 500


class Function:
    """One kernel of a module; it lives as long as the module.

    Args:
        handle: The driver's number for it.
        entry: Its symbol.
        shared_bytes: Dynamic shared memory that its launches use.
    """

    def __init__(self, handle: int, entry: str, shared_bytes: int) -> None:
        self.handle: int | None = handle
        """The driver's number for it; None once its module is gone."""
        self.entry = entry
        self.shared_bytes = shared_bytes
        self.sites: dict[tuple[int, int, int, bool, bool], LaunchSite] = {}


class Module(Resource):
    """A cubin that the driver has taken.

    Args:
        owner: The GPU's.
        image: The cubin.
        shared_limit_bytes: Shared memory that a block may ask for on this GPU.

    Raises:
        WrongArchitectureError: It is for another GPU.
        InvalidImageError: The driver cannot read it.
    """

    noun = "a module"

    def __init__(self, owner: Owner, image: bytes, shared_limit_bytes: int) -> None:
        handle = ctypes.c_void_p()
        owner.driver.call("cuModuleLoadData", ctypes.byref(handle), image)
        super().__init__(owner, handle.value or 0)
        self._shared_limit_bytes = shared_limit_bytes
        self._functions: list[Function] = []

    def function(self, entry: str, shared_bytes: int = 0) -> Function:
        """Return a kernel, allowed to use its shared memory.

        Raises:
            CudaError: There is no such kernel, or the GPU has less shared memory.
        """
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
        function = Function(found.value or 0, entry, shared_bytes)
        self._functions.append(function)
        return function

    def destroy(self) -> None:
        """Unload it; its functions are invalid from then on."""
        self.release()

    def _give_back(self, handle: int) -> None:
        for function in self._functions:
            function.handle = None
        self._driver.release("cuModuleUnload", handle)


class LaunchSite:
    """A prepared launch: everything but the grid, the stream and the parameters is fixed.

    Not for two threads at once: a call writes into structures that the driver reads.

    Args:
        driver: The driver.
        function: What to launch.
        num_threads: Threads of a block.
        shared_bytes: Dynamic shared memory of a block.
        num_ctas: Blocks of a cluster along x; a program of the grid is one cluster.
        programmatic: May start while the kernel before it in the stream still runs.
        cooperative: All blocks must be resident at once.
    """

    def __init__(
        self,
        driver: Driver,
        function: Function,
        *,
        num_threads: int,
        shared_bytes: int,
        num_ctas: int = 1,
        programmatic: bool = False,
        cooperative: bool = False,
    ) -> None:
        self._driver = driver
        self._function = function
        self._num_ctas = num_ctas
        self._attributes = _attributes(num_ctas, programmatic, cooperative)
        self._config = structs.LaunchConfig(
            block_x=num_threads,
            block_y=1,
            block_z=1,
            shared_bytes=shared_bytes,
            attributes=ctypes.addressof(self._attributes),
            num_attributes=len(self._attributes),
        )
        self._reference = ctypes.byref(self._config)
        self._grid = (0, 0, 0)
        self._raw = driver.raw("cuLaunchKernelEx")

    def launch(
        self, grid: tuple[int, int, int], stream: int, parameters: ctypes.Array[ctypes.c_void_p]
    ) -> None:
        """Put the kernel into a stream.

        Args:
            grid: Programs along x, y and z.
            stream: Handle of the stream.
            parameters: Where each parameter is; the driver copies them before this returns.

        Raises:
            CudaError: The driver refused it.
        """
        config = self._config
        if grid != self._grid:
            config.grid_x = grid[0] * self._num_ctas
            config.grid_y = grid[1]
            config.grid_z = grid[2]
            self._grid = grid
        config.stream = stream
        handle = self._function.handle
        if handle is None:
            raise ReleasedError(f"kernel {self._function.entry} was launched after its unloading")
        code = self._raw(self._reference, handle, parameters, None)
        if code:
            self._driver.fail("cuLaunchKernelEx", code)


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
