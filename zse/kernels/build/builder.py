"""Turns variants into a kernel pack."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zse import __version__
from zse.kernels.build.pool import Answer, ask_versions, compiler_environment, run_jobs
from zse.kernels.build.writer import CompiledKernel, pack_bytes
from zse.kernels.pack_errors import KernelPackError
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.kernels.targets import Target
    from zse.kernels.variant import Variant


class KernelBuildFailed(KernelPackError):  # noqa: N818 - says what happened, as its siblings do
    """Kernels do not compile."""

    default_hint = "Fix them, or leave them out of the pack with --keep-going."


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
    progress: Callable[[str], None] = lambda _: None,
) -> BuiltPack:
    """Compile variants for one architecture.

    Args:
        target: The architecture.
        variants: What to compile.
        source_digest: SHA-256 of the kernels' sources, for the pack's provenance.
        cache_dir: Triton's cache; a later build of the same sources is fast.
        processes: Compilers at a time; 0 means one a core.
        keep_going: Write a pack without the variants that do not compile.
        import_paths: Where the kernels' modules are, if not in zse.
        progress: Called with each finished key.

    Raises:
        MissingDependencyError: Triton is not installed.
        KernelBuildFailed: Variants do not compile, and ``keep_going`` is off.
    """
    started = time.monotonic()
    environment = compiler_environment(cache_dir, import_paths)
    versions = ask_versions(target.number, environment)
    with tempfile.TemporaryDirectory(prefix="zse-kernels-") as folder:
        jobs = [
            _job(variant, target, Path(folder) / str(index))
            for index, variant in enumerate(variants)
        ]
        answers = run_jobs(
            jobs,
            processes=processes or len(os.sched_getaffinity(0)),
            environment=environment,
            progress=lambda answer: progress(answer.job["key"]),
        )
        kernels, skipped, failed = _sort_out(answers, target)
    if failed and not keep_going:
        key, text = next(iter(failed.items()))
        raise KernelBuildFailed(
            f"{len(failed)} of {len(jobs)} kernels do not compile for {target.name}; the first is "
            f"{key}: {text[:2000]}"
        )
    provenance = {"zse": __version__, "sources": source_digest, **versions}
    return BuiltPack(
        target=target,
        data=pack_bytes(target, kernels, provenance=provenance, skipped=skipped),
        kernels=tuple(kernels),
        skipped=skipped,
        failed=failed,
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


def _sort_out(
    answers: Sequence[Answer], target: Target
) -> tuple[list[CompiledKernel], dict[str, str], dict[str, str]]:
    """Return compiled kernels, those that the architecture cannot run, those that failed."""
    kernels: list[CompiledKernel] = []
    skipped: dict[str, str] = {}
    failed: dict[str, str] = {}
    for answer in answers:
        job, facts = answer.job, answer.facts
        key: str = job["key"]
        if answer.error:
            failed[key] = answer.error
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
            cubin = Path(job["output"]).read_bytes()
            kernels.append(CompiledKernel(key=key, facts=described, cubin=cubin))
    return kernels, skipped, failed
