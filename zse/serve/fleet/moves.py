"""Loading and unloading of models: makes room, loads one, brings others back where that fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from zse.device.open import drop_code, runs_on_gpu
from zse.errors import ZSEError
from zse.serve.admin.loading import ModelLoader, tell_unloaded
from zse.serve.admin.memory import room_for_models
from zse.serve.admin.orders import LoadInProgressError, LoadOrder
from zse.serve.fleet.errors import ModelUnavailableError
from zse.serve.fleet.turns import Resident, who_leaves
from zse.serve.ledger import Ledger
from zse.stream.turns import START_TURN_SECONDS, short_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from zse.backends.gpu.retained import Retained
    from zse.models.memory import MemoryEstimate
    from zse.serve.fleet.seats import Seat
    from zse.serve.models import TableEntry
    from zse.serve.state import AppState

LOG = logging.getLogger("zse.serve")

_LOOK_SECONDS = 0.25
"""Work that no request holds any more, such as a step of one that was cancelled, is looked for."""
_NEWEST_WEIGHT = 0.3


class NobodyWaitsError(Exception):
    """No request waits for a model any more; the models that made room for it are back."""


class Moves:
    """Loads and unloads models, one at a time: the caller holds the lock ``moving``.

    Args:
        seats: Of the models that may leave, by their names.
        admit: Lets those go on who wait for a model, if it is there.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        state: AppState,
        seats: Mapping[str, Seat],
        *,
        admit: Callable[[Seat], None],
        clock: Callable[[], float],
    ) -> None:
        self._state = state
        self._seats = seats
        self._admit = admit
        self._clock = clock
        self._news = asyncio.Event()
        self._retained: Retained | None = None
        self._ledger = Ledger.of_model()
        """Of the move that is made, or was made last."""
        self._estimates: dict[str, tuple[tuple[int, ...], MemoryEstimate]] = {}
        self.moving = asyncio.Lock()
        self.usual_seconds = 1.0
        """What bringing a model lately took, waiting for others included."""

    def tell(self) -> None:
        """Wake whoever waits for room: a model became idle, or another one was asked for."""
        self._news.set()

    def entry_of(self, seat: Seat) -> TableEntry | None:
        """Return a model that is there and takes requests."""
        entry = self._entry(seat.name)
        return None if entry is None or entry.is_hidden else entry

    def is_leaving(self, seat: Seat) -> bool:
        """Whether a model is there, ends its answers and takes no further requests."""
        entry = self._entry(seat.name)
        return entry is not None and entry.is_hidden

    def file_state(self, seat: Seat) -> tuple[int, ...]:
        """Return what changes with a model's file; nothing where it is no file of this machine."""
        try:
            found = Path(seat.placed.reference).stat()
        except (OSError, ValueError):
            return ()
        return found.st_ino, found.st_size, found.st_mtime_ns

    # --- in -------------------------------------------------------------------------------------

    async def bring(self, seat: Seat) -> None:
        """Load a model, in place of others where there is no room.

        Its file is looked at before anybody leaves for it.

        Raises:
            ZSEError: It cannot be loaded; those who left for it are there again.
            NobodyWaitsError: Nobody waits for it any more; likewise.
        """
        with short_turns(START_TURN_SECONDS):  # the threads of a load hand the GIL to each other
            await self._bring(seat)

    async def _bring(self, seat: Seat) -> None:
        began, self._ledger = self._clock(), Ledger.of_model()
        since = seat.since if seat.waiting else began
        with self._ledger.phase("estimate"):
            estimate = await self._estimate(seat)
        gone: list[Seat] = []
        seat.is_loading = True
        try:
            await self._make_room(seat, estimate, since, gone)
            await self._load(seat, estimate)
        except Exception:  # not a cancellation: when the server ends, nothing is brought back
            self._give_up_retained()
            await self._bring_back(gone)
            raise
        finally:
            self._give_up_retained()
            seat.is_loading = False
        self._ledger.mark("brought")
        seconds = self._clock() - began
        self.usual_seconds += (seconds - self.usual_seconds) * _NEWEST_WEIGHT
        self._state.metrics.observe("model_swap", seconds, seat.name)
        facts = {"model": seat.name, "left": [one.name for one in gone], "seconds": seconds}
        LOG.info("model brought", extra={**facts, "swap_ms": self._ledger.to_json()})

    async def _estimate(self, seat: Seat) -> MemoryEstimate:
        file_state = self.file_state(seat)
        known = self._estimates.get(seat.name)
        if known is not None and file_state and known[0] == file_state:
            return known[1]
        estimate = await asyncio.to_thread(self._loader.estimate, self._order_of(seat))
        self._estimates[seat.name] = file_state, estimate
        return estimate

    async def _load(self, seat: Seat, estimate: MemoryEstimate | None = None) -> None:
        load = None
        while load is None:
            if (entry := self._entry(seat.name)) is not None:  # an admin was faster
                if not entry.is_hidden:
                    return
                await self._news_within(_LOOK_SECONDS)
                continue
            try:
                load = self._loader.begin(self._order_of(seat, estimate))
            except LoadInProgressError:  # an admin's
                await self._loader.settled()
        if not seat.adapters:  # else its requests wait for these
            await load.answering()
            self._admit(seat)
        await load.wait()
        if (entry := self._entry(seat.name)) is not None:
            await self._add_adapters(seat, entry)
            seat.note(entry.model)

    def _order_of(self, seat: Seat, estimate: MemoryEstimate | None = None) -> LoadOrder:
        return LoadOrder(
            placed=seat.placed,
            name=seat.name,
            aliases=seat.aliases,
            estimate=estimate,
            shares=self._shares,
            retained=self._retained,
            is_awaited=True,
            ledger=self._ledger,
        )

    @property
    def _shares(self) -> int:
        """Among how many models, this one included, the free memory is divided."""
        places = min(self._state.options.fleet.max_resident or 1, len(self._seats))
        return max(1, places - len(self._state.models))

    async def _add_adapters(self, seat: Seat, entry: TableEntry) -> None:
        """Give a model the adapters again that it had when it left."""
        from zse.serve.adapters import as_model

        state, model = self._state, entry.model
        for name, folder in seat.adapters.items():
            if name in entry.adapters:  # the command line names it
                continue
            adapters = model.engine.adapters(state.options.load.lora)
            try:
                adapter = await asyncio.to_thread(adapters.load, name, folder)
                state.models.put_adapter(entry, as_model(model, adapter))
            except ZSEError as error:
                LOG.warning("an adapter is missing: %s", error, extra={"adapter": name})

    async def _bring_back(self, gone: list[Seat]) -> None:
        """Load the models again that made room in vain, the last one to leave first."""
        for seat in reversed(gone):
            self._ledger = Ledger.of_model()
            try:
                await self._load(seat)
            except ZSEError as error:
                LOG.warning("a model did not come back: %s", error, extra={"model": seat.name})

    # --- out ------------------------------------------------------------------------------------

    async def _make_room(
        self, seat: Seat, estimate: MemoryEstimate, since: float, gone: list[Seat]
    ) -> None:
        turn_seconds = self._state.options.fleet.model_turn
        while not await self._has_room(estimate):
            self._check_wanted(seat)
            leave = who_leaves(self._residents(), asked_since=since, turn_seconds=turn_seconds)
            if leave is None:
                raise ModelUnavailableError(
                    f"There is no room for the model '{seat.name}' beside those that do not leave.",
                    hint="Pin fewer models, or raise --max-resident or the memory for models.",
                )
            seconds = leave.at - self._clock()
            if seconds > 0:
                await self._news_within(seconds)
                continue
            patience = seat.patience_seconds(self._state.options.fleet.model_wait)
            try:
                await self.let_leave(leave.name, patience_seconds=patience, wanted_by=seat)
            except ModelUnavailableError:
                seat.give_up()
                raise
            gone.append(self._seats[leave.name])
        self._check_wanted(seat)

    def _check_wanted(self, seat: Seat) -> None:
        if all(waiter.answer.done() for waiter in seat.waiting):
            raise NobodyWaitsError

    def _give_up_retained(self) -> None:
        """Free what a model left on the device for its successor, if it was not used."""
        retained, self._retained = self._retained, None
        if retained is not None:
            retained.give_up()

    async def _has_room(self, estimate: MemoryEstimate) -> bool:
        if self._retained is not None:
            return True  # the place of one of the same shape
        state, most = self._state, self._state.options.fleet.max_resident
        if not len(state.models):
            return True  # nothing can be unloaded for it: loading says whether it fits
        if most and len(state.models) >= most:
            return False
        room = await asyncio.to_thread(room_for_models, state.options, state.models)
        return room.holds(estimate)

    def _residents(self) -> Iterator[Resident]:
        for entry in self._state.models:
            seat = self._seats.get(entry.model.name)
            if seat is not None and not seat.is_pinned and not entry.is_hidden:
                yield Resident(
                    name=seat.name,
                    last_asked=entry.last_asked,
                    since=entry.since,
                    is_free=entry.is_free,
                )

    async def let_leave(
        self, name: str, *, patience_seconds: float, wanted_by: Seat | None = None
    ) -> None:
        """Let a model end its answers and give its memory back; it takes no further ones.

        Args:
            wanted_by: Whose waiters it leaves for.

        Raises:
            ModelUnavailableError: They did not end in time; it takes requests again.
            NobodyWaitsError: All it was to leave for have left; likewise.
        """
        entry, models = self._entry(name), self._state.models
        if entry is None:
            return
        models.hide(entry)
        entry.model.uses.on_free = self.tell
        try:
            with self._ledger.phase("answers"):
                await self._let_end(entry, patience_seconds, wanted_by)
        except BaseException:
            models.show(entry)
            raise
        with self._ledger.phase("leave"):
            await self._close(entry, wanted_by)

    async def _let_end(
        self, entry: TableEntry, patience_seconds: float, wanted_by: Seat | None
    ) -> None:
        """Wait for a model's answers; raises as ``let_leave``."""
        deadline = self._clock() + patience_seconds
        while not entry.is_free:
            if (left := deadline - self._clock()) <= 0:
                raise ModelUnavailableError(
                    f"The answers of the model '{entry.model.name}' did not end in "
                    f"{patience_seconds:.0f} s.",
                    hint="Ask again later.",
                )
            if wanted_by is not None:
                self._check_wanted(wanted_by)
            await self._news_within(min(left, _LOOK_SECONDS))

    async def _close(self, entry: TableEntry, wanted_by: Seat | None) -> None:
        seat, model = self._seats[entry.model.name], entry.model
        found = {name: one.adapter for name, one in entry.adapters.items()}
        seat.adapters = {name: one.folder for name, one in found.items() if one is not None}
        seat.note(model)
        self._loader.text_cache.put(model)
        self._state.models.remove(entry)
        file = None
        if wanted_by is not None and self._is_plain(entry):
            file = Path(wanted_by.placed.reference)
        await asyncio.to_thread(self._end, entry, file)

    def _end(self, entry: TableEntry, wanted: Path | None) -> None:
        """Close a model; where the next has the same shape, begin to load it in its memory."""
        phase = self._ledger.phase
        if wanted is not None:
            with phase("retain"):
                self._retained = entry.model.engine.retain(wanted)
        entry.model.close()
        if wanted is not None and self._retained is not None:
            self._retained.begin(wanted, phases=phase)
        tell_unloaded(entry)  # behind that: whoever reads the log may be slow

    def _is_plain(self, entry: TableEntry) -> bool:
        """Whether a model was loaded as requests have others loaded: by the server's options."""
        options = self._state.options.load
        order = self._loader.orders.get(entry.model.name)
        is_asked_for = order is not None and (order.quant is not None or order.max_context > 0)
        is_alone = not entry.adapters and not options.speculation.draft_model
        return is_alone and not is_asked_for and runs_on_gpu(options.device.name)

    def _entry(self, name: str) -> TableEntry | None:
        return next((one for one in self._state.models if one.model.name == name), None)

    async def _news_within(self, seconds: float) -> None:
        self._news.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()

    @property
    def _loader(self) -> ModelLoader:
        return self._state.one_of(ModelLoader)

    # --- what is kept of models that left -------------------------------------------------------

    def forget(self) -> None:
        """Drop what a quick return stands on: tokenizers, kernels, prefixes, pages of files."""
        self._loader.text_cache.clear()
        if self._state.options.load.cache.prefix_store:
            from zse.engine.prefixes.memory_store import forget_all

            forget_all()
        if not len(self._state.models) and not self._loader.is_loading:
            drop_code(self._state.options.load.device.name)
        for seat in self._seats.values():
            _drop_pages(seat.placed.reference)


def _drop_pages(reference: str) -> None:
    """Have the kernel forget the pages of a file; those that others have mapped stay."""
    try:
        descriptor = os.open(reference, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return  # a repository, an object, a built-in
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError:
        LOG.debug("pages stay in memory", extra={"model": reference})
    finally:
        os.close(descriptor)
