"""Whole steps of random small models, run by ``kernels_driver.c``, and what they are compared by."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from zse.kernels.native.build import compiler_command
from zse.kernels.native.sources import GLIBC, KERNELS

if TYPE_CHECKING:
    from collections.abc import Sequence

FOLDER = Path(__file__).parent
FLAGS = ("-std=gnu17", "-Wall", "-Wextra", "-Werror", "-pthread", "-Inative")
TOLERANCE = 2e-5
"""Of the largest logit: sets of instructions add the same numbers in different orders."""
TOLERANCE_OF_CODES = 5e-2
"""Where an activation or a key was rounded to another code."""


@dataclass
class Case:
    """One model's step."""

    name: str
    tokens: list[int] = field(default_factory=list)
    logits: list[float] = field(default_factory=list)


def host_compiler() -> list[str]:
    """Return the system's compiler, where there is one.

    ziglang first compiles what programs begin with, which takes it half a minute.
    """
    return ["cc"] if shutil.which("cc") else compiler_command()


def compile_driver(name: str, output: Path, *more: object, compiler: Sequence[str] = ()) -> Path:
    """Compile ``name`` with what else it needs, files and flags, into a program."""
    words = [*(compiler or host_compiler()), *FLAGS, FOLDER / name, *more, "-o", output, "-lm"]
    subprocess.run([str(word) for word in words], check=True, cwd=KERNELS)
    return output


def cross_compiler(triple: str) -> list[str]:
    return [*compiler_command(), "-target", f"{triple}.{GLIBC}"]


def run_steps(command: Sequence[object], library: Path | None = None) -> str:
    """Return what a driver prints; it ends well, and no sanitizer has anything to say."""
    environment = dict(os.environ)
    if library is not None:
        environment["LD_LIBRARY_PATH"] = str(library.parent)
    done = subprocess.run(
        [str(word) for word in command],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
    )
    # An emulator names what it leaves out of a processor; sanitizers name what they find.
    said = [line for line in done.stderr.splitlines() if not line.startswith("qemu-")]
    assert (done.returncode, said) == (0, []), done.stderr[-4000:]
    return done.stdout


def parse(text: str) -> list[Case]:
    cases: list[Case] = []
    for line in text.splitlines():
        if line.startswith("case"):
            cases.append(Case(line))
        elif line.startswith("token"):
            cases[-1].tokens.append(int(line.split()[1]))
        else:
            cases[-1].logits.extend(map(float.fromhex, line.split()))
    return cases


def check_agreement(found: str, expected: str) -> None:
    """Check that two runs of the same cases agree.

    A sum that differs in its last bit may round to another code of eight bits: that moves the
    logits of a small model by a percent, in one case of some dozens.
    """
    apart = []
    for one, other in zip(parse(found), parse(expected), strict=True):
        assert one.name == other.name
        largest = max(map(abs, other.logits))
        pairs = zip(one.logits, other.logits, strict=True)
        apart.append(max(abs(a - b) for a, b in pairs) / largest)
        assert apart[-1] <= TOLERANCE_OF_CODES, f"{one.name}: {apart[-1]:.2e} apart"
        assert one.tokens == other.tokens or apart[-1] > TOLERANCE, one.name
    assert sum(one <= TOLERANCE for one in apart) >= 0.9 * len(apart) > 0
