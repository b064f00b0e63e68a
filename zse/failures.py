"""What Python, the system and heavy packages raise, said as the deliberate errors of zse.

The command line and the server end with what this returns. Only what a user can do something about
has words here; anything else is a defect of ours and keeps its trace.
"""

from __future__ import annotations

import errno
import re
from pathlib import Path

from zse.errors import DeviceError, DiskFullError, MissingDependencyError, StoreError, ZSEError
from zse.install import EXTRA_OF_PACKAGE, find_strangers, strangers_warning
from zse.store.cache_use import usable
from zse.store.local import FULL_ERRORS, translated_os_error
from zse.units import GIB

_PACKAGE = Path(__file__).resolve().parent
_LESS_MEMORY = "Use less with --max-context, --kv-gib or a smaller model, or free memory."
_TOO_MANY_FILES = frozenset({errno.EMFILE, errno.ENFILE})
# What torch says as a RuntimeError when the system gives it no memory.
_TORCH_REFUSED = re.compile(r"can't allocate memory: you tried to allocate (\d+) bytes")


class UnforeseenError(ZSEError):
    """Something failed that nobody thought of: a defect, or a machine out of order."""

    default_hint = (
        "For the traceback, which a report needs: ZSE_DEBUG=1, or zse serve --log-level debug."
    )


def as_error(failure: BaseException, cache_dir: Path) -> ZSEError | None:
    """Return the deliberate error that says what ``failure`` means; None when it has no words."""
    if isinstance(failure, ZSEError):
        return failure
    if isinstance(failure, ImportError):
        return _of_import(failure)
    if isinstance(failure, MemoryError):
        return DeviceError("the machine has no memory left for this", hint=_LESS_MEMORY)
    if isinstance(failure, OSError):
        return _of_system(failure, cache_dir)
    refused = _TORCH_REFUSED.search(str(failure)) if isinstance(failure, RuntimeError) else None
    if refused is not None:
        return DeviceError(
            f"the machine has no room for {int(refused[1]) / GIB:.1f} GiB more memory",
            hint=_LESS_MEMORY,
        )
    return None


def deliberate(failure: BaseException, cache_dir: Path) -> ZSEError:
    """Return the deliberate error that says what ``failure`` means, a defect where it has none."""
    if (error := as_error(failure, cache_dir)) is not None:
        return error
    words = str(failure).strip().partition("\n")[0]
    said = f"{type(failure).__name__}: {words}" if words else type(failure).__name__
    hint = strangers_warning(find_strangers())  # code of another program fails in any way
    return UnforeseenError(f"{said}{_place(failure)}", hint=hint)


def _of_import(failure: ImportError) -> ZSEError | None:
    package = (failure.name or "").partition(".")[0]
    extra = EXTRA_OF_PACKAGE.get(package)
    if extra is None:
        return None
    if isinstance(failure, ModuleNotFoundError):
        return MissingDependencyError(f"this needs the package {package}", extra=extra)
    return MissingDependencyError(f"{package} cannot be imported: {failure}", extra=extra)


def _of_system(failure: OSError, cache_dir: Path) -> ZSEError | None:
    if failure.errno == errno.ENOMEM:
        return DeviceError("the machine has no memory left for this", hint=_LESS_MEMORY)
    if failure.errno in _TOO_MANY_FILES:
        return StoreError("too many files are open", hint="Allow more: ulimit -n 65536")
    if failure.filename is None:
        full = failure.errno in FULL_ERRORS
        return DiskFullError(f"the disk is full: {failure.strerror}") if full else None
    try:
        with usable(cache_dir):
            raise failure
    except ZSEError as error:  # it was about the cache
        return error
    except OSError:
        return translated_os_error(failure, Path(str(failure.filename)), "use")


def _place(failure: BaseException) -> str:
    """Return the innermost line of zse that was running."""
    trace, place = failure.__traceback__, ""
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        if path.is_relative_to(_PACKAGE):
            place = f" (zse/{path.relative_to(_PACKAGE)}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return place
