"""Models that come and go while the server answers: one load at a time, in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING

from zse.device.open import runs_on_gpu
from zse.engine.requirements import read_facts
from zse.errors import ModelNotFoundError, ShuttingDownError, ZSEError
from zse.failures import deliberate
from zse.option import with_values
from zse.serve.admin.memory import estimate_of, room_for_models
from zse.serve.admin.orders import (
    Load,
    LoadInProgressError,
    LoadOrder,
    ModelBusyError,
    ModelLoadError,
)
from zse.serve.admin.places import Places
from zse.serve.head_start import HeadStart
from zse.serve.load import begin_served_model, load_served_model
from zse.serve.models import NameTakenError
from zse.serve.text_cache import TextCache

if TYPE_CHECKING:
    from zse.models.memory import MemoryEstimate
    from zse.options import LoadOptions
    from zse.serve.models import TableEntry
    from zse.serve.state import AppState, LoadedModel
    from zse.server_options import ServeOptions

LOG = logging.getLogger("zse.serve")

_POLL_SECONDS = 0.02
_LOOK_SECONDS = 0.5


class ModelLoader:
    """Loads and unloads the models of a server.

    Raises:
        UsageError: ``--model-places`` names what is no place.
    """

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._lock = threading.Lock()
        options = state.options
        self.places = Places(options.model, options.places, start_name=options.served_model_name)
        if state.fleet is not None:
            self.places.add(seat.placed for seat in state.fleet.seats.values())
        self.text_cache = TextCache()
        self.orders: dict[str, LoadOrder] = {}
        """What each model was last loaded by, by its name."""
        self.latest: Load | None = None
        """The load that runs, or the last one that did."""

    def begin(self, order: LoadOrder) -> Load:
        """Start a load and return.

        Raises:
            LoadInProgressError: Another one runs.
            NameTakenError: A loaded model has this name.
        """
        with self._lock:
            if self.latest is not None and self.is_loading:
                raise LoadInProgressError(
                    f"The model '{self.latest.order.name}' is being loaded; one is at a time."
                )
            if self._state.models.has(order.name):
                raise NameTakenError(
                    f"The name '{order.name}' belongs to a loaded model.",
                    hint="Load it under another name, or unload the other first.",
                )
            self.latest = load = Load(order)
        threading.Thread(target=self._run, args=(load,), name="zse-load", daemon=True).start()
        return load

    @property
    def is_loading(self) -> bool:
        """Whether a model is on its way, which no table tells of yet."""
        return self.latest is not None and not self.latest.is_over

    async def settled(self) -> None:
        """Wait until no load runs that has begun."""
        if self.latest is not None:
            await self.latest.settled()

    def estimate(self, order: LoadOrder) -> MemoryEstimate:
        """Look at a model's file, and return what it will take.

        Raises:
            ZSEError: It is missing, damaged or not supported.
        """
        options = self._options_of(order).load
        facts = read_facts(order.placed.reference, self._state.settings)
        return estimate_of(facts, options, on_gpu=runs_on_gpu(options.device.name))

    async def unload(self, name: str, *, force: bool, patience_seconds: float) -> TableEntry:
        """Let a model end its work and give its memory back; return what it was.

        With ``force`` its work ends in an error.

        Raises:
            ModelNotFoundError: No model has this name.
            ModelBusyError: Its work did not end in time; it answers again.
        """
        models = self._state.models
        entry = models.find(name)
        if entry is None:
            raise ModelNotFoundError(f"No model '{name[:200]}' is loaded.", param="model")
        models.hide(entry)
        try:
            if force:
                await entry.model.engine.drain(0)
            else:
                await _let_end(entry, patience_seconds)
        except BaseException:
            models.show(entry)
            raise
        models.remove(entry)
        await asyncio.to_thread(close_model, entry)
        return entry

    # --- in the thread of a load ----------------------------------------------------------------

    def _run(self, load: Load) -> None:
        order = load.order
        try:
            model = self._load(load)
            if self._state.draining and not order.is_awaited:
                model.close()
                raise ShuttingDownError("The server is shutting down and loads no further model.")
            entry = self._put(model, order.aliases)
            self._settle(load, entry)
            self.orders[order.name] = replace(order, retained=None, ledger=None)
            load.progress.phase = "ready"
            LOG.info("model loaded", extra={"model": order.name, "evicted": load.evicted})
        except BaseException as error:  # noqa: BLE001 - whoever asked is told
            load.progress.phase = "failed"
            load.error = self._told(error)
            LOG.error(  # noqa: TRY400 - a trace is for defects, which the error says it is
                "the model could not be loaded: %s",
                load.error,
                extra={"model": order.name, "hint": load.error.hint},
            )
        finally:
            load.end()

    def _settle(self, load: Load, entry: TableEntry) -> None:
        """Wait for the weights of a model that requests are let to meanwhile."""
        load.take_requests()
        try:
            entry.model.settle()
        except BaseException:
            self._evict(entry)
            raise

    def _put(self, model: LoadedModel, aliases: tuple[str, ...]) -> TableEntry:
        """Let a model answer, with the adapters that it was loaded with."""
        entry = self._state.models.put(model, aliases)
        if not self._state.options.loras:
            return entry
        from zse.serve.adapters import put_adapters

        try:
            put_adapters(self._state.models, entry, self._state.options.load.lora)
        except BaseException:  # a name was taken meanwhile
            self._evict(entry)
            raise
        return entry

    def _adapters_of(self, order: LoadOrder) -> tuple[str, ...]:
        """Return what the command line names for a model: its own, where it has come back."""
        options = self._state.options
        if order.placed.reference != options.model or not options.loras:
            return ()
        from zse.engine.adapters import parse_named

        named, models = parse_named(options.loras), self._state.models
        return tuple(f"{name}={folder}" for name, folder in named.items() if not models.has(name))

    def _told(self, error: BaseException) -> ZSEError:
        failure = deliberate(error, self._state.settings.cache_dir)
        if failure.http_status < 500 or failure.http_status == 503:
            return failure
        return ModelLoadError(f"The model could not be loaded: {failure}", hint=failure.hint)

    def _load(self, load: Load) -> LoadedModel:
        options = self._options_of(load.order)
        if load.order.retained is None:
            options = replace(options, load=self._make_room(load, options.load))
        settings = replace(self._state.settings, serve=options)
        ledger = load.progress.ledger
        head_start = HeadStart(settings, ledger.phase, ledger.report, load.order.retained)
        try:
            begin = begin_served_model if load.order.is_awaited else load_served_model
            return begin(settings, load.progress, head_start, self.text_cache)
        except BaseException:
            head_start.abandon()  # this process lives on, and has no other use for the memory
            raise

    def _options_of(self, order: LoadOrder) -> ServeOptions:
        options = self._state.settings.serve
        asked = {"quant": order.quant, "max_context": order.max_context}
        given = {key: value for key, value in asked.items() if value}
        if order.placed.reference != options.model:
            # What the command line says of parsers is meant for its own model.
            options = replace(options, tool_parser="auto", reasoning_parser="auto")
        return replace(
            options,
            model=order.placed.reference,
            served_model_name=order.name,
            loras=self._adapters_of(order),
            load=with_values(options.load, given),
        )

    def _make_room(self, load: Load, options: LoadOptions) -> LoadOptions:
        """Return the options with what is left of the memory; idle models go where they may."""
        order = load.order
        estimate = order.estimate or self.estimate(order)
        while True:
            room = room_for_models(self._state.options, self._state.models)
            if room.holds(estimate):
                return room.options_within(options, estimate, shares=order.shares)
            idle = self._hidden_idle(load.loop) if order.evicts else None
            if idle is None:
                room.check(estimate)
            else:
                self._evict(idle)
                load.evicted.append(idle.model.name)

    def _hidden_idle(self, loop: asyncio.AbstractEventLoop | None) -> TableEntry | None:
        """Hide the least recently asked of the models that nobody uses or pinned, and return it.

        It is chosen where requests find their models and begin to use them: between these two,
        none is taken.
        """
        if loop is None:
            return self._hide_idle()
        chosen: Future[TableEntry | None] = Future()

        def choose() -> None:
            if chosen.set_running_or_notify_cancel():
                chosen.set_result(self._hide_idle())

        try:
            loop.call_soon_threadsafe(choose)
        except RuntimeError:  # the loop has ended, and all requests with it
            return self._hide_idle()
        while True:
            try:
                return chosen.result(_LOOK_SECONDS)
            except TimeoutError:
                if not loop.is_running() and chosen.cancel():  # it ended before it came to this
                    return self._hide_idle()

    def _hide_idle(self) -> TableEntry | None:
        seats = {} if self._state.fleet is None else self._state.fleet.seats
        pinned = {name for name, seat in seats.items() if seat.is_pinned}
        entries = [
            entry
            for entry in self._state.models
            if entry.is_free and not entry.is_hidden and entry.model.name not in pinned
        ]
        chosen = min(entries, key=lambda entry: entry.last_asked, default=None)
        if chosen is not None:
            self._state.models.hide(chosen)
        return chosen

    def _evict(self, entry: TableEntry) -> None:
        self._state.models.hide(entry)
        self._state.models.remove(entry)
        close_model(entry)


async def _let_end(entry: TableEntry, patience_seconds: float) -> None:
    deadline = time.monotonic() + patience_seconds
    while not entry.is_free:
        if time.monotonic() > deadline:
            raise ModelBusyError(
                f"The model '{entry.model.name}' works on requests that have not ended.",
                hint="Wait longer with timeout_seconds, or end them with force.",
            )
        await asyncio.sleep(_POLL_SECONDS)


def close_model(entry: TableEntry) -> None:
    """Give back the memory of a model that is in the table no longer."""
    entry.model.close()
    tell_unloaded(entry)


def tell_unloaded(entry: TableEntry) -> None:
    LOG.info("model unloaded", extra={"model": entry.model.name})
