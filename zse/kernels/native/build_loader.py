"""Compiles what copies a file to a device (``zse/device/loader``), for any architecture.

It computes nothing, so there is one library an architecture and no set of instructions is asked
for. The compiler is that of the processors' kernels, which is known here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.device.loader import library
from zse.kernels.native.build import build_lock, compiler_command, run_compiler, target_of
from zse.kernels.native.sources import COMPILER, FLAGS, GLIBC, LINK_FLAGS
from zse.kernels.sources import digest_of
from zse.store.whole import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

PROCESSORS = {"amd64": "x86_64", "arm64": "generic"}
"""The compiler's word for the least processor of each architecture."""


def loader_sources() -> list[Path]:
    return sorted([*library.FOLDER.glob("*.c"), *library.FOLDER.glob("*.h")])


def build_loader(architectures: Iterable[str] = PROCESSORS) -> list[Path]:
    """Build the libraries that are not there or older than their sources; return all asked for.

    Raises:
        MissingDependencyError: There is something to build and no compiler.
        NativeLibraryError: A source does not compile.
    """
    asked = list(architectures)
    with build_lock():
        for architecture in asked:
            digest = _digest(architecture)
            path = library.library_path(architecture)
            noted = path.with_suffix(".digest")
            if path.is_file() and noted.is_file() and noted.read_text() == digest:
                continue
            _build(architecture, path)
            write_whole(noted, digest)
    return [library.library_path(one) for one in asked]


def _digest(architecture: str) -> str:
    told = " ".join((COMPILER, GLIBC, PROCESSORS[architecture], *FLAGS, *LINK_FLAGS))
    files = [(path.name, path.read_bytes()) for path in loader_sources()]
    return digest_of([("flags", told.encode()), *files])


def _build(architecture: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    target = target_of(architecture, PROCESSORS[architecture])
    names = [one.name for one in loader_sources() if one.suffix == ".c"]
    words = [*target, *FLAGS, *LINK_FLAGS, *names, "-o", str(temporary)]
    run_compiler([*compiler_command(), *words], library.FOLDER)
    temporary.chmod(0o644)
    temporary.replace(path)
