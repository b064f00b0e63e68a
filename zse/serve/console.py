"""Logs for a person at a terminal: lines for what happens, one repainted for what takes long.

Imported only where standard error is a terminal, or text was asked for.
"""

from __future__ import annotations

import json
import logging
import shlex
import threading
import time
from typing import TYPE_CHECKING, Any

from zse import __version__
from zse.serve.logs import extras_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from zse.serve.state import AppState

PAINT_SECONDS = 0.2
_CLEAR = "\r\x1b[K"
_COLUMNS = 78
_MEGABYTE = 1_000_000


class TextFormatter(logging.Formatter):
    """Known events in words of their own, everything else as level, message and values."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines for one record."""
        extra = extras_of(record)
        text = record.getMessage()
        render = _EVENTS.get(text)
        if render is not None:
            return render(extra, time.strftime("%H:%M:%S", time.localtime(record.created)))
        hint, _ = extra.pop("hint", ""), extra.pop("exit_code", None)  # the latter is for machines
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        values = "".join(f" {name}={value}" for name, value in extra.items())
        lines = [f"{level}{text}{values}"]
        if hint:
            lines.append(f"hint: {hint}")
        if record.exc_info:
            lines.append(self.formatException(record.exc_info))
        return "\n".join(lines)


def _listening(extra: Mapping[str, Any], stamp: str) -> str:  # noqa: ARG001
    return f"zse {__version__} listens on {extra['url']} and opens {extra['model']}"


def _opened(extra: Mapping[str, Any], stamp: str) -> str:  # noqa: ARG001
    size = f"{extra['file_bytes'] / _MEGABYTE:,.1f} MB"
    return f"{extra['model']}: {extra['architecture']}, {extra['scheme']}, {size}"


def _ready(extra: Mapping[str, Any], stamp: str) -> str:  # noqa: ARG001
    url, ready_ms = extra["url"], extra["cold_start_ms"]["ready"]["duration_ms"]
    path, question = "/v1/completions", {"prompt": "Hello", "max_tokens": 32}
    if extra["chats"]:
        path = "/v1/chat/completions"
        question = {"messages": [{"role": "user", "content": "Hello"}]}
    body = shlex.quote(json.dumps({"model": extra["model"], **question}, ensure_ascii=False))
    return (
        f"ready after {ready_ms / 1000:.1f} s: {url}/v1, up to {extra['max_context']:,} tokens\n\n"
        f"  curl {url}{path} -H 'content-type: application/json' \\\n    -d {body}\n\n"
        "Ctrl-C stops it."
    )


def _response(extra: Mapping[str, Any], stamp: str) -> str:
    call = f"{extra['method']} {extra['path']}"
    return f"{stamp} {call} {extra['status']}, {extra['duration_ms']:.0f} ms"


def _generation(extra: Mapping[str, Any], stamp: str) -> str:
    read, written = extra["prompt_tokens"], extra["completion_tokens"]
    outcome = "" if extra["outcome"] == "completed" else f", {extra['outcome']}"
    return f"{stamp} {read} tokens read, {written} written{outcome}, {extra['duration_ms']:.0f} ms"


def _draining(extra: Mapping[str, Any], stamp: str) -> str:  # noqa: ARG001
    count = extra["in_flight"]
    waiting = f"{count} answers end first; Ctrl-C again ends them now" if count else "nobody waits"
    return f"stopping: {waiting}"


def _stopped(extra: Mapping[str, Any], stamp: str) -> str:  # noqa: ARG001
    return "stopped"


_EVENTS: dict[str, Callable[[Mapping[str, Any], str], str]] = {
    "listening": _listening,
    "model opened": _opened,
    "ready": _ready,
    "response": _response,
    "generation": _generation,
    "draining": _draining,
    "stopped": _stopped,
}


class Terminal(logging.StreamHandler[Any]):
    """Writes records, and below them one line that is repainted.

    Args:
        stream: A terminal.
    """

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._painted = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record where the painted line was."""
        self.paint("")
        super().emit(record)

    def paint(self, text: str) -> None:
        """Replace the painted line; empty text removes it."""
        if self.lock is None or text == self._painted:
            return
        with self.lock:
            self.stream.write(_CLEAR + text[:_COLUMNS])
            self.stream.flush()
            self._painted = text

    def follow(self, state: AppState) -> None:
        """Show what a start is busy with, until it is ready or has failed."""
        threading.Thread(target=self._follow, args=(state,), name="terminal", daemon=True).start()

    def _follow(self, state: AppState) -> None:
        while state.is_starting:
            work = state.ledger.work()
            left = f", {work.seconds_left:.0f} s left" if work else ""
            self.paint(f"{state.stage}{left} ...")
            time.sleep(PAINT_SECONDS)
        self.paint("")
