"""Loads the processor's kernels: the best library that is there and that this processor runs."""

from __future__ import annotations

import ctypes
import logging
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_uint64, c_void_p
from functools import cache
from typing import TYPE_CHECKING

from zse.device.processor import architecture, features
from zse.errors import UsageError
from zse.kernels.errors import InstructionsRefused, NativeLibraryError
from zse.kernels.native import codes, structs
from zse.kernels.native.instructions import instructions_named, of_architecture
from zse.kernels.native.sources import has_sources, is_current, library_path

if TYPE_CHECKING:
    from pathlib import Path

    from zse.device.probe import DeviceInfo
    from zse.kernels.native.instructions import Instructions

SPIN_NANOSECONDS = 50_000
"""How long a thread without work looks for more before it sleeps: to wake one costs as much."""
_LOG = logging.getLogger("zse.kernels")


class Library:
    """A loaded library.

    Raises:
        InstructionsRefused: The processor does not run what the library was compiled for.
        NativeLibraryError: The file is damaged, for another processor or another version of zse.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._functions = functions = ctypes.CDLL(str(path))
            _declare(functions)
        except (OSError, AttributeError) as error:
            raise NativeLibraryError(f"{path} cannot be loaded: {error}") from error
        if not functions.zse_probe():  # first of all: any other function may use them
            raise InstructionsRefused(
                f"this processor names the instructions of {path.name} and does not run them"
            )
        self._check_structures()
        self.instructions: str = functions.zse_instructions().decode()
        self.run = functions.zse_run
        """``run(pool, operations, num_operations, step)``: one step, while other threads run."""

    def _check_structures(self) -> None:
        expected = [ctypes.sizeof(one) for one in structs.ALL]
        sizes = (c_int64 * len(expected))()
        count = self._functions.zse_struct_sizes(sizes, len(expected))
        if count != len(expected) or list(sizes) != expected:
            raise NativeLibraryError(
                f"{self.path} belongs to another version of zse: its structures have "
                f"{list(sizes)} bytes, expected {expected}"
            )

    def start_pool(self, num_threads: int, *, spin_nanoseconds: int = SPIN_NANOSECONDS) -> Pool:
        """Start threads, the calling one among them.

        Raises:
            NativeLibraryError: The system lets none be started.
        """
        return Pool(self, num_threads, spin_nanoseconds)

    def widen(self, numbers: int, scheme: codes.Scheme, count: int, output: int) -> None:
        """Write ``count`` fp32, fp16 or bf16 numbers at an address as float32 at another."""
        self._functions.zse_widen(numbers, scheme, count, output)

    def ring(self, bell: int, count: int) -> None:
        """Bring the bell at an address to a number; whoever waits for it goes on."""
        self._functions.zse_bell_ring(bell, count)

    def wait(
        self, bell: int, count: int, *, spin_ns: int, timeout_ns: int, broken: int = 0
    ) -> bool:
        """Wait until a bell is at a number, or the int32 at ``broken`` is not 0; say whether it is.

        Who waits spins first, and sleeps then; other threads of Python run meanwhile.
        """
        return bool(
            self._functions.zse_bell_wait(bell, count, spin_ns, timeout_ns, broken or None) == 1
        )

    def copy_pieces(
        self, source: int, stride_bytes: int, piece_bytes: int, num_pieces: int, output: int
    ) -> None:
        """Copy evenly spaced pieces to an address, one behind the other."""
        self._functions.zse_copy_pieces(source, stride_bytes, piece_bytes, num_pieces, output)

    def write_rows(self, codec: int, rows: int, count: int, width: int, output: int) -> None:
        """Write float32 [count, width] at an address as ``zse.kernels.wire`` has it, at another."""
        self._functions.zse_write_rows(codec, rows, count, width, output)

    def read_rows(self, codec: int, data: int, count: int, width: int, rows: int) -> None:
        """Read them back; all bytes of the rows are there."""
        self._functions.zse_read_rows(codec, data, count, width, rows)


class Pool:
    """Threads that run steps, one step at a time."""

    def __init__(self, library: Library, num_threads: int, spin_nanoseconds: int) -> None:
        self.library = library
        self.num_threads = num_threads
        functions = library._functions
        address: int | None = functions.zse_pool_start(num_threads, spin_nanoseconds)
        if address is None:
            raise NativeLibraryError(
                f"the system does not let {num_threads} threads be started",
                hint="Raise the limit of processes (ulimit -u, pids.max), or set --threads lower.",
            )
        self.handle = c_void_p(address)

    def close(self) -> None:
        """Stop the threads; no step may be running."""
        handle, self.handle = self.handle, c_void_p()
        self.library._functions.zse_pool_stop(handle)


def _declare(functions: ctypes.CDLL) -> None:
    functions.zse_run.argtypes = [
        c_void_p,
        POINTER(structs.Operation),
        c_int64,
        POINTER(structs.Step),
    ]
    functions.zse_run.restype = None
    functions.zse_pool_start.argtypes = [c_int32, c_int64]
    functions.zse_pool_start.restype = c_void_p
    functions.zse_pool_stop.argtypes = [c_void_p]
    functions.zse_pool_stop.restype = None
    functions.zse_struct_sizes.argtypes = [POINTER(c_int64), c_int64]
    functions.zse_struct_sizes.restype = c_int64
    functions.zse_instructions.argtypes = []
    functions.zse_instructions.restype = c_char_p
    functions.zse_probe.argtypes = []
    functions.zse_probe.restype = c_int32
    functions.zse_widen.argtypes = [c_void_p, c_int32, c_int64, c_void_p]
    functions.zse_widen.restype = None
    functions.zse_bell_ring.argtypes = [c_void_p, c_uint64]
    functions.zse_bell_ring.restype = None
    functions.zse_bell_wait.argtypes = [c_void_p, c_uint64, c_int64, c_int64, c_void_p]
    functions.zse_bell_wait.restype = c_int32
    functions.zse_copy_pieces.argtypes = [c_void_p, c_int64, c_int64, c_int64, c_void_p]
    functions.zse_copy_pieces.restype = None

    for function in (functions.zse_write_rows, functions.zse_read_rows):
        function.argtypes = [c_int32, c_void_p, c_int64, c_int64, c_void_p]
        function.restype = None


def spin_nanoseconds(machine: DeviceInfo, num_threads: int) -> int:
    """Return how long threads without work look for more on a machine, 0 for not at all.

    Who spins takes time from whoever has the work, where the machine, or what a container may use
    of it, runs fewer threads at once than there are.
    """
    runs_all = num_threads <= machine.physical_cores
    within_quota = not machine.cpu_quota or num_threads <= machine.cpu_quota
    return SPIN_NANOSECONDS if runs_all and within_quota else 0


@cache
def load(named: str = "auto") -> Library:
    """Return the library for this processor, loaded once.

    Args:
        named: A set of instructions, or ``auto`` for the best that is there and runs.

    Raises:
        UsageError: The one that is named is unknown, or this processor does not have it.
        NativeLibraryError: There is none for this processor, or it cannot be loaded.
    """
    if named != "auto":
        return _load_named(instructions_named(named))
    for instructions in runnable():
        if not _is_there(instructions):
            continue
        try:
            return Library(library_path(instructions))
        except InstructionsRefused as refused:
            _LOG.warning("%s", refused)
    raise _none_found()


def runnable() -> list[Instructions]:
    """Return the sets of instructions that this processor says it has, the best first."""
    sets = of_architecture(architecture())
    has = features()
    return [one for one in sets if one.features <= has] or list(sets[-1:])


def libraries(of: str) -> list[Path]:
    """Return the libraries of an architecture, for an image; a checkout builds what is stale.

    Raises:
        MissingDependencyError: This is a checkout without a compiler.
        NativeLibraryError: This installation lacks some.
    """
    wanted = of_architecture(of)
    if has_sources():
        from zse.kernels.native.build import build

        return build(wanted)
    lacking = [one.file_name for one in wanted if not is_current(one)]
    if lacking or not wanted:
        raise NativeLibraryError(
            f"this installation of zse lacks kernels for processors of {of}: "
            f"{', '.join(lacking) or 'there are none'}"
        )
    return [library_path(one) for one in wanted]


def _load_named(instructions: Instructions) -> Library:
    lacking = sorted(instructions.features - features())
    if instructions.architecture != architecture() or (lacking and features()):
        names = ", ".join(one.name for one in runnable())
        what = f"lacks {' '.join(lacking)}" if lacking else f"is of {architecture()}"
        raise UsageError(
            f"ZSE_CPU_INSTRUCTIONS is {instructions.name!r}, but this processor {what}",
            hint=f"Use one of {names}, or leave it unset.",
        )
    if not _is_there(instructions):
        raise _none_found()
    return Library(library_path(instructions))


def _is_there(instructions: Instructions) -> bool:
    """Whether a library is there; a checkout builds it where it is not, or is stale."""
    if is_current(instructions):
        return True
    if not has_sources():
        return False
    from zse.kernels.native.build import build  # what is installed never builds

    _LOG.info("building the CPU's kernels for %s", instructions.name)
    build([instructions])
    return True


def _none_found() -> NativeLibraryError:
    machine = architecture()
    known = of_architecture(machine)
    if not known:
        return NativeLibraryError(
            f"zse has no kernels for processors of {machine}, only for amd64 and arm64",
            hint="Use --device torch, which needs the extra `convert`.",
        )
    folder = library_path(known[0]).parent
    return NativeLibraryError(
        f"no library of kernels for this processor is in {folder}: expected one of "
        + ", ".join(one.file_name for one in runnable())
    )
