"""The models of a server that come for requests and leave for others.

A request waits in the queue of its model. One task brings the models, one after the other, in the
order of their oldest requests (``turns``); what leaves has ended its answers, and comes back where
the one that it left for cannot be loaded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import TYPE_CHECKING

from zse.errors import DeadlineError, ModelNotFoundError, OverloadedError, RefusedError
from zse.failures import deliberate
from zse.serve.admission import MAX_RETRY_SECONDS
from zse.serve.fleet.errors import ModelUnavailableError
from zse.serve.fleet.listing import list_models
from zse.serve.fleet.moves import Moves, NobodyWaitsError
from zse.serve.fleet.roster import roster_of
from zse.serve.fleet.seats import Seat, Waiter
from zse.serve.fleet.sleep import Sleep
from zse.serve.http.streaming import race
from zse.serve.models import DEFAULT_ALIAS

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from zse.serve.fleet.listing import AbsentModel
    from zse.serve.state import AppState, LoadedModel

LOG = logging.getLogger("zse.serve")

_LOOK_SECONDS = 0.05


class Fleet:
    """Gives requests their models. Everything of it runs in the event loop.

    Args:
        state: The server's.
        clock: Seconds that only grow.

    Raises:
        UsageError: As ``roster_of``.
    """

    def __init__(self, state: AppState, *, clock: Callable[[], float] = time.monotonic) -> None:
        options = state.options
        self._state = state
        self._clock = clock
        self._conductor: asyncio.Task[None] | None = None
        pins, roster = set(options.fleet.pins), roster_of(options)
        self.default = roster[0].name
        self.seats = {
            placed.name: Seat(
                placed,
                aliases=options.aliases if placed == roster[0] else (),
                is_pinned=placed.name in pins,
            )
            for placed in roster
        }
        self.max_resident = options.fleet.max_resident
        """Models that are there at once; 0 as many as fit."""
        self._last_asked = clock()
        self.moves = Moves(state, self.seats, admit=self.admit, clock=clock)
        self.sleep = Sleep(state, self)

    @property
    def is_open(self) -> bool:
        """Whether requests are taken."""
        return not self.sleep.was_asked_for

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a model."""
        return sum(len(seat.waiting) for seat in self.seats.values())

    @property
    def idle_seconds(self) -> float:
        """Since a request last named any model."""
        return self._clock() - self._last_asked

    def listed(self) -> list[LoadedModel | AbsentModel]:
        """Return all models and their adapters, those of the command line first."""
        return list_models(self._state.models, self.seats)

    def refuse_closed(self) -> None:
        """Refuse requests while the server sleeps until an admin wakes it.

        Raises:
            SleepingError: An admin put it to sleep.
        """
        self.sleep.refuse()

    async def enter(self, request: Request, name: str | None) -> LoadedModel:
        """Return the model that a request names, once it is there; its use has begun.

        Raises:
            ShuttingDownError, LoadingError: The server is ending, or starts.
            SleepingError: An admin put it to sleep.
            ModelNotFoundError: There is no such model.
            ModelUnavailableError: It cannot be loaded, or others did not leave in time.
            OverloadedError: Too many requests wait.
            DeadlineError: The request's deadline came first.
            ClientGoneError: The client left.
        """
        state = self._state
        state.require_started()
        self.refuse_closed()
        self._last_asked = self._clock()
        name = self.default if name in (None, DEFAULT_ALIAS) else name
        if (model := self._here(name)) is not None:
            model.uses.on_free = self.moves.tell
            model.uses.begin()
            return model
        seat = self.seat_of(name)
        tenant = request.state.caller.tenant
        self._refuse_hopeless(seat)
        self._make_place(tenant)
        waiter = self.queue(seat, name, tenant)
        try:
            turn = self._until_given(seat, waiter, request.state.deadline)
            return await race(turn, request.receive, state.terminate)
        except BaseException:
            waiter.leave()
            raise
        finally:
            if waiter in seat.waiting:
                seat.waiting.remove(waiter)
                self.moves.tell()  # who makes room for the last of them need not go on

    def queue(self, seat: Seat, name: str, tenant: str = "", *, for_all: bool = False) -> Waiter:
        """Let somebody wait for a model, or for all of its weights."""
        waiter = Waiter(name, self._clock(), tenant, for_all=for_all)
        seat.waiting.append(waiter)
        self.moves.tell()
        if self._conductor is None or self._conductor.done():
            self._conductor = asyncio.create_task(self._conduct())
        return waiter

    async def bring(self, seat: Seat) -> None:
        """Bring a model as a request for it would; return when all of it is there.

        Raises:
            ZSEError: It cannot be.
        """
        waiter = self.queue(seat, seat.name, for_all=True)
        try:
            await waiter.answer
        finally:
            waiter.leave()

    def pin(self, name: str, *, is_pinned: bool) -> None:
        """Say whether a model may leave for another; one that is away comes when it is asked for.

        Raises:
            ModelNotFoundError: As ``seat_of``.
            RefusedError: No other model could come any more.
        """
        seat = self.seat_of(name)
        pinned = sum(1 for each in self.seats.values() if each.is_pinned or each is seat)
        most = self.max_resident
        if is_pinned and most and pinned >= most and len(self.seats) > pinned:
            raise RefusedError(
                f"{pinned} pinned models would leave no room for others of --max-resident {most}",
                hint="Unpin another first, or raise --max-resident.",
            )
        seat.is_pinned = is_pinned

    async def run(self) -> None:
        """Work in the background once the server has started: bring pinned models, fall asleep."""
        while self._state.is_starting:
            await asyncio.sleep(_LOOK_SECONDS)
        await self._bring_pinned()
        if self._state.options.fleet.sleep_after:
            await self.sleep.watch(self._state.options.fleet.sleep_after)

    async def _bring_pinned(self) -> None:
        """Bring what is pinned; what cannot come is told."""
        for seat in self.seats.values():
            if seat.is_pinned and not self._state.models.has(seat.name):
                try:
                    await self.bring(seat)
                except ModelUnavailableError as error:
                    LOG.warning("a pinned model is missing: %s", error, extra={"model": seat.name})

    def _here(self, name: str) -> LoadedModel | None:
        """Return the loaded model of a name; a model's own name never means another's alias."""
        seat = self.seats.get(name)
        is_absent = seat is not None and self.moves.entry_of(seat) is None
        return None if is_absent else self._state.models.answering(name)

    # --- waiting --------------------------------------------------------------------------------

    def seat_of(self, name: str) -> Seat:
        """Return the seat of the model that a name means: its own, an adapter's or an alias.

        Raises:
            ModelNotFoundError: It means none.
        """
        from fnmatch import fnmatchcase

        for seat in (self.seats.get(name), *self.seats.values()):
            if seat is None:
                continue
            is_its_own = name == seat.name or name in seat.adapters
            if is_its_own or any(fnmatchcase(name, alias) for alias in seat.aliases):
                return seat
        named = ", ".join(f"'{each}'" for each in self.seats)
        raise ModelNotFoundError(
            f"The model '{name[:200]}' does not exist; this server has {named[:2000]}.",
            param="model",
        )

    def _refuse_hopeless(self, seat: Seat) -> None:
        """Refuse a model that has just failed to load."""
        failure = seat.failure
        if failure is not None and failure.file_state == self.moves.file_state(seat):
            left_seconds = failure.until - self._clock()
            if left_seconds > 0:
                raise ModelUnavailableError.of(failure.error, left_seconds)

    def _make_place(self, tenant: str) -> None:
        """Let one more request wait: where the queue is full, in place of one of another tenant.

        Whoever has the most requests in it gives up the youngest, unless the newcomer's own would
        then be as many: so no key keeps the others out.

        Raises:
            OverloadedError: There is no place.
        """
        if self.num_waiting < self._state.max_admitted:
            return
        waiting = [waiter for seat in self.seats.values() for waiter in seat.waiting]
        counts = Counter(waiter.tenant for waiter in waiting)
        (greediest, most), *_ = counts.most_common(1) or [(tenant, 0)]
        if most <= counts[tenant] + 1:
            raise self._overloaded()
        youngest = max(
            (waiter for waiter in waiting if waiter.tenant == greediest),
            key=lambda waiter: waiter.arrived,
        )
        for seat in self.seats.values():
            if youngest in seat.waiting:
                seat.waiting.remove(youngest)
        youngest.fail(self._overloaded())

    def _overloaded(self) -> OverloadedError:
        self._state.metrics.count("rejections")
        error = OverloadedError(f"{self.num_waiting} requests wait for their models.")
        error.retry_after_seconds = self._seconds_until_turn()
        return error

    async def _until_given(self, seat: Seat, waiter: Waiter, deadline: float | None) -> LoadedModel:
        began, most_seconds = self._clock(), self._state.options.fleet.model_wait
        last = asyncio.get_running_loop().time() + most_seconds
        try:
            async with asyncio.timeout_at(last if deadline is None else min(last, deadline)):
                model = await waiter.answer
        except TimeoutError:
            if deadline is not None and deadline <= last:
                raise DeadlineError(f"The model '{waiter.name}' was not there in time.") from None
            error = ModelUnavailableError(
                f"The model '{waiter.name}' did not get its turn in {most_seconds:g} s: "
                f"{self._reason(seat)}.",
                hint="Ask again later, or raise --max-resident or --model-wait.",
            )
            error.retry_after_seconds = self._seconds_until_turn()
            raise error from None
        finally:
            # By the model's own name: an alias lets a client make up any number of others.
            self._state.metrics.observe("model_wait", self._clock() - began, seat.name)
        return model

    def _reason(self, seat: Seat) -> str:
        """Return why a model is not there yet."""
        if self.moves.is_leaving(seat):
            return "it leaves for another one, whose place its last answers still hold"
        return "others are in use"

    def _seconds_until_turn(self) -> float:
        """Return when a model that is asked for now will be there, as swaps went lately."""
        ahead = sum(1 for seat in self.seats.values() if seat.waiting)
        return min(max(1.0, self.moves.usual_seconds * (1 + ahead)), MAX_RETRY_SECONDS)

    # --- bringing -------------------------------------------------------------------------------

    async def _conduct(self) -> None:
        """Bring models until nobody waits."""
        while (seat := self._next()) is not None:
            await self.sleep.ended()
            async with self.moves.moving:
                if not seat.waiting or not self.is_open:
                    continue
                if self.moves.entry_of(seat) is None:
                    await self._try_to_bring(seat)
                self.admit(seat)

    def _next(self) -> Seat | None:
        waiting = [seat for seat in self.seats.values() if seat.waiting]
        return min(waiting, key=lambda seat: seat.since, default=None)

    async def _try_to_bring(self, seat: Seat) -> None:
        moves, state = self.moves, self._state
        file_state = moves.file_state(seat)
        try:
            await moves.bring(seat)
        except NobodyWaitsError:
            LOG.info("a swap was given up, as nobody waits for it", extra={"model": seat.name})
        except Exception as raised:  # noqa: BLE001 - whoever waits is told
            error = deliberate(raised, state.settings.cache_dir)
            state.metrics.count("model_swaps", seat.name, "failed")
            seat.fail(error, now=self._clock(), file_state=file_state)
        else:
            seat.succeed()
            self.sleep.is_over()
            state.metrics.count("model_swaps", seat.name, "loaded")

    def admit(self, seat: Seat) -> None:
        """Let those go on whose model is there; weights of one that loads are on their way."""
        if self.moves.entry_of(seat) is None:
            return
        for waiter in seat.take_requests() if seat.is_loading else seat.take_all():
            model = self._state.models.answering(waiter.name)
            if model is None:
                lost = f"The model '{waiter.name}' is there no longer."
                waiter.fail(ModelNotFoundError(lost, param="model"))
            else:
                model.uses.on_free = self.moves.tell
                waiter.give(model)
