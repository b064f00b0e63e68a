"""Shows the progress of long work: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import json
import sys
import time
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from zse.cli.app import say
from zse.units import size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from rich.progress import ProgressColumn

    from zse.quantize.locate import StageProgress
    from zse.store import Transfer

_LINE_SECONDS = 5.0
_STAGE_WORDS = {
    "fetch": "fetching",
    "convert": "converting",
    "checksum": "reading back",
    "upload": "uploading",
}


@contextmanager
def shown_progress() -> Iterator[StageProgress]:
    """Yield a callback that shows on stderr how far each stage of some work is, in bytes.

    Stages of opening a model go by other words here; other stages are words themselves.
    """
    with _shown(_bytes_bar, size_text) as show:
        yield lambda stage, done_bytes, total_bytes: show(
            _STAGE_WORDS.get(stage, stage), done_bytes, total_bytes
        )


@contextmanager
def shown_counts(noun: str) -> Iterator[StageProgress]:
    """Yield a callback that shows on stderr how many of all are done, such as ``tokens``."""
    with _shown(_counts_bar, lambda count: f"{count:,.0f} {noun}") as show:
        yield show


def tell_copied(
    word: str, transfer: Transfer, target: str, started: float, facts: dict[str, str] | None
) -> None:
    """Say what a copy came to, and its facts as JSON unless they are None.

    It began at ``started``, by ``time.monotonic``.
    """
    seconds, resumed_bytes = time.monotonic() - started, transfer.resumed_bytes
    moved_bytes = transfer.size_bytes - resumed_bytes
    rate = f", {size_text(moved_bytes / seconds)}/s" if seconds > 0 and moved_bytes else ""
    resumed = f"\nresumed: {size_text(resumed_bytes)} were there" if resumed_bytes else ""
    checked = "checked against the recorded digest" if transfer.verified else "no digest recorded"
    say(
        f"{word}: {target}\nsize: {size_text(transfer.size_bytes)}\n"
        f"sha256: {transfer.sha256} ({checked})\ntime: {seconds:.1f} s{rate}{resumed}"
    )
    if facts is not None:
        report = {**facts, "seconds": seconds, **asdict(transfer)}
        typer.echo(json.dumps(report, sort_keys=True))


def _shown(
    columns: Callable[[], tuple[ProgressColumn, ...]], words: Callable[[float], str]
) -> AbstractContextManager[StageProgress]:
    """Return what shows the work: ``words`` say an amount of it where there is no terminal."""
    return _bars(columns) if sys.stderr.isatty() else nullcontext(PlainLines(words))


def _bytes_bar() -> tuple[ProgressColumn, ...]:
    from rich.progress import DownloadColumn, TransferSpeedColumn

    return (DownloadColumn(), TransferSpeedColumn())


def _counts_bar() -> tuple[ProgressColumn, ...]:
    from rich.progress import MofNCompleteColumn

    return (MofNCompleteColumn(),)


@contextmanager
def _bars(columns: Callable[[], tuple[ProgressColumn, ...]]) -> Iterator[StageProgress]:
    from rich import progress
    from rich.console import Console

    all_columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        *columns(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*all_columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, progress.TaskID] = {}

        def show(word: str, done: int, total: int) -> None:
            if word not in tasks:
                tasks[word] = bar.add_task(word, total=total, completed=done)
            bar.update(tasks[word], completed=done, total=total)

        yield show


class PlainLines:
    """Prints a line on stderr every few seconds: share, amount, speed, time left.

    Args:
        words: Says an amount: of bytes, unless told otherwise.
        clock: Seconds.
    """

    def __init__(
        self,
        words: Callable[[float], str] = size_text,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._words = words
        self._clock = clock
        self._stage = ""
        self._started = self._printed = 0.0
        self._first = 0

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show one report, unless the last line is recent."""
        now = self._clock()
        if stage != self._stage:
            self._stage = stage
            self._started = self._printed = now
            self._first = done
            return
        if now - self._printed < _LINE_SECONDS:
            return
        self._printed = now
        rate = (done - self._first) / (now - self._started)
        left = f", {(total - done) / rate:.0f} s left" if rate else ""
        say(
            f"{stage}: {done / total:.0%}, {self._words(done)} of {self._words(total)}, "
            f"{self._words(rate)}/s{left}"
        )
