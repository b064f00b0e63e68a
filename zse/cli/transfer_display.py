"""How a copy is shown while it runs: a bar on a terminal, a line now and then elsewhere."""

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
    shown: AbstractContextManager[StageProgress]
    shown = _bars() if sys.stderr.isatty() else nullcontext(PlainLines())
    with shown as show:
        yield lambda stage, done_bytes, total_bytes: show(
            _STAGE_WORDS.get(stage, stage), done_bytes, total_bytes
        )


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


@contextmanager
def _bars() -> Iterator[StageProgress]:
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, progress.TaskID] = {}

        def show(word: str, done_bytes: int, total_bytes: int) -> None:
            if word not in tasks:
                tasks[word] = bar.add_task(word, total=total_bytes, completed=done_bytes)
            bar.update(tasks[word], completed=done_bytes, total=total_bytes)

        yield show


class PlainLines:
    """Prints a line on stderr every few seconds: share, bytes, speed, time left."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._word = ""
        self._started = self._printed = 0.0
        self._first_bytes = 0

    def __call__(self, word: str, done_bytes: int, total_bytes: int) -> None:
        """Show one report, unless the last line is recent."""
        now = self._clock()
        if word != self._word:
            self._word = word
            self._started = self._printed = now
            self._first_bytes = done_bytes
            return
        if now - self._printed < _LINE_SECONDS:
            return
        self._printed = now
        rate = (done_bytes - self._first_bytes) / (now - self._started)
        left = f", {(total_bytes - done_bytes) / rate:.0f} s left" if rate else ""
        say(
            f"{word}: {done_bytes / total_bytes:.0%}, {size_text(done_bytes)} of "
            f"{size_text(total_bytes)}, {size_text(rate)}/s{left}"
        )
