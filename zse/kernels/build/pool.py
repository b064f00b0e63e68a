"""Worker processes that compile, kept busy by one thread each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zse.errors import MissingDependencyError
from zse.records import record
from zse.settings import subprocess_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

WORKER = "zse.kernels.build.worker"
MIN_TRITON = (3, 9)
"""Older compilers keep too many registers: on an H200 the INT4 kernels were half as fast."""
_TRITON_PREFIXES = ("TRITON_", "PTXAS_", "MLIR_", "LLVM_", "DISABLE_PTXAS_OPT")


@record
class Answer:
    """What became of one job."""

    job: dict[str, Any]
    facts: dict[str, Any]
    """Launch facts; empty when it failed."""
    code: bytes = b""
    error: str = ""
    """What the compiler said; empty when it succeeded."""


def require_triton() -> Path:
    """Return triton's folder without importing it.

    Raises:
        MissingDependencyError: It is not installed, or too old.
    """
    spec = find_spec("triton")
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependencyError("building kernels needs the package triton", extra="kernels")
    found = version("triton")
    if tuple(int(part) for part in found.split(".")[:2]) < MIN_TRITON:
        raise MissingDependencyError(
            f"triton {found} is installed; kernels are built with "
            f"{'.'.join(map(str, MIN_TRITON))} or later, whose code is up to twice as fast",
            extra="kernels",
        )
    return Path(spec.submodule_search_locations[0])


def compiler_environment(cache_dir: Path, import_paths: Sequence[Path] = ()) -> dict[str, str]:
    """Return the environment of a worker: triton's own variables, none of the caller's.

    The ptxas of CUDA 12 compiles for every architecture: its code loads on drivers of CUDA 12 and
    of CUDA 13, whereas code of the other one that triton ships needs a driver of CUDA 13. Triton's
    cache is of these builds alone.
    """
    ptxas = require_triton() / "backends" / "nvidia" / "bin" / "ptxas"
    inherited = {
        name: value
        for name, value in subprocess_environment().items()
        if not name.startswith(_TRITON_PREFIXES)
    }
    paths = [*map(str, import_paths), *filter(None, sys.path)]
    return {
        **inherited,
        "PYTHONPATH": ":".join(paths),
        "TRITON_CACHE_DIR": str(cache_dir),
        "TRITON_DISABLE_LINE_INFO": "1",  # else paths of this machine stand in the code
        "TRITON_DEFAULT_FP_FUSION": "1",
        "TRITON_PTXAS_PATH": str(ptxas),
        "TRITON_PTXAS_BLACKWELL_PATH": str(ptxas),
    }


def run_jobs(
    jobs: Sequence[dict[str, Any]],
    *,
    processes: int,
    environment: dict[str, str],
    progress: Callable[[Answer], None],
) -> None:
    """Compile every job (see ``worker.compile_job``), each answer told to ``progress``.

    It is called from several threads, but never at once. A process that dies fails the job it had,
    and a new one takes the rest. An error of ``progress`` or an interrupt ends the build: compilers
    are stopped, nothing more is started.
    """
    todo = deque(jobs)
    lock = threading.Lock()
    running: set[subprocess.Popen[str]] = set()

    def work() -> None:
        with _worker(environment, running) as ask:
            while True:
                try:
                    job = todo.popleft()
                except IndexError:
                    return
                answer = ask(job)
                with lock:
                    progress(answer)

    count = max(min(processes, len(jobs)), 1)
    with ThreadPoolExecutor(count) as executor:
        try:
            for ended in as_completed([executor.submit(work) for _ in range(count)]):
                ended.result()
        except BaseException:
            todo.clear()
            for process in list(running):
                _kill(process)
            raise


def ask_versions(number: int, environment: dict[str, str]) -> dict[str, str]:
    """Return the versions of triton and ptxas that a worker uses for capability ``number``."""
    with _worker(environment, set()) as ask:
        answer = ask({"versions": True, "number": number})
    if answer.error:
        raise MissingDependencyError(f"triton does not start: {answer.error}", extra="kernels")
    return answer.facts


@contextmanager
def _worker(
    environment: dict[str, str], running: set[subprocess.Popen[str]]
) -> Iterator[Callable[[dict[str, Any]], Answer]]:
    """Yield a function that asks one process, started when it is first needed.

    ``running`` holds the process while there is one.
    """
    current: list[subprocess.Popen[str]] = []

    def ask(job: dict[str, Any]) -> Answer:
        if not current:
            current.append(_start(environment))
            running.add(current[0])
        process = current[0]
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            running.discard(process)
            _stop(current.pop())
            code = process.returncode
            ending = f"signal {-code}" if code < 0 else f"exit {code}"
            return Answer(job=job, facts={}, error=f"the compiler died: {ending}")
        reply = json.loads(line)
        return Answer(job=job, facts=reply.get("ok", {}), error=reply.get("error", ""))

    try:
        yield ask
    finally:
        for process in current:
            running.discard(process)
            _stop(process)


def _start(environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", WORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        start_new_session=True,  # an interrupt at the terminal is the build's own to handle
    )


def _kill(process: subprocess.Popen[str]) -> None:
    """End a worker and the assembler that it may be waiting for."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _stop(process: subprocess.Popen[str]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()
    process.wait()
