"""What `zse kernels` shows: a build while it runs, what was built, what a pack holds."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from zse.kernels.sources import source_digest
from zse.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from zse.kernels.build.builder import BuildStep, BuiltPack
    from zse.kernels.pack import KernelPack
    from zse.kernels.targets import Target
    from zse.kernels.variant import Variant

_LINE_SECONDS = 10.0
_ENTRY_FACTS = (
    "key", "registers", "stack_bytes", "shared_bytes", "global_scratch_bytes",
    "num_warps", "programmatic", "trailing_pointers", "sha256",
)  # fmt: skip


@contextmanager
def build_progress(target: Target) -> Iterator[Callable[[BuildStep], None]]:
    """Yield a callback for steps: a bar on a terminal, a line now and then elsewhere."""
    what = f"compiling for {target.name}"
    if not sys.stderr.isatty() or load_settings().no_color:
        yield PlainLines(what)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    left_column = TextColumn("{task.fields[left]}")
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), left_column)
    started = time.monotonic()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None, left="")

        def show(step: BuildStep) -> None:
            left = _time_left(step, time.monotonic() - started)
            bar.update(task, completed=step.done, total=step.total, left=left)

        yield show


def _time_left(step: BuildStep, elapsed_seconds: float) -> str:
    """Say how long the rest takes, as well as that is known."""
    seconds = step.seconds_left(elapsed_seconds)
    if seconds is None:
        return "time left not known yet"
    return f"about {seconds:.0f} s left" if seconds < 100 else f"about {seconds / 60:.0f} min left"


def describe_build(built: BuiltPack) -> dict[str, Any]:
    """Return what was built, as JSON has it."""
    return {
        "target": built.target.name,
        "bytes": len(built.data),
        "seconds": round(built.seconds, 1),
        "kernels": len(built.kernels),
        "found": built.found,
        "skipped": built.skipped,
        "failed": built.failed,
    }


def print_build(path: Path, built: BuiltPack) -> None:
    """Print one line for each kernel function, and what was left out."""
    groups: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for kernel in built.kernels:
        function = kernel.key.partition("[")[0]
        groups.setdefault(function, []).append((len(kernel.cubin), dict(kernel.facts)))
    typer.echo(f"{'kernel':32} {'variants':>8} {'bytes':>8} {'registers':>9} {'shared':>7} stack")
    for function, items in sorted(groups.items()):
        typer.echo(
            f"{function:32} {len(items):8} {sum(size for size, _ in items):8} "
            f"{max(facts['registers'] for _, facts in items):9} "
            f"{max(facts['shared_bytes'] for _, facts in items):7} "
            f"{max(facts['stack_bytes'] for _, facts in items):5}"
        )
    for key, reason in built.skipped.items():
        typer.echo(f"left out: {key}: {reason}")
    for key, text in built.failed.items():
        typer.echo(f"failed: {key}: {text}", err=True)
    typer.echo(
        f"{path}: {len(built.kernels)} kernels for {built.target.name}, {len(built.data)} bytes, "
        f"{built.seconds:.1f} s; {built.found} kernels were compiled before"
    )


def describe_pack(pack: KernelPack, wanted: Iterable[Variant]) -> dict[str, Any]:
    """Return what a pack holds of the kernels that are wanted, as JSON has it.

    Raises:
        KernelPackError: A kernel in it is damaged.
    """
    return {
        "path": pack.name,
        "target": pack.target,
        "bytes": pack.size_bytes,
        **pack.provenance,
        "current": pack.provenance["sources"] == source_digest(),
        "missing": list(pack.missing(wanted)),
        "skipped": dict(pack.skipped),
        "kernels": [
            {"bytes": len(entry.image)} | {name: getattr(entry, name) for name in _ENTRY_FACTS}
            for entry in map(pack.entry, pack)
        ],
    }


def print_pack(report: Mapping[str, Any]) -> None:
    """Print what ``describe_pack`` returned: one line for each kernel."""
    for name in ("path", "target", "bytes", "zse", "triton", "ptxas", "sources", "current"):
        typer.echo(f"{name:9}{report[name]}")
    typer.echo(f"{'missing':9}{len(report['missing'])} kernels of this version")
    typer.echo(f"\n{'bytes':>7} {'registers':>9} {'shared':>7} {'stack':>6}  kernel")
    for kernel in report["kernels"]:
        typer.echo(
            f"{kernel['bytes']:7} {kernel['registers']:9} {kernel['shared_bytes']:7} "
            f"{kernel['stack_bytes']:6}  {kernel['key']}"
        )
    for key, reason in report["skipped"].items():
        typer.echo(f"{'-':>7} {'-':>9} {'-':>7} {'-':>6}  {key}: {reason}")


class PlainLines:
    """Prints a line on stderr at the start, and then every ten seconds."""

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._clock = clock
        self._started = self._printed = clock()

    def __call__(self, step: BuildStep) -> None:
        """Show a step, unless the last line is recent."""
        now = self._clock()
        if not step.key:
            typer.echo(f"{self._what}: {step.total} kernels, {step.found} found", err=True)
        elif now - self._printed >= _LINE_SECONDS:
            self._printed = now
            left = _time_left(step, now - self._started)
            typer.echo(f"{self._what}: {step.done} of {step.total} kernels, {left}", err=True)
