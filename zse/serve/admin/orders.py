"""What a model is loaded by, how far its load is, and why one may not be."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TYPE_CHECKING

from zse.errors import ZSEError
from zse.records import record
from zse.serve.ledger import Ledger
from zse.serve.progress import LoadProgress

if TYPE_CHECKING:
    from zse.backends.gpu.retained import Retained
    from zse.models.memory import MemoryEstimate
    from zse.serve.admin.places import PlacedModel


class LoadInProgressError(ZSEError):
    """One model is loaded at a time."""

    http_status = 409
    error_code = "load_in_progress"


class ModelBusyError(ZSEError):
    """The model has work that does not end in time."""

    http_status = 409
    error_code = "model_busy"


class ModelLoadError(ZSEError):
    """A model could not be loaded; the message says why."""

    http_status = 409
    error_code = "model_load_failed"


@record
class LoadOrder:
    """What to load, and how."""

    placed: PlacedModel
    name: str
    """In /v1/models."""
    aliases: tuple[str, ...] = ()
    quant: str | None = None
    """Scheme to convert a checkpoint to; None means the server's."""
    max_context: int = 0
    """Longest sequence in tokens; 0 means the server's."""
    evicts: bool = False
    """Whether idle models may go for it, the least recently asked first."""
    estimate: MemoryEstimate | None = None
    """What it takes, where that is known."""
    shares: int = 1
    """Among how many models, this one included, what is left of a GPU is shared out."""
    retained: Retained | None = None
    """What a model of the same shape has left to it, on a GPU."""
    is_awaited: bool = False
    """Whether requests wait for it, also those of a server that takes no more."""
    ledger: Ledger | None = None
    """Of the swap that this load is a part of; None where it begins with the load."""


class Load:
    """One load, running or over."""

    def __init__(self, order: LoadOrder) -> None:
        self.order = order
        self.progress = LoadProgress(order.ledger or Ledger.of_model())
        self._began_ms = self.progress.ledger.now_ms()
        self.error: ZSEError | None = None
        self.evicted: list[str] = []
        self.seconds: float | None = None
        """What it took; None while it runs."""
        self.loop = _running_loop()
        """Where requests begin their uses of models."""
        self.answers: Future[None] = Future()
        """Set when the model takes requests, weights perhaps still on their way, or is given up."""
        self.done: Future[None] = Future()
        """Set last: what came of it can be read from then on."""

    @property
    def is_over(self) -> bool:
        return self.done.done()

    def end(self) -> None:
        """Note that it is over; whoever waits goes on."""
        self.seconds = (self.progress.ledger.now_ms() - self._began_ms) / 1000
        self.take_requests()
        self.done.set_result(None)

    def take_requests(self) -> None:
        """Note that the model is in the table; twice does nothing."""
        if not self.answers.done():
            self.answers.set_result(None)

    async def answering(self) -> None:
        """Wait until the model takes requests, or does not come."""
        await asyncio.shield(asyncio.wrap_future(self.answers))

    async def wait(self) -> None:
        """Wait until it is over.

        Raises:
            ModelLoadError: It failed.
            ZSEError: It was refused, as ``ModelLoader.begin`` does or for want of memory.
        """
        await self.settled()
        if self.error is not None:
            raise self.error

    async def settled(self) -> None:
        """Wait until it is over, whatever came of it."""
        await asyncio.shield(asyncio.wrap_future(self.done))


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
