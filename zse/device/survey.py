"""Every GPU of the machine looked at once, whatever state it is in.

A GPU that cannot be opened is described as far as the driver does so without a context, with what
is in the way. Opening one costs about 0.2 s and half a gigabyte of it, for a moment.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import TYPE_CHECKING

from zse.device.cuda.errors import CudaError, CudaRule
from zse.device.cuda.gpu import Gpu
from zse.device.cuda.info import read_info, seen_ordinals
from zse.device.cuda.library import Driver, version_text
from zse.device.cuda.links import read_links
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zse.device.facts import GpuInfo, GpuLink
    from zse.errors import DeviceError


@record
class GpuState:
    """One GPU and whether this process can use it."""

    info: GpuInfo
    problem: DeviceError | None
    """Why it cannot be opened; then ``info.free_bytes`` is 0."""


@record
class CudaSurvey:
    """The CUDA side of the machine."""

    driver_version: str
    """As in ``12.4``; empty when there is no driver that says it."""
    gpus: tuple[GpuState, ...]
    problem: DeviceError | None
    """Why there is no GPU to speak of: no driver, too old, none visible."""
    links: tuple[GpuLink, ...] = ()
    """How each GPU reaches each other one's memory, both directions of a pair."""


def survey_cuda(driver: Driver | None = None) -> CudaSurvey:
    """Look at every GPU; nothing stays open, and the caller's own GPU stays current."""
    version = ""
    try:
        driver = driver or Driver()
        version = version_text(driver.read_version())
        driver.version()
        ordinals = seen_ordinals(driver)  # before any context is asked for: it starts the driver
        with _same_context(driver):
            gpus = tuple(_look_at(driver, ordinal) for ordinal in ordinals)
        links = tuple(read_links(driver))
    except CudaError as error:
        return CudaSurvey(driver_version=version, gpus=(), problem=error)
    none = CudaRule.NO_DEVICE(
        "the driver shows no GPU to this process", hint="Check CUDA_VISIBLE_DEVICES."
    )
    problem = None if gpus else none
    return CudaSurvey(driver_version=version, gpus=gpus, problem=problem, links=links)


def total_bytes(ordinal: int, driver: Driver | None = None) -> int:
    """Return the memory of a GPU, used or not, without opening it."""
    return read_info(driver or Driver(), ordinal).total_bytes


@contextlib.contextmanager
def _same_context(driver: Driver) -> Iterator[None]:
    """Make current again in this thread what is now: a GPU that was closed is not to be."""
    context = driver.read(ctypes.c_void_p, "cuCtxGetCurrent")
    try:
        yield
    finally:
        driver.release("cuCtxSetCurrent", context)


def _look_at(driver: Driver, ordinal: int) -> GpuState:
    try:
        with Gpu.open(ordinal, driver=driver) as gpu:
            return GpuState(info=gpu.info, problem=None)
    except CudaError as error:
        return GpuState(info=read_info(driver, ordinal), problem=error)
