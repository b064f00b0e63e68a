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
from zse.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from zse.serve.state import AppState

PAINT_SECONDS = 0.2
_CLEAR = "\r\x1b[K"
_COLUMNS = 78
_MEGABYTE = 1_000_000
_MANY_LINES = frozenset({"hint", "exception"})
_FRAME = frozenset({"time", "level", "logger", "message", "hint", "exception", "exit_code"})


def text_of(line: Mapping[str, Any]) -> str:
    """Return what a log line says: known events in words of their own, others with their values.

    Clients choose paths and more of what is logged: a terminal is sent nothing that commands it.
    """
    line = {name: _printable(name, value) for name, value in line.items()}
    message = line["message"]
    if message in _EVENTS:
        return _EVENTS[message](line)
    level = "" if line["level"] == "info" else f"{line['level']}: "
    values = "".join(f" {name}={value}" for name, value in line.items() if name not in _FRAME)
    parts = [f"{level}{message}{values}"]
    if line.get("hint"):
        parts.append(f"hint: {line['hint']}")
    if "exception" in line:
        parts.append(line["exception"])
    return "\n".join(parts)


def _printable(name: str, value: object) -> object:
    if not isinstance(value, str):
        return value
    return printable(value, keep="\n" if name in _MANY_LINES else "", instead="?")


def _listening(line: Mapping[str, Any]) -> str:
    return f"zse {__version__} listens on {line['url']} and opens {line['model']}"


def _opened(line: Mapping[str, Any]) -> str:
    size = f"{line['file_bytes'] / _MEGABYTE:,.1f} MB"
    facts = f"{line['architecture']}, {line['scheme']}, {size}"
    return f"{line['model']}: {facts}, for {line['target']}"


def _ready(line: Mapping[str, Any]) -> str:
    url, ready_ms = line["url"], line["cold_start_ms"]["ready"]["duration_ms"]
    path, question = "/v1/completions", {"prompt": "Hello", "max_tokens": 32}
    if line["chats"]:
        path = "/v1/chat/completions"
        question = {"messages": [{"role": "user", "content": "Hello"}]}
    body = shlex.quote(json.dumps({"model": line["model"], **question}, ensure_ascii=False))
    key = ' \\\n    -H "authorization: Bearer $KEY"' if line.get("asks_for_key") else ""
    pages = f"In a browser: {url}/dashboard, {url}/chat\n" if line.get("has_pages") else ""
    return (
        f"ready after {ready_ms / 1000:.1f} s: {url}/v1, up to {line['max_context']:,} tokens\n\n"
        f"  curl {url}{path} -H 'content-type: application/json'{key} \\\n    -d {body}\n\n"
        f"{pages}Ctrl-C stops it."
    )


def _response(line: Mapping[str, Any]) -> str:
    call = f"{line['method']} {line['path']}"
    return f"{_now()} {call} {line['status']}, {line['duration_ms']:.0f} ms"


def _generation(line: Mapping[str, Any]) -> str:
    read, written = line["prompt_tokens"], line["completion_tokens"]
    outcome = "" if line["outcome"] == "completed" else f", {line['outcome']}"
    return f"{_now()} {read} tokens read, {written} written{outcome}, {line['duration_ms']:.0f} ms"


def _draining(line: Mapping[str, Any]) -> str:
    count = line["in_flight"]
    waiting = f"{count} answers end first; Ctrl-C again ends them now" if count else "nobody waits"
    return f"stopping: {waiting}"


def _now() -> str:
    return time.strftime("%H:%M:%S")


_EVENTS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "listening": _listening,
    "model opened": _opened,
    "ready": _ready,
    "response": _response,
    "generation": _generation,
    "draining": _draining,
    "stopped": lambda _: "stopped",
}


class Terminal(logging.StreamHandler[Any]):
    """Writes records, and below them one line that is repainted."""

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
