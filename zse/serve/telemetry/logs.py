"""Logs on stderr: JSON lines, or words for a person at a terminal. Never prompts or answers."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from zse.serve.telemetry.throttle import Throttle

if TYPE_CHECKING:
    from collections.abc import Callable

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


class LineFormatter(logging.Formatter):
    """Renders a mapping made of a record: time, level, logger, message, what ``extra`` held."""

    def __init__(self, render: Callable[[dict[str, Any]], str]) -> None:
        super().__init__()
        self._render = render

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update({k: v for k, v in vars(record).items() if k not in _STANDARD})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return self._render(line)


def is_for_people(log_format: str) -> bool:
    """Whether logs are words: asked for, or a person is likely to read them.

    Process 1 is the entry point of a container: who reads its log is a machine, also on a terminal.
    """
    is_watched = sys.stderr.isatty() and os.getpid() != 1
    return log_format == "text" or (log_format == "auto" and is_watched)


def configure_logging(level: str, log_format: str = "auto") -> logging.Handler:
    """Send the server's logs to stderr; return what writes them."""
    threshold = logging.getLevelNamesMapping()[level.upper()]
    handler = _handler(log_format)
    for name in ("zse", "uvicorn", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(threshold)
    # Its start and stop lines say what ours say; one access line a request is ours as well.
    logging.getLogger("uvicorn").setLevel(max(threshold, logging.WARNING))
    return handler


def _handler(log_format: str) -> logging.Handler:
    handler: logging.StreamHandler[Any] = logging.StreamHandler(sys.stderr)
    render: Callable[[dict[str, Any]], str] = partial(json.dumps, default=str, ensure_ascii=False)
    if is_for_people(log_format):
        from zse.serve.console import Terminal, text_of

        handler, render = Terminal(sys.stderr) if sys.stderr.isatty() else handler, text_of
    handler.setFormatter(LineFormatter(render))
    handler.addFilter(Throttle())
    return handler
