"""Parameter types of the driver's functions, so that ctypes converts plain integers by itself.

Handles travel as ``c_void_p``, device addresses as ``c_uint64``. A function that is not listed
cannot be called: an untyped ctypes call cuts a 64-bit address to 32 bits.
"""

from __future__ import annotations

from ctypes import c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from typing import Any

POINTER = c_void_p
HANDLE = c_void_p
ADDRESS = c_uint64
FLAGS64 = c_uint64

SIGNATURES: dict[str, tuple[type[Any], ...]] = {
    # errors, driver, device
    "cuGetErrorName": (c_int, POINTER),
    "cuGetErrorString": (c_int, POINTER),
    "cuDriverGetVersion": (POINTER,),
    "cuInit": (c_uint,),
    "cuDeviceGetCount": (POINTER,),
    "cuDeviceGet": (POINTER, c_int),
    "cuDeviceGetName": (POINTER, c_int, c_int),
    "cuDeviceGetAttribute": (POINTER, c_int, c_int),
    "cuDeviceTotalMem_v2": (POINTER, c_int),
    "cuDeviceGetUuid_v2": (POINTER, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER, c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxSetCurrent": (HANDLE,),
    "cuCtxGetCurrent": (POINTER,),
    "cuCtxSetLimit": (c_int, c_size_t),
    # memory
    "cuMemGetInfo_v2": (POINTER, POINTER),
    "cuMemAlloc_v2": (POINTER, c_size_t),
    "cuMemFree_v2": (ADDRESS,),
    "cuMemHostAlloc": (POINTER, c_size_t, c_uint),
    "cuMemFreeHost": (POINTER,),
    "cuMemHostRegister_v2": (POINTER, c_size_t, c_uint),
    "cuMemHostUnregister": (POINTER,),
    "cuMemcpyHtoDAsync_v2": (ADDRESS, POINTER, c_size_t, HANDLE),
    "cuMemcpyDtoHAsync_v2": (POINTER, ADDRESS, c_size_t, HANDLE),
    "cuMemcpyDtoDAsync_v2": (ADDRESS, ADDRESS, c_size_t, HANDLE),
    "cuMemsetD8Async": (ADDRESS, c_ubyte, c_size_t, HANDLE),
    "cuMemGetAllocationGranularity": (POINTER, POINTER, c_int),
    "cuMemAddressReserve": (POINTER, c_size_t, c_size_t, ADDRESS, FLAGS64),
    "cuMemAddressFree": (ADDRESS, c_size_t),
    "cuMemCreate": (POINTER, c_size_t, POINTER, FLAGS64),
    "cuMemRelease": (c_uint64,),
    "cuMemMap": (ADDRESS, c_size_t, c_size_t, c_uint64, FLAGS64),
    "cuMemUnmap": (ADDRESS, c_size_t),
    "cuMemSetAccess": (ADDRESS, c_size_t, POINTER, c_size_t),
    "cuMemExportToShareableHandle": (POINTER, c_uint64, c_int, FLAGS64),
    "cuMemImportFromShareableHandle": (POINTER, POINTER, c_int),
    "cuMemHostGetDevicePointer_v2": (POINTER, POINTER, c_uint),
    # other GPUs
    "cuDeviceCanAccessPeer": (POINTER, c_int, c_int),
    "cuDeviceGetP2PAttribute": (POINTER, c_int, c_int, c_int),
    # streams and events
    "cuStreamCreate": (POINTER, c_uint),
    "cuStreamDestroy_v2": (HANDLE,),
    "cuStreamSynchronize": (HANDLE,),
    "cuStreamWaitValue32_v2": (HANDLE, ADDRESS, c_uint, c_uint),
    "cuStreamWriteValue32_v2": (HANDLE, ADDRESS, c_uint, c_uint),
    "cuEventCreate": (POINTER, c_uint),
    "cuEventDestroy_v2": (HANDLE,),
    "cuEventRecord": (HANDLE, HANDLE),
    "cuEventSynchronize": (HANDLE,),
    "cuEventElapsedTime": (POINTER, HANDLE, HANDLE),
    # kernels
    "cuModuleLoadData": (POINTER, POINTER),
    "cuModuleUnload": (HANDLE,),
    "cuModuleGetFunction": (POINTER, HANDLE, POINTER),
    "cuFuncSetAttribute": (HANDLE, c_int, c_int),
    "cuLaunchKernelEx": (POINTER, HANDLE, POINTER, POINTER),
    # graphs
    "cuStreamBeginCapture_v2": (HANDLE, c_int),
    "cuStreamEndCapture": (HANDLE, POINTER),
    "cuGraphInstantiateWithFlags": (POINTER, HANDLE, FLAGS64),
    "cuGraphGetNodes": (HANDLE, POINTER, POINTER),
    "cuGraphDestroy": (HANDLE,),
    "cuGraphUpload": (HANDLE, HANDLE),
    "cuGraphLaunch": (HANDLE, HANDLE),
    "cuGraphExecDestroy": (HANDLE,),
}

BRIEF = frozenset(
    {
        "cuMemcpyHtoDAsync_v2",
        "cuMemcpyDtoHAsync_v2",
        "cuMemcpyDtoDAsync_v2",
        "cuMemsetD8Async",
        "cuStreamWaitValue32_v2",
        "cuStreamWriteValue32_v2",
        "cuEventRecord",
        "cuCtxSetCurrent",
        "cuDriverGetVersion",
        "cuDeviceGetCount",
        "cuDeviceGet",
        "cuDeviceGetName",
        "cuDeviceGetAttribute",
        "cuDeviceTotalMem_v2",
        "cuDeviceGetUuid_v2",
        "cuLaunchKernelEx",
        "cuGraphLaunch",
    }
)
"""Functions that only put work into a stream; copies are of pinned memory.

While another thread holds the driver's lock, to pin memory or to load code, they wait for it with
the interpreter in hand: at a start, and for milliseconds.
"""
