"""Turns variants into a kernel pack."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zse
from zse.kernels.build.finished import FinishedKernels
from zse.kernels.build.pool import Answer, ask_versions, compiler_environment, run_jobs
from zse.kernels.build.writer import CompiledKernel, pack_bytes
from zse.kernels.errors import KernelRule
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.kernels.targets import Target
    from zse.kernels.variant import Variant

_ROOT = Path(zse.__file__).parent.parent


@record
class BuildStep:
    """How far a build is."""

    key: str
    """The kernel that is finished; empty at the start."""
    done: int
    """Kernels that are finished, those found included."""
    total: int
    found: int
    """Kernels that an earlier build had compiled."""

    def seconds_left(self, elapsed_seconds: float) -> float | None:
        """Return about how long the rest takes; None while nothing was compiled."""
        compiled = self.done - self.found
        return elapsed_seconds / compiled * (self.total - self.done) if compiled else None


@record
class BuiltPack:
    """A pack and what went into it."""

    target: Target
    data: bytes
    kernels: tuple[CompiledKernel, ...]
    skipped: dict[str, str]
    """Variants that the architecture cannot run, with the reason."""
    failed: dict[str, str]
    """Variants that do not compile, with what the compiler said."""
    found: int
    """Kernels that an earlier build had compiled."""
    seconds: float


def build_pack(
    target: Target,
    variants: Sequence[Variant],
    *,
    source_digest: str,
    cache_dir: Path,
    processes: int = 0,
    keep_going: bool = False,
    import_paths: Sequence[Path] = (),
    progress: Callable[[BuildStep], None] = lambda _: None,
) -> BuiltPack:
    """Compile variants for one architecture.

    Args:
        source_digest: SHA-256 of the kernels' sources, for the pack's provenance.
        cache_dir: Triton's cache and finished kernels; what is there is not compiled again.
        processes: Compilers at a time; 0 means one a core.
        keep_going: Write a pack without the variants that do not compile.
        import_paths: Where the kernels' modules are, if not in zse.
        progress: Called at the start and after each kernel.

    Raises:
        MissingDependencyError: Triton is not installed.
        KernelPackError: Variants do not compile, and ``keep_going`` is off.
    """
    started = time.monotonic()
    environment = compiler_environment(cache_dir, import_paths)
    versions = ask_versions(target.number, environment)
    roots = (*import_paths, _ROOT)
    finished = FinishedKernels(folder=cache_dir / "finished", versions=versions, roots=roots)
    with tempfile.TemporaryDirectory(prefix="zse-kernels-") as folder:
        wanted = [one for one in variants if one.suits(target.name)]
        jobs = [_job(one, target, Path(folder) / str(i)) for i, one in enumerate(wanted)]
        results, found = _compile(
            jobs,
            finished,
            processes=processes or len(os.sched_getaffinity(0)),
            environment=environment,
            progress=progress,
        )
    kernels, skipped, failed = _sort_out(results, target)
    skipped |= {
        one.key: f"is for {', '.join(one.targets or one.kernel.targets)}"
        for one in variants
        if one not in wanted
    }
    if failed and not keep_going:
        key, text = next(iter(failed.items()))
        raise KernelRule.BUILD_FAILED(
            f"{len(failed)} of {len(jobs)} kernels do not compile for {target.name}; the first is "
            f"{key}: {text[:2000]}"
        )
    provenance = {"zse": zse.__version__, "sources": source_digest, **versions}
    return BuiltPack(
        target=target,
        data=pack_bytes(target, kernels, provenance=provenance, skipped=skipped),
        kernels=tuple(kernels),
        skipped=skipped,
        failed=failed,
        found=found,
        seconds=time.monotonic() - started,
    )


def _job(variant: Variant, target: Target, output: Path) -> dict[str, Any]:
    return {
        "key": variant.key,
        "module": variant.kernel.module,
        "function": variant.kernel.function,
        "arguments": [[a.name, a.type, a.aligned] for a in variant.arguments],
        "constants": [[name, value] for name, value in variant.constants],
        "target_constants": {"PDL": target.programmatic, "PLAIN": False},
        "num_warps": variant.num_warps,
        "num_stages": variant.num_stages,
        "number": target.number,
        "output": str(output),
    }


def _compile(
    jobs: Sequence[dict[str, Any]],
    finished: FinishedKernels,
    *,
    processes: int,
    environment: dict[str, str],
    progress: Callable[[BuildStep], None],
) -> tuple[list[Answer], int]:
    """Return what came of every job, in their order, and how many an earlier build had done."""
    results = {
        job["key"]: Answer(job=job, facts=kept[0], code=kept[1])
        for job in jobs
        if (kept := finished.find(job)) is not None
    }
    todo = [job for job in jobs if job["key"] not in results]
    found = len(results)
    progress(BuildStep(key="", done=found, total=len(jobs), found=found))

    def take(answer: Answer) -> None:
        """Keep a kernel at once: it is there even if the build is stopped."""
        job = answer.job
        if not answer.error:
            answer = replace(answer, code=Path(job["output"]).read_bytes())
            finished.keep(job, answer.facts, answer.code)
        results[job["key"]] = answer
        progress(BuildStep(key=job["key"], done=len(results), total=len(jobs), found=found))

    run_jobs(todo, processes=processes, environment=environment, progress=take)
    return [results[job["key"]] for job in jobs], found


def _sort_out(
    results: Sequence[Answer], target: Target
) -> tuple[list[CompiledKernel], dict[str, str], dict[str, str]]:
    """Return compiled kernels, those that the architecture cannot run, those that failed."""
    kernels: list[CompiledKernel] = []
    skipped: dict[str, str] = {}
    failed: dict[str, str] = {}
    for result in results:
        job, facts = result.job, result.facts
        key = job["key"]
        if result.error:
            failed[key] = result.error
        elif facts["shared_bytes"] > target.shared_limit_bytes:
            skipped[key] = (
                f"needs {facts['shared_bytes']} bytes of shared memory, "
                f"{target.name} has {target.shared_limit_bytes}"
            )
        else:
            described = {
                **facts,
                "arguments": [[name, kind] for name, kind, _ in job["arguments"]],
                "aligned": [name for name, _, aligned in job["arguments"] if aligned],
            }
            kernels.append(CompiledKernel(key=key, facts=described, cubin=result.code))
    return kernels, skipped, failed
