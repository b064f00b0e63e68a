"""Compiles the kernels into one library for each set of instructions, for any architecture.

The compiler is the clang of the ``ziglang`` wheel, which brings the headers and C libraries of all
targets. The same sources give the same bytes wherever they lie: no path and no time goes into them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from zse.errors import MissingDependencyError
from zse.kernels.errors import NativeLibraryError
from zse.kernels.native.instructions import ALL
from zse.kernels.native.sources import (
    COMPILER,
    FLAGS,
    GLIBC,
    KERNELS,
    LINK_FLAGS,
    compiled_with,
    digest_path,
    is_current,
    library_path,
    source_digest,
    sources,
)
from zse.store.whole import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from zse.kernels.native.instructions import Instructions

OBJECTS = KERNELS.parent.parent / "build" / "native"
"""Compiled files by the digest of what they were made of, beside ``zse`` in a checkout."""
_INCLUDE = re.compile(r'^ *# *include "([^"]+)"', re.MULTILINE)
_TRIPLES = {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}


def build(wanted: Iterable[Instructions] = ALL) -> list[Path]:
    """Build the libraries that are not there or older than their sources; return all asked for.

    Raises:
        MissingDependencyError: There is something to build and no compiler.
        NativeLibraryError: A source does not compile.
    """
    asked = list(wanted)
    with build_lock():
        stale = [one for one in asked if not is_current(one)]
        if stale:
            _build_stale(stale)
    return [library_path(one) for one in asked]


def _build_stale(stale: list[Instructions]) -> None:
    compiler = compiler_command()
    digests = {one.name: source_digest(one) for one in stale}
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        jobs = {
            one.name: [threads.submit(_compile, compiler, one, path) for path in sources()]
            for one in stale
        }
        objects = {name: [job.result() for job in started] for name, started in jobs.items()}
        linked = [
            threads.submit(_link, compiler, one, objects[one.name], digests[one.name])
            for one in stale
        ]
        for job in linked:
            job.result()


def compiler_command() -> list[str]:
    """Return how to call the compiler.

    Raises:
        MissingDependencyError: It is not installed.
    """
    spec = find_spec("ziglang")
    if spec is None or spec.origin is None:
        raise MissingDependencyError(
            "the CPU's kernels are compiled by the package ziglang, which is not installed",
            hint=f"Run scripts/setup in the checkout: it installs ziglang {COMPILER}.",
        )
    return [str(Path(spec.origin).with_name("zig")), "cc"]


def target_of(architecture: str, processor: str) -> list[str]:
    """Return what the compiler is told of an architecture and the least processor of it."""
    return ["-target", f"{_TRIPLES[architecture]}.{GLIBC}", f"-mcpu={processor}"]


def _target(instructions: Instructions) -> list[str]:
    return target_of(instructions.architecture, instructions.compiled_for)


def _compile(compiler: list[str], instructions: Instructions, source: Path) -> Path:
    """Compile one file, unless the same was compiled before."""
    made_of = hashlib.sha256(compiled_with(instructions).encode())
    for path in (source, *_included(source)):
        made_of.update(f"\0{path.name}\0".encode() + path.read_bytes())
    compiled = OBJECTS / f"{source.parent.name}-{source.stem}-{made_of.hexdigest()[:32]}.o"
    if not compiled.is_file():
        temporary = compiled.with_suffix(".part.o")
        named = f'-DZSE_INSTRUCTIONS="{instructions.name}"'
        command = [*compiler, *_target(instructions), *FLAGS, named, "-c"]
        run_compiler([*command, source.relative_to(KERNELS).as_posix(), "-o", str(temporary)])
        temporary.replace(compiled)
    return compiled


def _included(source: Path) -> list[Path]:
    """Return the headers of ours that a file includes, and those that these include."""
    found: list[Path] = []
    left = [source]
    while left:
        path = left.pop()
        for name in _INCLUDE.findall(path.read_text()):
            places = [(folder / name).resolve() for folder in (path.parent, KERNELS / "native")]
            header = next((place for place in places if place.is_file()), None)
            if header is not None and header not in found:
                found.append(header)
                left.append(header)
    return sorted(found)


def _link(
    compiler: list[str], instructions: Instructions, objects: list[Path], digest: str
) -> None:
    """Write a library; its digest comes last, so that what was cut short is built again."""
    path = library_path(instructions)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    names = [str(one) for one in objects]
    run_compiler([*compiler, *_target(instructions), *LINK_FLAGS, *names, "-o", str(temporary)])
    temporary.chmod(0o644)
    temporary.replace(path)
    write_whole(digest_path(instructions), digest)


def run_compiler(command: list[str], folder: Path | None = None) -> None:
    """Run the compiler, in the kernels' folder unless another is named.

    Raises:
        NativeLibraryError: It refuses a source.
    """
    cwd = folder or KERNELS
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=cwd)
    if done.returncode:
        raise NativeLibraryError(
            f"zse's sources in C do not compile: {' '.join(command)}\n{done.stderr.strip()}",
            hint="Correct the source that the compiler names.",
        )


@contextmanager
def build_lock() -> Iterator[None]:
    """One builder at a time: tests in several processes find a library missing at once."""
    OBJECTS.mkdir(parents=True, exist_ok=True)
    with (OBJECTS / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
