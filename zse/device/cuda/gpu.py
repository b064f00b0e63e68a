"""One GPU: what it is, its memory, its streams, its kernels.

It holds the device's primary context, which other libraries of the process share.
"""

from __future__ import annotations

import contextlib
import ctypes
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn, Self, cast

from zse.device.cuda import info as facts
from zse.device.cuda.errors import (
    OUT_OF_MEMORY,
    CudaError,
    CudaRule,
    DeviceBusyError,
    OutOfDeviceMemoryError,
)
from zse.device.cuda.graph import Capture
from zse.device.cuda.kept import kept_code
from zse.device.cuda.library import Driver
from zse.device.cuda.memory import DeviceBlock, HostBlock, out_of_memory, read_memory
from zse.device.cuda.module import Module, load_code
from zse.device.cuda.pool import VirtualPool
from zse.device.cuda.resource import Owner
from zse.device.cuda.stream import Event, Stream
from zse.device.loader.library import CopyFunctions
from zse.device.loader.structs import DRIVER_FUNCTIONS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from threading import Thread

    from zse.device.cuda.module import Kernel
    from zse.device.cuda.repetition import Repetition
    from zse.device.cuda.shared import MappedHost, SharedBlock
    from zse.device.facts import GpuLink
    from zse.device.gpu import Kernel as AnyKernel
    from zse.device.gpu import Stream as AnyStream

_LIMIT_STACK_SIZE = 0
_WAIT_VALUE_REACHED = 0
"""``CU_STREAM_WAIT_VALUE_GEQ``."""
_COPY_FUNCTIONS = dict(
    zip(
        DRIVER_FUNCTIONS,
        (
            "cuCtxSetCurrent",
            "cuStreamCreate",
            "cuStreamDestroy_v2",
            "cuStreamSynchronize",
            "cuMemcpyHtoDAsync_v2",
            "cuMemHostRegister_v2",
            "cuMemHostUnregister",
            "cuMemHostAlloc",
            "cuMemFreeHost",
        ),
        strict=True,
    )
)
"""What the driver calls the functions of a load."""


