"""A model's seat in the fleet: who waits for it, since when, and what went wrong the last time."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from zse.records import record
from zse.serve.fleet.errors import ModelUnavailableError

if TYPE_CHECKING:
    from pathlib import Path

    from zse.errors import ZSEError
    from zse.serve.admin.places import PlacedModel
    from zse.serve.state import LoadedModel

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
_MOST_DOUBLINGS = 4


class Waiter:
    """Who waits for a model: a request, or an admin.

    Args:
        name: What it calls the model.
        arrived: When it came, on the fleet's clock.
        tenant: Whose request it is.
        for_all: Whether it waits until all of the model's weights are there.
    """

    def __init__(
        self, name: str, arrived: float, tenant: str = "", *, for_all: bool = False
    ) -> None:
        self.name = name
        self.for_all = for_all
        self.arrived = arrived
        self.tenant = tenant
        self.answer: asyncio.Future[LoadedModel] = asyncio.get_running_loop().create_future()

    def give(self, model: LoadedModel) -> None:
        """Let it go on; its use of the model has begun then, so that nobody takes the model."""
        if not self.answer.done():
            model.uses.begin()
            self.answer.set_result(model)

    def fail(self, error: ZSEError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # whoever waited may be gone

    def leave(self) -> None:
        """Give up: what it was given meanwhile is given back."""
        answer = self.answer
        if answer.cancel() or answer.cancelled() or answer.exception() is not None:
            return
        answer.result().uses.end()


@record
class Failure:
    """A load that failed: it is not tried again at once, unless the file is another one."""

    error: ModelUnavailableError
    """What is told; it is raised to nobody itself."""
    until: float
    """On the fleet's clock."""
    file_state: tuple[int, ...]


class Seat:
    """One model of the fleet; whether it is there, the table of models says."""

    def __init__(self, placed: PlacedModel, *, aliases: tuple[str, ...], is_pinned: bool) -> None:
        self.placed = placed
        self.aliases = aliases
        self.is_pinned = is_pinned
        self.waiting: deque[Waiter] = deque()
        """The first came first."""
        self.is_loading = False
        self.adapters: dict[str, Path] = {}
        """Folders of the adapters that it had when it left, by their names."""
        self.created = self.max_context = 0
        """As of when it was last there; see ``LoadedModel``."""
        self.failure: Failure | None = None
        self._num_failures = 0
        self._num_given_up = 0

    @property
    def name(self) -> str:
        return self.placed.name

    @property
    def since(self) -> float:
        """When the oldest of those who wait came."""
        return self.waiting[0].arrived

    def patience_seconds(self, least: float) -> float:
        """Return how long it waits for the answers of others: twice as long each time in vain.

        So it gets a place in the end, unless answers are longer than the longest of these waits,
        which is also how long another model may be hidden for it at a time.
        """
        return least * float(1 << min(self._num_given_up, _MOST_DOUBLINGS))

    def give_up(self) -> None:
        """Note that it waited for others in vain."""
        self._num_given_up += 1

    def fail(self, error: ZSEError, *, now: float, file_state: tuple[int, ...]) -> None:
        """Tell all who wait, and whoever asks in the near future."""
        longest = _LONGEST_PAUSE_SECONDS
        pause = min(_FIRST_PAUSE_SECONDS * (1 << min(self._num_failures, 10)), longest)
        self._num_failures += 1
        told = ModelUnavailableError.of(error)
        self.failure = Failure(error=told, until=now + pause, file_state=file_state)
        for waiter in self.take_all():
            waiter.fail(ModelUnavailableError.of(error))

    def note(self, model: LoadedModel) -> None:
        """Remember of a model that is there what is told when it is not."""
        self.created, self.max_context = model.created, model.max_context

    def succeed(self) -> None:
        """Forget what went wrong before."""
        self.failure, self._num_failures, self._num_given_up = None, 0, 0

    def take_requests(self) -> list[Waiter]:
        """Return those who wait for no more than that the model can be asked."""
        waiting, self.waiting = self.waiting, deque(one for one in self.waiting if one.for_all)
        return [one for one in waiting if not one.for_all]

    def take_all(self) -> list[Waiter]:
        """Return those who wait; from now on they do so no longer."""
        waiting, self.waiting = list(self.waiting), deque()
        return waiting
