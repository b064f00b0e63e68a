"""Logs as JSON lines on stderr. Prompts and answers are never logged."""

from __future__ import annotations

import json
import logging
import sys
import time

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


class JSONFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and whatever ``extra`` held."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for one record."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update({k: v for k, v in vars(record).items() if k not in _STANDARD})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def configure_logging(level: str) -> None:
    """Send the server's logs to stderr as JSON lines.

    Args:
        level: As in ``ServeOptions``.
    """
    threshold = logging.getLevelNamesMapping()[level.upper()]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONFormatter())
    for name in ("zse", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(threshold)
    # Its start and stop lines say what ours say; one access line a request is ours as well.
    logging.getLogger("uvicorn").setLevel(max(threshold, logging.WARNING))
