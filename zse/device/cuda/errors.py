"""What can go wrong between this process and the CUDA driver: one class for each way out.

A code of the driver becomes a class by what the reader can do about it: install a driver, wait for
a neighbour, ask for less, restart the process. The driver's own name and text are always told.
"""

from __future__ import annotations

from zse.errors import DeviceError

SUCCESS = 0
OUT_OF_MEMORY = 2
DEINITIALIZED = 4
NOT_READY = 600

FAULT_CODES = frozenset({214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721})
"""ECC, NVLink and kernel faults: the driver answers every later call with the same code."""

_CAPTURE_CODES = range(900, 909)
_MPS_CODES = range(805, 811)
_IMAGE_CODES = frozenset({200, 218, 222, 300})


class CudaError(DeviceError):
    """A call of the CUDA driver was refused.

    Args:
        message: What happened.
        hint: What to do next.
        function: The driver's function, for example ``cuMemAlloc_v2``.
        code: The driver's code; 0 when the driver was not asked.
        name: The driver's name of the code, for example ``CUDA_ERROR_OUT_OF_MEMORY``.
    """

    def __init__(
        self, message: str, *, hint: str = "", function: str = "", code: int = 0, name: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.function = function
        self.code = code
        self.name = name


class NoDriverError(CudaError):
    """The CUDA driver library is not there."""

    default_hint = (
        "Install the NVIDIA driver; in a container, start it with the GPU "
        "(docker run --gpus all, or the platform's GPU setting). --device cpu needs neither."
    )


class DriverTooOldError(CudaError):
    """The CUDA driver is older than what the kernels and graphs need."""

    default_hint = "Update the NVIDIA driver of the host to release 545 or newer (CUDA 12.3)."


class DriverMismatchError(CudaError):
    """The driver's library and its kernel module do not fit together."""

    default_hint = (
        "The library and the kernel module are of two releases: reboot the host after an update, "
        "and remove CUDA's compat folder from the image and from LD_LIBRARY_PATH."
    )


class NoDeviceError(CudaError):
    """The driver works, but shows no such GPU to this process."""

    default_hint = (
        "Check nvidia-smi and CUDA_VISIBLE_DEVICES; in a container, that it was started with the "
        "GPU. --device cpu needs none."
    )


class DeviceBusyError(CudaError):
    """The GPU is there, but its compute mode or another process keeps this one out."""

    default_hint = (
        "Stop the process that holds the GPU (nvidia-smi lists it), choose another with "
        "--device cuda:N, or set the mode back with nvidia-smi -c DEFAULT."
    )


class OutOfDeviceMemoryError(CudaError):
    """The GPU, or the host's pinned memory, has less left than what was asked for."""

    default_hint = (
        "See who uses the memory with nvidia-smi, or ask for less: a smaller model or scheme, "
        "a shorter context, a smaller KV cache."
    )


class DeviceFault(CudaError):  # noqa: N818 - the thing itself is called a fault
    """A kernel or the hardware failed: the context is lost, the process has to be restarted."""

    default_hint = (
        "Restart the process: nothing on this GPU can go on in it. If it happens again, look at "
        "dmesg for an Xid line, and report the request that was running."
    )


class WrongArchitectureError(CudaError):
    """Compiled kernels are for another GPU architecture."""

    default_hint = (
        "Build a kernel pack for this GPU (zse kernels build --gpu sm_NN), or run on a GPU that "
        "the pack was built for."
    )


class InvalidImageError(CudaError):
    """The driver cannot read a compiled kernel."""

    default_hint = (
        "The kernel pack is damaged, or was made by a compiler newer than this driver: build it "
        "again, or update the driver."
    )


class CaptureError(CudaError):
    """Recording a stream into a graph failed."""

    default_hint = "Only asynchronous work of the recorded stream may be put into it meanwhile."


class ReleasedError(CudaError):
    """Something of the GPU was used after it had been freed, destroyed or closed."""

    default_hint = "This is a defect of the program: report it with the message."


def error_for(function: str, code: int, name: str, text: str) -> CudaError:
    """Return the error that stands for a code of the driver.

    Args:
        function: The driver's function that returned it.
        code: The code, not 0.
        name: As ``cuGetErrorName`` says it.
        text: As ``cuGetErrorString`` says it.
    """
    kind, hint = _kind_of(code)
    message = f"{function}: {name} ({code}): {text}"
    return kind(message, hint=hint, function=function, code=code, name=name)


def _kind_of(code: int) -> tuple[type[CudaError], str]:
    if code in FAULT_CODES:
        return DeviceFault, ""
    if code in _CAPTURE_CODES:
        return CaptureError, ""
    if code in _MPS_CODES:
        return DeviceBusyError, "The CUDA multi-process service (MPS) is not ready or is full."
    if code in _IMAGE_CODES:
        return InvalidImageError, ""
    return _KINDS.get(code, (CudaError, ""))


_KINDS: dict[int, tuple[type[CudaError], str]] = {
    OUT_OF_MEMORY: (OutOfDeviceMemoryError, ""),
    3: (CudaError, "A process that used CUDA was forked: start it anew instead (spawn)."),
    34: (
        NoDriverError,
        "libcuda.so.1 is the toolkit's placeholder: take its stubs folder off LD_LIBRARY_PATH.",
    ),
    36: (DriverTooOldError, ""),
    46: (DeviceBusyError, ""),
    100: (NoDeviceError, ""),
    101: (NoDeviceError, ""),
    201: (CudaError, "Call make_current() of the Gpu once in every thread that uses it."),
    209: (WrongArchitectureError, ""),
    802: (CudaError, "The host's NVLink fabric is not up: start nvidia-fabricmanager."),
    803: (DriverMismatchError, ""),
    804: (DriverMismatchError, ""),
    999: (CudaError, "Often the nvidia-uvm kernel module is not loaded: run nvidia-modprobe -u."),
}
