"""A process that compiles kernels: one JSON job a line in, one JSON answer a line out.

It runs as ``python -m zse.kernels.build.worker``, with triton's variables set by its parent: they
must stand before triton is imported. Only this module imports triton.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

_PARAMETER_BITS = {"i32": 32, "i64": 64, "fp32": 32}
_ENTRY = re.compile(r"\.visible \.entry [\w$]+\(\s*(.*?)\)", re.DOTALL)
_PARAMETER = re.compile(r"\.param \.[a-z]+(\d+)")
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")


class JobError(Exception):
    """A variant and its kernel do not fit together."""


def versions(number: int) -> dict[str, str]:
    """Return the versions of triton and of the ptxas that compiles for capability ``number``."""
    release = re.search(r"V([\d.]+)", _said_by(_tools(number)[0], "--version"))
    return {"triton": triton.__version__, "ptxas": release[1] if release else "unknown"}


def _tools(number: int) -> tuple[str, str]:
    ptxas = knobs.nvidia.ptxas if number < 90 else knobs.nvidia.ptxas_blackwell
    return ptxas.path, knobs.nvidia.cuobjdump.path


def _said_by(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def compile_job(job: dict[str, Any]) -> dict[str, Any]:
    """Compile one variant; write its cubin to ``job["output"]``.

    Args:
        job: ``module``, ``function``, ``arguments`` [[name, type, aligned]], ``constants``
            [[name, value]], ``target_constants`` {name: value}, ``num_warps``, ``num_stages``,
            ``number`` (90 for sm_90) and ``output``.

    Returns:
        The launch facts of the pack's entry.

    Raises:
        JobError: Arguments or constants are not those of the function.
    """
    function = getattr(importlib.import_module(job["module"]), job["function"])
    signature, constants, attributes = _describe(function, job)
    programmatic = bool(constants.get("PDL", False))
    options = {
        "num_warps": job["num_warps"],
        "num_stages": job["num_stages"],
        "launch_pdl": programmatic,
        "enable_fp_fusion": True,
    }
    language = GluonASTSource if function.is_gluon() else ASTSource
    source = language(fn=function, signature=signature, constexprs=constants, attrs=attributes)
    target = GPUTarget("cuda", job["number"], 32)
    compiled = triton.compile(source, target=target, options=options)
    metadata = compiled.metadata
    if metadata.tensordesc_meta:
        raise JobError("host-side tensor descriptors are not supported: make them in the kernel")
    Path(job["output"]).write_bytes(compiled.asm["cubin"])
    registers, stack_bytes = _resource_usage(job["number"], job["output"])
    return {
        "entry": metadata.name,
        "num_warps": metadata.num_warps,
        "num_stages": metadata.num_stages,
        "num_ctas": metadata.num_ctas,
        "shared_bytes": metadata.shared,
        "global_scratch_bytes": metadata.global_scratch_size,
        "global_scratch_align": metadata.global_scratch_align,
        "profile_scratch_bytes": metadata.profile_scratch_size,
        "programmatic": metadata.launch_pdl,
        "cooperative": metadata.launch_cooperative_grid,
        "constants": [[name, constants[name]] for name in function.arg_names if name in constants],
        "trailing_pointers": _trailing_pointers(compiled.asm["ptx"], job["arguments"]),
        "registers": registers,
        "stack_bytes": stack_bytes,
    }


def _describe(
    function: Any, job: dict[str, Any]
) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int], list[list[Any]]]]:
    """Return signature, constants and divisibility facts as the compiler takes them."""
    names: list[str] = list(function.arg_names)
    arguments = {name: (kind, aligned) for name, kind, aligned in job["arguments"]}
    constants = dict(job["constants"])
    constants |= {name: v for name, v in job["target_constants"].items() if name in names}
    given = [name for name in names if name in arguments]
    if given != list(arguments):
        raise JobError(f"run-time arguments are {list(arguments)}, the function takes {names}")
    unknown = [name for name in constants if name not in names or name in arguments]
    lacking = [name for name in names if name not in arguments and name not in constants]
    if unknown or lacking:
        raise JobError(f"constants: unknown {unknown}, lacking {lacking}")
    signature = {name: arguments[name][0] if name in arguments else "constexpr" for name in names}
    attributes = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(names)
        if name in arguments and arguments[name][1]
    }
    return signature, constants, attributes


def _trailing_pointers(ptx: str, arguments: list[list[Any]]) -> int:
    """Count the 64-bit parameters behind the arguments, after checking every width."""
    entry = _ENTRY.search(ptx)
    if entry is None:
        raise JobError("the PTX holds no entry")
    found = [int(bits) for bits in _PARAMETER.findall(entry[1])]
    expected = [64 if kind.startswith("*") else _PARAMETER_BITS[kind] for _, kind, _ in arguments]
    trailing = found[len(expected) :]
    if found[: len(expected)] != expected or any(bits != 64 for bits in trailing):
        raise JobError(f"parameters have {found} bits, expected {expected} and scratch pointers")
    return len(trailing)


def _resource_usage(number: int, cubin: str) -> tuple[int, int]:
    """Return registers and bytes of stack of a thread."""
    usage = _USAGE.search(_said_by(_tools(number)[1], "-res-usage", cubin))
    return (int(usage[1]), int(usage[2])) if usage else (0, 0)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what kernels' modules print goes to stderr instead
    for line in sys.stdin:
        job = json.loads(line)
        try:
            answer: dict[str, Any] = {
                "ok": versions(job["number"]) if job.get("versions") else compile_job(job)
            }
        except Exception as error:  # noqa: BLE001 - whatever a compiler raises is this job's answer
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
