"""What the server knows: the model when it is there, the phase, and how much work is in flight.

The boot thread fills it, handlers read it.
"""

from __future__ import annotations

import asyncio
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from zse.errors import (
    LoadingError,
    ModelNotFoundError,
    ShuttingDownError,
)
from zse.records import record
from zse.serve.access.keyring import Keyring
from zse.serve.access.policy import Access
from zse.serve.admission import MAX_RETRY_SECONDS, Admission, Limits, Room
from zse.serve.audit.log import AuditLog
from zse.serve.history import History
from zse.serve.models import DEFAULT_ALIAS, ModelTable
from zse.serve.progress import LoadProgress
from zse.serve.shutdown import Presence
from zse.serve.telemetry.metrics import Metrics
from zse.serve.uses import Uses
from zse.server_options import ServeOptions
from zse.settings import Settings
from zse.text.dialect import Dialect

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.engine.adapters import Adapter
    from zse.engine.async_engine import AsyncEngine
    from zse.format.model_file import ModelFile
    from zse.models.spec import ModelSpec, Task
    from zse.serve.fleet.fleet import Fleet
    from zse.serve.ledger import Ledger
    from zse.serve.telemetry.tracing import Tracing
    from zse.text.template import ChatTemplate
    from zse.text.tokenizer import Tokenizer

Part = TypeVar("Part", bound="StatePart")


@record
class LoadedModel:
    """A model that answers."""

    name: str
    engine: AsyncEngine
    tokenizer: Tokenizer
    template: ChatTemplate | None
    max_context: int
    """Longest sequence in tokens, prompt and answer together, that can be served."""
    vocab_size: int
    fingerprint: str
    """``system_fingerprint``: changes when the weights, their quantization or the code change."""
    created: int
    """Unix seconds, for /v1/models."""
    vector_size: int = 0
    """Numbers in the vector of a text."""
    spec: ModelSpec | None = None
    """What it is; None of one that is no real model."""
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)
    """From the model's generation_config.json; a request's own values win."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Facts for /version: device, scheme, sizes."""
    dialect: Dialect = Dialect()
    """How it writes calls and reasoning."""
    adapter: Adapter | None = None
    """What is added to the engine's model for it."""
    parent: str = ""
    """Name of that model, where it is one with an adapter."""
    status: ClassVar[str] = "loaded"
    """Of what a fleet lists."""
    resources: tuple[ModelFile, ...] = ()
    """What the engine reads from; closed after it."""
    uses: Uses = field(default_factory=Uses)
    """Of the engine's model: what an adapter makes of it has the same."""

    @property
    def task(self) -> Task:
        return "text" if self.spec is None else self.spec.task

    def settle(self) -> None:
        """Wait until all weights are there; raises what kept them from it."""
        self.engine.settle()

    def close(self) -> None:
        self.engine.close()
        for resource in self.resources:
            resource.close()


class StatePart(Protocol):
    """Made of the state alone."""

    def __init__(self, state: AppState) -> None: ...


