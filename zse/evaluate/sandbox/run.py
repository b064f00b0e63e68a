"""Runs a program in the jail and says what came of it; what it wrote is bounded, as all else is."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from zse.errors import ZSEError
from zse.evaluate.sandbox.jail import BROKEN
from zse.records import record
from zse.units import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping

Mode = Literal["namespaces", "landlock", "limits"]
"""How a program is held, the strongest first."""
MODES: tuple[Mode, ...] = get_args(Mode)
Outcome = Literal["passed", "failed", "time", "output"]
_JAIL = Path(__file__).with_name("jail.py")
_CHUNK = 65536
_OUT_OF_TIME = (128 + signal.SIGXCPU, -signal.SIGXCPU)


@record
class Limits:
    """What a program may take; each of its processes, where that is said."""

    seconds: float = 20.0
    """By the clock, until it is ended."""
    cpu_seconds: int = 10
    """Of each process: what a loaded machine delays is not held against a program."""
    memory_bytes: int = 512 * MIB
    """Of each process."""
    disk_bytes: int = 16 * MIB
    """Of all its files, where it has a root of its own."""
    file_bytes: int = 16 * MIB
    num_files: int = 64
    num_processes: int = 4
    """Threads too."""
    output_bytes: int = 65536


@record
class Verdict:
    """What came of a program."""

    outcome: Outcome
    """``passed`` where it went through to its end; ``failed`` where it ended before, ``time`` and
    ``output`` where it was ended for taking too much."""
    output: str
    """The end of what it wrote, errors too."""
    seconds: float


class SandboxError(ZSEError):
    """Programs cannot be held, so none is run."""


@functools.cache
def strongest_mode() -> Mode:
    """Return how programs are held here, found out once by running one.

    Raises:
        SandboxError: This is root, whom nothing here would hold.
    """
    for mode in MODES:
        if _run("pass", Limits(), mode) is not None:
            return mode
    raise SandboxError(
        "programs of a model are not run as root where the kernel has neither namespaces for "
        "users nor Landlock",
        hint="Run it as another user, whom limits bind.",
    )


def run_program(text: str, limits: Limits | None = None, mode: Mode | None = None) -> Verdict:
    """Run a Python program of unknown origin.

    A program that searches its own file can claim to have gone through. It is shut in; that
    its verdict is honest is not promised for one that cheats on purpose.

    Args:
        text: The program; what else it needs must stand in it.
        limits: What it may take.
        mode: How it is held; by default as strongly as this kernel can.

    Raises:
        SandboxError: It was not run.
    """
    verdict = _run(text, limits or Limits(), mode or strongest_mode())
    if verdict is None:
        raise SandboxError("the sandbox cannot be made, though it could before")
    return verdict


def _run(text: str, limits: Limits, mode: Mode) -> Verdict | None:
    """Return the verdict, or None where the program was not run."""
    proof = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="zse-run-", ignore_cleanup_errors=True) as name:
        base, folder, program = Path(name), Path(name) / "work", Path(name) / "program.py"
        base.chmod(0o755)
        folder.mkdir()
        folder.chmod(0o777)
        program.write_text(f"{text}\n__import__('os').write(1, b'{proof}')\n", encoding="utf-8")
        program.chmod(0o644)
        asked = {
            "mode": mode,
            "folder": str(folder),
            "program": str(program),
            "limits": asdict(limits),
        }
        started = time.monotonic()
        output, why, code = _watched(_command(asked), folder, limits, proof.encode())
    if code == BROKEN and output.startswith(b"jail: "):
        return None
    outcome: Outcome = why or ("failed" if proof.encode() not in output else "passed")
    shown = output.replace(proof.encode(), b"")[-2000:].decode("utf-8", "replace")
    return Verdict(outcome=outcome, output=shown, seconds=time.monotonic() - started)


def _command(asked: Mapping[str, object]) -> list[str]:
    return [os.path.realpath(sys.executable), "-I", "-S", "-B", str(_JAIL), json.dumps(asked)]


def _watched(
    command: list[str], folder: Path, limits: Limits, proof: bytes
) -> tuple[bytes, Literal["time", "output"] | None, int]:
    """Run a command until it ends, says the proof, or takes too much; then end all of it.

    Returns:
        What it wrote, why it was ended, and its exit code.
    """
    why: Literal["time", "output"] | None = None
    output, deadline = b"", time.monotonic() + limits.seconds
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        cwd=folder, env={}, start_new_session=True,
    ) as child, selectors.DefaultSelector() as ready:  # fmt: skip
        assert child.stdout is not None
        descriptor = child.stdout.fileno()
        ready.register(descriptor, selectors.EVENT_READ)
        try:
            while proof not in output:
                left = deadline - time.monotonic()
                if left <= 0 or not ready.select(left):
                    why = "time"
                    break
                piece = os.read(descriptor, _CHUNK)
                if not piece:
                    break
                output += piece
                if len(output) > limits.output_bytes and proof not in output:
                    why = "output"
                    break
        finally:
            code = _end(child, patience=1.0 if why is None and proof not in output else 0.0)
    if why is None and code in _OUT_OF_TIME:
        why = "time"
    return output, why, code


def _end(child: subprocess.Popen[bytes], patience: float) -> int:
    """End a child and its session, once it had a moment to end by itself."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(patience)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    return child.wait()
