"""Why a server does not start, in one sentence with a hint; imported when it does not."""

from __future__ import annotations

import logging
from pathlib import Path

from zse.errors import ZSEError
from zse.serve.logs import configure_logging
from zse.store.local import translated_os_error

LOG = logging.getLogger("zse.serve")


class UnforeseenError(ZSEError):
    """Something failed that nobody thought of: a defect, or a machine out of order."""

    default_hint = "For the traceback, which a report needs: --log-level debug."


def deliberate(error: BaseException) -> ZSEError:
    """Return the deliberate error that says what ``error`` means."""
    if isinstance(error, ZSEError):
        return error
    if isinstance(error, OSError) and error.filename is not None:
        return translated_os_error(error, Path(str(error.filename)), "use")
    words = str(error).strip().partition("\n")[0]
    return UnforeseenError(f"{type(error).__name__}: {words}" if words else type(error).__name__)


def report_failure(what: str, error: BaseException) -> int:
    """Log why something ended the server; return the exit code. Tracebacks are for debugging."""
    failure = deliberate(error)
    is_told = failure is not error and LOG.isEnabledFor(logging.DEBUG)
    extra = {"hint": failure.hint, "exit_code": failure.exit_code}
    LOG.error("%s: %s", what, failure, exc_info=error if is_told else None, extra=extra)
    return failure.exit_code


def report_refusal(error: ZSEError, *, log_format: str) -> int:
    """Say why a server was not even begun, before there is a log; return the exit code."""
    configure_logging("info", log_format)
    return report_failure("the server could not be started", error)
