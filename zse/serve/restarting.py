"""After a rank has failed: the model is closed and loaded again, and the server is ready once more.

Requests that were being answered have ended with the failure; those that come meanwhile get 503
with ``Retry-After``, as at a start. Ranks that fail again and again end the server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from zse.errors import RankError
from zse.serve.head_start import HeadStart
from zse.serve.ledger import Ledger
from zse.serve.load import load_served_model
from zse.serve.progress import LoadProgress

if TYPE_CHECKING:
    from zse.serve.models import TableEntry
    from zse.serve.state import AppState, LoadedModel
    from zse.settings import Settings

LOG = logging.getLogger("zse.serve")
LEAST_SECONDS = 10.0
"""A model that fails sooner than this after it was loaded again is given up."""


class RankRestarts:
    """Replaces models whose ranks have failed."""

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._last_at: float | None = None

    async def restart(self, settings: Settings, failure: BaseException) -> BaseException | None:
        """Replace the model that has failed; return None, or what ends the server instead."""
        state, now = self._state, time.monotonic()
        if not isinstance(failure, RankError):
            return failure
        if self._last_at is not None and now - self._last_at < LEAST_SECONDS:
            LOG.error("a rank failed again %.1f s after a restart", now - self._last_at)
            return failure
        LOG.warning("a rank has failed, all are started again: %s", failure)
        entry = next(one for one in state.models if one.model.engine.failure is failure)
        state.phase = "starting"
        state.models.remove(entry)
        try:
            model = await asyncio.to_thread(_load_again, settings, entry)
        except Exception as error:  # noqa: BLE001 - the server ends with it
            return error
        state.models.put(model, entry.aliases)
        state.phase = "ready"
        self._last_at = time.monotonic()
        seconds = round(self._last_at - now, 2)
        LOG.info("ready again", extra={"model": model.name, "seconds": seconds})
        return None


def _load_again(settings: Settings, entry: TableEntry) -> LoadedModel:
    try:
        entry.model.close()
    except Exception:
        LOG.warning("the model could not be closed", exc_info=True)  # of a lost device
    ledger = Ledger()
    head_start = HeadStart(settings, ledger.phase, ledger.report)
    progress = LoadProgress(ledger)
    try:
        return load_served_model(settings, progress, head_start)
    except BaseException:
        head_start.abandon()
        raise