class Gpu:
    """See ``zse.device.gpu.Gpu``; its context is current in the thread that opened it."""

    def __init__(self, driver: Driver, *, ordinal: int, device: int, context: int) -> None:
        self.owner = Owner(driver)
        self.device = device
        """The driver's number of the device."""
        self._driver = driver
        self._context: int | None = context
        self._copy_to_device = driver.raw("cuMemcpyHtoDAsync_v2")
        self._copy_to_host = driver.raw("cuMemcpyDtoHAsync_v2")
        self.make_current()
        self.name = f"cuda:{ordinal}"
        free_bytes, _ = read_memory(driver)
        self.info = facts.read_info(driver, ordinal, device=device, free_bytes=free_bytes)
        self._ending: set[Thread] = set()

    @classmethod
    def open(cls, ordinal: int = 0, *, driver: Driver | None = None) -> Gpu:
        """Start the driver and take a GPU: about 0.2 s, nearly all of it the driver's.

        Raises:
            CudaError: There is no driver, it is too old, or it shows no such GPU.
            DeviceBusyError: The GPU keeps this process out.
            OutOfDeviceMemoryError: A neighbour left too little for a context.
        """
        driver = driver or Driver()
        driver.version()
        device = facts.get_device(driver, ordinal)
        context = _retain_context(driver, device, ordinal)
        try:
            return cls(driver, ordinal=ordinal, device=device, context=context)
        except CudaError:
            driver.release("cuDevicePrimaryCtxRelease_v2", device)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give everything back that is still held, then the context."""
        if self._context is not None:
            context, self._context = self._context, None
            for thread in self._ending:
                thread.join()
            with contextlib.ExitStack() as rest:
                rest.callback(self._driver.release, "cuDevicePrimaryCtxRelease_v2", self.device)
                rest.callback(self.owner.release_all)
                self._driver.release("cuCtxSetCurrent", context)

    def make_current(self) -> None:
        """Let the calling thread use this GPU; every thread does it once.

        Raises:
            CudaError: It was closed.
        """
        if self._context is None:
            raise CudaRule.RELEASED("a GPU was used after it had been closed")
        self._driver.call("cuCtxSetCurrent", self._context)

    def memory(self) -> tuple[int, int]:
        return read_memory(self._driver)

    def limit_stack(self, length_bytes: int) -> None:
        """Set the stack that the driver keeps for every thread that can be resident.

        A context begins with 1,024 bytes, which is 264 MiB on an H200. The driver makes the stack
        larger by itself for a kernel that needs more.
        """
        self._driver.call("cuCtxSetLimit", _LIMIT_STACK_SIZE, length_bytes)

    # --- making things ---------------------------------------------------------------------------

    def allocate(self, length_bytes: int) -> DeviceBlock:
        return DeviceBlock(self.owner, length_bytes)

    def allocate_host(self, length_bytes: int) -> HostBlock:
        return HostBlock(self.owner, length_bytes)

    def create_pool(self, reserve_bytes: int) -> VirtualPool:
        return VirtualPool(self, reserve_bytes)

    def create_stream(self) -> Stream:
        return Stream(self.owner)

    def create_event(self, timing: bool = False) -> Event:
        return Event(self.owner, timing=timing)

    def load_module(self, image: bytes) -> Module:
        kept = kept_code(self._driver, self.device)
        handle = load_code(self._driver, image) if kept is None else kept.load(image)
        limit = self.info.shared_memory_optin_bytes
        return Module(self.owner, handle, limit, is_kept=kept is not None)

    def repetition(
        self,
        kernels: Sequence[AnyKernel],
        places: Sequence[tuple[int, int]],
        rounds: Sequence[Sequence[float]],
    ) -> Repetition:
        from zse.device.cuda.repetition import Repetition  # which a first token does without

        copies = [cast("Kernel", kernel).copy() for kernel in kernels]
        return Repetition(self._driver, copies, places, rounds)

    def capture(self, stream: AnyStream) -> Capture:
        return Capture(self.owner, stream)

    # --- what several GPUs of one host share: a start with one GPU imports none of it -------------

    def allocate_shared(self, length_bytes: int) -> SharedBlock:
        from zse.device.cuda.shared import SharedBlock

        return SharedBlock(self, length_bytes)

    def open_shared(self, descriptor: int, length_bytes: int) -> SharedBlock:
        from zse.device.cuda.shared import SharedBlock

        return SharedBlock(self, length_bytes, descriptor)

    def map_host(self, host_address: int, length_bytes: int) -> MappedHost:
        from zse.device.cuda.shared import MappedHost

        return MappedHost(self, host_address, length_bytes)

    def link_to(self, ordinal: int) -> GpuLink:
        from zse.device.cuda.links import require_link

        return require_link(self._driver, self.info.ordinal, ordinal)

    # --- putting work into a stream --------------------------------------------------------------

    def copy_to_device(
        self, destination: int, source: int, length_bytes: int, stream: AnyStream
    ) -> None:
        code = self._copy_to_device(destination, source, length_bytes, stream.handle)
        if code:
            self._driver.fail("cuMemcpyHtoDAsync_v2", code)

    def copy_to_host(
        self, destination: int, source: int, length_bytes: int, stream: AnyStream
    ) -> None:
        code = self._copy_to_host(destination, source, length_bytes, stream.handle)
        if code:
            self._driver.fail("cuMemcpyDtoHAsync_v2", code)

    def copy_on_device(
        self, destination: int, source: int, length_bytes: int, stream: AnyStream
    ) -> None:
        self._driver.call("cuMemcpyDtoDAsync_v2", destination, source, length_bytes, stream.handle)

    def wait_for_value(self, address: int, value: int, stream: AnyStream) -> None:
        self._driver.call(
            "cuStreamWaitValue32_v2", stream.handle, address, value, _WAIT_VALUE_REACHED
        )

    def write_value(self, address: int, value: int, stream: AnyStream) -> None:
        self._driver.call("cuStreamWriteValue32_v2", stream.handle, address, value, 0)

    def copy_functions(self) -> CopyFunctions:
        """Return the driver's own functions, which need no interpreter."""
        if self._context is None:
            raise CudaRule.RELEASED("a GPU was used after it had been closed")
        addresses = tuple(map(self._driver.address, _COPY_FUNCTIONS.values()))
        found = CopyFunctions(
            addresses=addresses,
            context=self._context,
            fail=self._copy_failed,
            stays_for=self._stay_for,
        )
        kept = kept_code(self._driver, self.device)
        return found if kept is None else replace(found, kept=kept.buffers(found))

    def _stay_for(self, thread: Thread) -> None:
        """Have ``close`` wait for a thread that gives back what is the context's."""
        self._ending = {one for one in self._ending if one.is_alive()} | {thread}

    def _copy_failed(self, function: str, code: int, length_bytes: int) -> NoReturn:
        name = _COPY_FUNCTIONS[function]
        if code == OUT_OF_MEMORY and function == "allocate":
            raise out_of_memory(self._driver, name, length_bytes)
        self._driver.fail(name, code)

    def fill(self, address: int, byte: int, length_bytes: int, stream: AnyStream) -> None:
        self._driver.call("cuMemsetD8Async", address, byte, length_bytes, stream.handle)


def _retain_context(driver: Driver, device: int, ordinal: int) -> int:
    """Return the device's primary context; say who is in the way when there is none to have."""
    mode = facts.read_attribute(driver, device, facts.COMPUTE_MODE)
    if mode == facts.MODE_PROHIBITED:
        raise DeviceBusyError(
            f"GPU {ordinal} is in compute mode PROHIBITED: no process may use it",
            hint="Set the mode back with nvidia-smi -c DEFAULT, or choose another GPU.",
        )
    try:
        return driver.read(ctypes.c_void_p, "cuDevicePrimaryCtxRetain", device)
    except DeviceBusyError as error:
        if mode != facts.MODE_EXCLUSIVE:
            raise
        raise error.retold(
            f"GPU {ordinal} is in compute mode EXCLUSIVE_PROCESS and another process has it"
        ) from error
    except OutOfDeviceMemoryError as error:
        raise error.retold(
            f"GPU {ordinal} has too little free memory even to be opened (about 0.5 GB): "
            "other processes hold it"
        ) from error
