"""What can go wrong between this process and the CUDA driver.

A code of the driver becomes a rule, or a class where that is caught, by what the reader can do
about it: install a driver, wait for a neighbour, ask for less, restart the process. The driver's
own name and text are always told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, TypeAlias

from zse.errors import BrokenRule, DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

OUT_OF_MEMORY = 2
DEINITIALIZED = 4

FAULT_CODES = frozenset({214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721})
"""ECC, NVLink and kernel faults: the driver answers every later call with the same code."""


class CudaError(DeviceError):
    """A call of the CUDA driver was refused.

    Args:
        function: The driver's function, for example ``cuMemAlloc_v2``.
        code: The driver's code; 0 when the driver was not asked.
        name: The driver's name of the code, for example ``CUDA_ERROR_OUT_OF_MEMORY``.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        function: str = "",
        code: int = 0,
        name: str = "",
        rule: BrokenRule | None = None,
    ) -> None:
        super().__init__(message, hint=hint, rule=rule)
        self.function = function
        self.code = code
        self.name = name

    def retold(self, message: str) -> Self:
        """Return the same of the driver, with other words and the hint of the class."""
        return type(self)(message, function=self.function, code=self.code, name=self.name)


class DeviceBusyError(CudaError):
    """The GPU is there, but its compute mode or another process keeps this one out."""

    default_hint = (
        "Stop the process that holds the GPU (nvidia-smi lists it), choose another with "
        "--device cuda:N, or set the mode back with nvidia-smi -c DEFAULT."
    )


class OutOfDeviceMemoryError(CudaError):
    """The GPU, or the host's pinned memory, has less left than what was asked for."""

    is_out_of_memory = True
    default_hint = (
        "See who uses the memory with nvidia-smi, or ask for less: a smaller model or scheme, "
        "a shorter context, a smaller KV cache."
    )


class CudaRule(BrokenRule):
    """What else a ``CudaError`` is about."""

    def __call__(
        self, message: str, *, hint: str = "", function: str = "", code: int = 0, name: str = ""
    ) -> CudaError:
        return CudaError(message, hint=hint, function=function, code=code, name=name, rule=self)

    NO_DRIVER = (
        "no_driver",
        "Install the NVIDIA driver; in a container, start it with the GPU "
        "(docker run --gpus all, or the platform's GPU setting). --device cpu needs neither.",
    )
    """The CUDA driver library is not there."""
    DRIVER_TOO_OLD = (
        "driver_too_old",
        "Update the NVIDIA driver of the host to release 545 or newer (CUDA 12.3).",
    )
    """The CUDA driver is older than what the kernels and graphs need."""
    DRIVER_MISMATCH = (
        "driver_mismatch",
        "The library and the kernel module are of two releases: reboot the host after an update, "
        "and remove CUDA's compat folder from the image and from LD_LIBRARY_PATH.",
    )
    """The driver's library and its kernel module do not fit together."""
    NO_DEVICE = (
        "no_device",
        "Check nvidia-smi and CUDA_VISIBLE_DEVICES; in a container, that it was started with the "
        "GPU. --device cpu needs none.",
    )
    """The driver works, but shows no such GPU to this process."""
    DEVICE_FAULT = (
        "device_fault",
        "Restart the process: nothing on this GPU can go on in it. If it happens again, look at "
        "dmesg for an Xid line, and report the request that was running.",
    )
    """A kernel or the hardware failed: the context is lost, the process has to be restarted."""
    WRONG_ARCHITECTURE = (
        "wrong_architecture",
        "Build a kernel pack for this GPU (zse kernels build --gpu sm_NN), or run on a GPU that "
        "the pack was built for.",
    )
    """Compiled kernels are for another GPU architecture."""
    INVALID_IMAGE = (
        "invalid_image",
        "The kernel pack is damaged, or was made by a compiler newer than this driver: build it "
        "again, or update the driver.",
    )
    """The driver cannot read a compiled kernel."""
    CAPTURE = (
        "capture",
        "Only asynchronous work of the recorded stream may be put into it meanwhile.",
    )
    """Recording a stream into a graph failed."""
    NO_PEER_ACCESS = (
        "no_peer_access",
        "See nvidia-smi topo -p2p w: the GPUs of one model must reach each other, by NVLink or "
        "over one PCIe root, with the IOMMU off and, in a container, all of them in it. "
        "Choose others with --gpus, or fewer with --tensor-parallel.",
    )
    """A GPU cannot reach another one's memory."""
    RELEASED = ("released", "This is a defect of the program: report it with the message.")
    """Something of the GPU was used after it had been freed, destroyed or closed."""


_Made: TypeAlias = "tuple[Callable[..., CudaError], str]"
"""What makes the error, and a hint in place of its own."""


def error_for(function: str, code: int, name: str, text: str) -> CudaError:
    """Return the error for a code of the driver, by its ``cuGetErrorName`` and ``...String``."""
    make, hint = _MADE.get(code, (CudaError, ""))
    message = f"{function}: {name} ({code}): {text}"
    return make(message, hint=hint, function=function, code=code, name=name)


_MPS = "The CUDA multi-process service (MPS) is not ready or is full."
_MADE: dict[int, _Made] = {
    **dict.fromkeys(FAULT_CODES, (CudaRule.DEVICE_FAULT, "")),
    **dict.fromkeys(range(900, 909), (CudaRule.CAPTURE, "")),
    **dict.fromkeys(range(805, 811), (DeviceBusyError, _MPS)),
    **dict.fromkeys((200, 218, 222, 300), (CudaRule.INVALID_IMAGE, "")),
    OUT_OF_MEMORY: (OutOfDeviceMemoryError, ""),
    3: (CudaError, "A process that used CUDA was forked: start it anew instead (spawn)."),
    34: (
        CudaRule.NO_DRIVER,
        "libcuda.so.1 is the toolkit's placeholder: take its stubs folder off LD_LIBRARY_PATH.",
    ),
    36: (CudaRule.DRIVER_TOO_OLD, ""),
    46: (DeviceBusyError, ""),
    100: (CudaRule.NO_DEVICE, ""),
    101: (CudaRule.NO_DEVICE, ""),
    201: (CudaError, "Call make_current() of the Gpu once in every thread that uses it."),
    209: (CudaRule.WRONG_ARCHITECTURE, ""),
    802: (CudaError, "The host's NVLink fabric is not up: start nvidia-fabricmanager."),
    803: (CudaRule.DRIVER_MISMATCH, ""),
    804: (CudaRule.DRIVER_MISMATCH, ""),
    999: (CudaError, "Often the nvidia-uvm kernel module is not loaded: run nvidia-modprobe -u."),
}