class AppState:
    """Everything a handler may read.

    Args:
        options: How much runs and waits at once, and what is told while the model is loaded.
        access: Who may ask; everybody on this machine, by default.
        audit: What remembers who asked; no file keeps it, by default.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        options: ServeOptions | None = None,
        access: Access | None = None,
        audit: AuditLog | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.progress = LoadProgress(ledger)
        """Of the start."""
        self.access = access or Access(Keyring(), is_local=True)
        self.audit = audit or AuditLog()
        self.options = options or ServeOptions()
        self.settings = settings or Settings(serve=self.options)
        """Settings that further models are loaded with."""
        self.metrics = Metrics(self, self.options.telemetry)
        self.tracing: Tracing | None = None
        """Where spans go; None where nobody collects them."""
        self.models = ModelTable()
        self.fleet: Fleet | None = None
        """Loads models on demand; None where no model comes and goes by itself."""
        self.history = History()
        self.presence = Presence.HERE
        self.admission = Admission(
            self._limits, on_refusal=lambda: self.metrics.count("rejections")
        )
        self.num_answering = 0
        """Answers whose clients have not received all of them yet."""
        self.terminate = asyncio.Event()
        """Set when draining ran out of time: streams end with an error event."""
        self.is_arriving = False
        """Whether requests are taken and the model's weights are still on their way."""
        self._parts: dict[type, Any] = {}

    def one_of(self, kind: type[Part]) -> Part:
        """Return the server's only object of a kind, making it of this state at its first use.

        So what only some requests need is neither imported nor made before one of them comes.
        """
        if kind not in self._parts:
            self._parts[kind] = kind(self)
        part: Part = self._parts[kind]
        return part

    def made(self, kind: type[Part]) -> Part | None:
        """Return the object of a kind where one was asked for; None where none was."""
        return self._parts.get(kind)

    @property
    def ledger(self) -> Ledger:
        """Of the start."""
        return self.progress.ledger

    @property
    def phase(self) -> str:
        """Of the start."""
        return self.progress.phase

    @phase.setter
    def phase(self, phase: str) -> None:
        self.progress.phase = phase

    @property
    def max_running(self) -> int:
        """Choices that the engine runs at once."""
        return self.options.load.batch.max_sequences

    @property
    def max_admitted(self) -> int:
        """Choices that run and wait together; more get 429."""
        return self.max_running + self.options.max_queue

    @property
    def model(self) -> LoadedModel | None:
        """What answers where a request names no model."""
        return self.models.default

    @property
    def is_leaving(self) -> bool:
        """Whether balancers are to send no more."""
        return self.presence is not Presence.HERE

    @property
    def draining(self) -> bool:
        """Whether new work is refused."""
        return self.presence is Presence.CLOSED

    @property
    def is_ready(self) -> bool:
        has_models = self.model is not None if self.fleet is None else self.fleet.is_open
        is_started = not (self.is_starting or self.is_arriving)
        return has_models and is_started and not self.is_leaving

    @property
    def is_starting(self) -> bool:
        """Whether the model is still on its way."""
        return self.model is None and not self.progress.is_over and not self.draining

    @property
    def stage(self) -> str:
        """What the server is doing, in words: a phase of its start, ready or draining."""
        if self.is_leaving:
            return "draining"
        return self.progress.stage

    def require_started(self) -> None:
        """Refuse what has to wait for the start to end.

        Raises:
            ShuttingDownError: The server is draining.
            LoadingError: The model it was started with is not there yet.
        """
        if self.draining:
            raise ShuttingDownError("The server is shutting down and takes no new requests.")
        if self.is_starting:
            raise self._loading()

    async def hold(self, body_bytes: int = 0) -> None:
        """Wait while the model is on its way, as long as the options say.

        That it can be asked ends the wait: what it computes then waits for its weights itself.

        Args:
            body_bytes: Of the request that waits; 0 where it does not say.
        """
        if self.options.hold_seconds > 0 and self.is_starting:
            from zse.serve.held_requests import HeldRequests

            await self.one_of(HeldRequests).wait(self.options.hold_seconds, body_bytes)

    def require_ready(self) -> None:
        """Refuse as ``require_any``, and where weights are still on their way."""
        self.require_any()
        if self.is_arriving:
            raise self._loading()

    def require_any(self) -> None:
        """Refuse where no model answers, and none is brought for a request.

        Raises:
            ZSEError: As ``require_model``, or as ``Fleet.refuse_closed``.
        """
        if self.fleet is None:
            self.require_model()
        else:
            self.require_started()
            self.fleet.refuse_closed()

    def require_model(self, name: str | None = None) -> LoadedModel:
        """Return the model that answers to ``name``; the default where there is none.

        Raises:
            ShuttingDownError: The server is draining.
            LoadingError: There is no model yet, or no longer.
            ModelNotFoundError: The name is no model's, nor ``default``.
        """
        if self.draining:
            raise ShuttingDownError("The server is shutting down and takes no new requests.")
        if self.model is None:
            raise self._loading()
        model = self.models.answering(DEFAULT_ALIAS if name is None else name)
        if model is None:
            named = ", ".join(f"'{one.model.name}'" for one in self.models)
            raise ModelNotFoundError(
                f"The model '{str(name)[:200]}' does not exist; this server has {named}.",
                param="model",
            )
        return model

    def _loading(self) -> LoadingError:
        if self.phase == "ready":
            return LoadingError("No model is loaded; POST /api/models/load loads one.")
        error = LoadingError(f"The model is not ready yet: {self.stage}.")
        work = self.ledger.work()
        if work is not None:
            error.retry_after_seconds = max(1, min(MAX_RETRY_SECONDS, round(work.seconds_left)))
        return error

    @property
    def in_flight(self) -> int:
        """Choices that were admitted and that the engine is not done with."""
        return self.admission.num_choices

    @property
    def is_busy(self) -> bool:
        """Whether an answer is being made, is not yet handed over, or waits for its model."""
        is_waited_for = self.fleet is not None and self.fleet.num_waiting > 0
        is_used = any(entry.model.uses.count for entry in self.models)
        return self.in_flight > 0 or self.num_answering > 0 or is_waited_for or is_used

    def refuse_oversized(self, num_choices: int) -> None:
        """Refuse a request as ``Admission.refuse_oversized`` does."""
        self.admission.refuse_oversized(num_choices)

    def admit(self, num_choices: int, *, num_prompt_tokens: int = 0, tenant: str = "") -> Room:
        """Take room for a request as ``Admission.admit`` does."""
        return self.admission.admit(num_choices, num_prompt_tokens=num_prompt_tokens, tenant=tenant)

    def _limits(self) -> Limits:
        return Limits(choices=self.max_admitted, prompt_tokens=self.options.max_queue_tokens)
