"""The machine: memory, files, the cache, what is installed, and every GPU with its kernels."""

from __future__ import annotations

import platform
import resource
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from zse import __version__
from zse.device.probe import probe
from zse.device.survey import survey_cuda
from zse.doctor.findings import Findings, fine, note, problem
from zse.errors import NotFoundError, ZSEError
from zse.install import find_strangers, strangers_warning
from zse.kernels.catalog import all_variants
from zse.kernels.errors import KernelPackError, KernelPackNotFound
from zse.kernels.find import find_pack
from zse.kernels.native.library import load
from zse.store.cache_use import ROOM_HINT, TAG_NAME, is_tagged, make_cache_folder, usable
from zse.units import GIB, memory_text

if TYPE_CHECKING:
    from zse.device.facts import GpuInfo
    from zse.device.survey import GpuState
    from zse.settings import Settings

LITTLE_MEMORY_BYTES = GIB
"""Below this not even a small model has room beside an interpreter."""
LITTLE_ROOM_BYTES = 5 * GIB
FILES_FOR_MANY_CLIENTS = 4096


def check_installation(settings: Settings) -> Findings:
    """Look at the packages, and at what else is installed under the same name."""
    del settings
    yield fine("zse", f"zse {__version__}, Python {platform.python_version()}")
    if strangers := find_strangers():
        yield problem("zse", "another program is installed as zse", strangers_warning(strangers))


def check_memory(settings: Settings) -> Findings:
    del settings
    machine = probe()
    free = machine.available_memory_bytes
    quota = f", {machine.cpu_quota:g} of them by quota" if machine.cpu_quota else ""
    found = (
        f"{memory_text(free)} of {memory_text(machine.total_memory_bytes)} available, "
        f"{machine.physical_cores} cores of {machine.cpu_model}{quota}"
    )
    if free < LITTLE_MEMORY_BYTES:
        yield problem("memory", found, "Free memory, or raise the limit of the container.")
    else:
        yield fine("memory", found)


def check_limits(settings: Settings) -> Findings:
    """Look at how many connections the limit of open files allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.serve.http.max_connections or FILES_FOR_MANY_CLIENTS
    found = f"{soft} files may be open (up to {hard})"
    if 0 <= soft < wanted:
        yield note("limits", found, f"For {wanted} connections at once: ulimit -n {wanted}")
    else:
        yield fine("limits", found)


def check_cache(settings: Settings) -> Findings:
    """Look at the cache's folder, whether it takes files, and the room on its disk."""
    folder = settings.cache_dir
    with usable(folder):
        make_cache_folder(folder)
    free = shutil.disk_usage(folder).free
    found = f"{folder}, {free / 1e9:.1f} GB free on its disk"
    if free < LITTLE_ROOM_BYTES:
        yield note("cache", found, ROOM_HINT)
    elif not is_tagged(folder):
        yield note(
            "cache",
            f"{found}; it has no {TAG_NAME}, so that `zse cache clean` removes nothing",
            "Run `zse cache clean`, which says how to tag it.",
        )
    else:
        yield fine("cache", found)


def check_backends(settings: Settings) -> Findings:
    """Look at what can compute: GPUs and the CPU, with kernels for them."""
    survey = survey_cuda()
    wanted = settings.serve.load.device.name
    wants_gpu = wanted.startswith("cuda")
    if survey.problem is not None and not wants_gpu:
        yield note("gpu", survey.problem.message, survey.problem.hint)
    elif survey.problem is not None:
        yield problem("gpu", survey.problem.message, survey.problem.hint)
    for gpu in survey.gpus:
        yield from _check_gpu(gpu, settings)
    yield from _check_processor(settings, is_needed=wanted == "cpu" or not survey.gpus)


def _check_processor(settings: Settings, *, is_needed: bool) -> Findings:
    """Look at the library of kernels that serving on the CPU would use."""
    try:
        library = load(settings.serve.load.device.cpu_instructions)
    except ZSEError as error:
        say = problem if is_needed else note
        yield say("cpu", error.message, error.hint)
    else:
        yield fine("cpu", f"kernels for {library.instructions}: {library.path}")


def _check_gpu(gpu: GpuState, settings: Settings) -> Findings:
    info = gpu.info
    name = f"gpu {info.ordinal}"
    if gpu.problem is not None:
        yield problem(name, f"{info.name}: {gpu.problem.message}", gpu.problem.hint)
        return
    free = f"{memory_text(info.free_bytes)} of {memory_text(info.total_bytes)} free"
    yield fine(name, f"{info.name}, {info.target}, {free}")
    yield from _check_kernels(info, settings)


def _check_kernels(info: GpuInfo, settings: Settings) -> Findings:
    """Look at the pack that serving would use."""
    named = settings.serve.load.device.kernels
    try:
        pack = find_pack(
            info,
            explicit=Path(named).expanduser() if named else None,
            sections=None,
            cache_dir=settings.cache_dir,
            build=False,
        )
    except KernelPackNotFound as error:
        if find_spec("triton") is None:
            yield problem("kernels", error.message, error.hint)
            return
        yield note(
            "kernels",
            f"there is no kernel pack for {info.name} yet",
            f"The first start builds one, which takes minutes: zse kernels build --gpu "
            f"{info.target} -o PACK does so ahead.",
        )
    except (KernelPackError, NotFoundError) as error:
        yield problem("kernels", error.message, error.hint)
    else:
        missing = list(pack.missing(all_variants()))
        found = f"{pack.name}: {len(pack)} kernels for {info.target}"
        if missing:
            fix = f"Build it again: zse kernels build --gpu {info.target} -o PACK"
            yield problem("kernels", f"{found}, {len(missing)} missing", fix)
        else:
            yield fine("kernels", found)
