"""Why a server does not start, in one sentence with a hint; imported when it does not."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from zse.failures import deliberate
from zse.serve.telemetry.logs import configure_logging

if TYPE_CHECKING:
    from zse.errors import ZSEError
    from zse.settings import Settings

LOG = logging.getLogger("zse.serve")


def report_failure(what: str, error: BaseException, settings: Settings) -> int:
    """Log why something ended the server; return the exit code. Tracebacks are for debugging."""
    failure = deliberate(error, settings.cache_dir)
    is_told = failure is not error and (LOG.isEnabledFor(logging.DEBUG) or settings.debug)
    LOG.error(
        "%s: %s", what, failure, exc_info=error if is_told else None, extra=_facts_of(failure)
    )
    return failure.exit_code


def _facts_of(error: ZSEError) -> dict[str, object]:
    return {"hint": error.hint, "exit_code": error.exit_code}


def report_refusal(error: ZSEError, *, log_format: str) -> int:
    """Say why a server was not even begun, before there is a log; return the exit code."""
    configure_logging("info", log_format)
    LOG.error("the server could not be started: %s", error, extra=_facts_of(error))
    return error.exit_code
