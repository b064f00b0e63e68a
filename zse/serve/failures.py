"""Why a server does not start, in one sentence with a hint; imported when it does not."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from zse.failures import deliberate
from zse.serve.logs import configure_logging
from zse.settings import load_settings

if TYPE_CHECKING:
    from zse.errors import ZSEError

LOG = logging.getLogger("zse.serve")


def report_failure(what: str, error: BaseException) -> int:
    """Log why something ended the server; return the exit code. Tracebacks are for debugging."""
    failure = deliberate(error)
    is_foreseen = failure is error  # a setting that cannot be read, for one: none is read below
    is_told = not is_foreseen and (LOG.isEnabledFor(logging.DEBUG) or load_settings().debug)
    extra = {"hint": failure.hint, "exit_code": failure.exit_code}
    LOG.error("%s: %s", what, failure, exc_info=error if is_told else None, extra=extra)
    return failure.exit_code


def report_refusal(error: ZSEError, *, log_format: str) -> int:
    """Say why a server was not even begun, before there is a log; return the exit code."""
    configure_logging("info", log_format)
    return report_failure("the server could not be started", error)
