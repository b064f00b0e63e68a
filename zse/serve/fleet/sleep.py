"""Sleep: all models give their memory back until somebody asks, or an admin wakes the server.

As with vLLM, what an admin put to sleep wakes when an admin says so, and requests are told until
then; what fell asleep because nobody asked wakes for the model that a request names.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING

from zse.serve.admin.loading import ModelLoader
from zse.serve.admin.orders import ModelBusyError
from zse.serve.fleet.errors import ModelUnavailableError, SleepingError
from zse.serve.fleet.seats import Seat

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from zse.serve.fleet.fleet import Fleet
    from zse.serve.state import AppState

LOG = logging.getLogger("zse.serve")

LEVELS = (1, 2)
"""The first keeps what a quick return stands on: the pages of the files, tokenizers, kernels. The
second drops them."""
_MOST_LOOKS_SECONDS = 1.0


class Sleep:
    """Of one fleet."""

    def __init__(self, state: AppState, fleet: Fleet) -> None:
        self._state = state
        self._fleet = fleet
        self._awake = asyncio.Event()
        self._awake.set()
        self._before: list[str] = []
        """Who was there, the default first."""
        self.level: int | None = None
        """None where the server is awake."""

    @property
    def was_asked_for(self) -> bool:
        """Whether an admin wanted it, so that only an admin ends it."""
        return not self._awake.is_set()

    def refuse(self) -> None:
        """Refuse a request while only an admin can wake the server.

        Raises:
            SleepingError: So it is.
        """
        if self.was_asked_for:
            raise SleepingError("The server is asleep.")

    async def ended(self) -> None:
        """Wait until no admin wants it."""
        await self._awake.wait()

    def is_over(self) -> None:
        """Note that a model has come for a request: who was there before is not brought again."""
        self.level = None
        self._before.clear()

    def end_for_load(self) -> None:
        """Note that an admin has loaded a model: the server holds memory, and is awake."""
        if self.level is not None:
            self._awake.set()
            self.is_over()

    async def begin(self, level: int) -> None:
        """Let answers end, then all models leave; until ``end`` requests are refused.

        Raises:
            ModelBusyError: The answers, or models that change places, did not end in the time of a
                drain; all is as it was.
        """
        was_awake = not self.was_asked_for
        self._awake.clear()
        try:
            async with self._nobody_moving():
                await self._empty(level)
        except BaseException:
            if was_awake:
                await self.end()
            raise
        if not self.was_asked_for:  # an admin woke the server while models left
            await self.end()

    async def end(self) -> None:
        """Bring the models back that were there.

        Raises:
            ModelUnavailableError: One cannot be loaded; the others are there, and requests taken.
        """
        self._awake.set()
        self.level = None
        names, self._before = self._before, []
        seats = [self._fleet.seats[name] for name in names]
        brought = await asyncio.gather(*map(self._fleet.bring, seats), return_exceptions=True)
        for one in brought:
            if isinstance(one, BaseException):
                raise one

    async def watch(self, after_seconds: float) -> None:
        """Fall asleep whenever nobody has asked anything for so long."""
        look_seconds = min(_MOST_LOOKS_SECONDS, after_seconds / 4)
        while True:
            await asyncio.sleep(look_seconds)
            if not self._is_idle(after_seconds):
                continue
            async with self._fleet.moves.moving:
                if self._is_idle(after_seconds):
                    with contextlib.suppress(ModelBusyError):  # somebody asked meanwhile
                        await self._empty(LEVELS[0])

    @contextlib.asynccontextmanager
    async def _nobody_moving(self) -> AsyncIterator[None]:
        """Hold ``moving``, unless models change places for longer than a drain takes."""
        moving = self._fleet.moves.moving
        try:
            async with asyncio.timeout(self._state.options.drain_seconds):
                await moving.acquire()
        except TimeoutError:
            raise ModelBusyError(
                "Models are changing places, and did not end in the time of a drain.",
                hint="Put the server to sleep later.",
            ) from None
        try:
            yield
        finally:
            moving.release()

    def _is_idle(self, after_seconds: float) -> bool:
        state, fleet = self._state, self._fleet
        is_free = all(entry.is_free for entry in state.models)
        is_quiet = fleet.idle_seconds >= after_seconds and not fleet.num_waiting
        return self.level is None and len(state.models) > 0 and is_free and is_quiet

    async def _empty(self, level: int) -> None:
        """Let all models leave; whoever calls holds ``moving``."""
        self._take_in_others()
        here = (entry.model.name for entry in self._state.models)
        names = [name for name in here if name in self._fleet.seats]
        last = time.monotonic() + self._state.options.drain_seconds
        for name in names:
            patience = max(0.0, last - time.monotonic())
            try:
                await self._fleet.moves.let_leave(name, patience_seconds=patience)
            except ModelUnavailableError as error:
                raise ModelBusyError(str(error), hint="Put it to sleep later.") from error
            self._before.append(name)
        if level == LEVELS[1]:
            await asyncio.to_thread(self._fleet.moves.forget)
        self.level = max(level, self.level or 0)
        self._state.metrics.count("sleeps", str(level))
        LOG.info("asleep", extra={"sleep_level": level, "models": names})

    def _take_in_others(self) -> None:
        """Give models a seat that an admin loaded beside those of the fleet."""
        orders = self._state.one_of(ModelLoader).orders
        for entry in self._state.models:
            name = entry.model.name
            if name not in self._fleet.seats and name in orders:
                order = orders[name]
                seat = Seat(order.placed, aliases=order.aliases, is_pinned=False)
                self._fleet.seats[name] = seat
