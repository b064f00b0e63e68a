"""What could be loaded: known models, models in the server's places, and whether one fits."""

from __future__ import annotations

from functools import cache, cached_property
from typing import TYPE_CHECKING, Literal

from zse.device.open import runs_on_gpu
from zse.engine.requirements import read_facts
from zse.errors import ZSEError
from zse.models.memory import ModelFacts, estimates_of
from zse.models.registry import (
    KnownModel,
    find_known,
    known_models,
    search_models,
    select_models,
)
from zse.models.resolve import HubRepository, resolve_model
from zse.serve.admin.memory import room_for_models
from zse.serve.admin.places import ModelNotAllowedError
from zse.serve.admin.shapes import Shape
from zse.serve.http.errors import sanitize

if TYPE_CHECKING:
    from zse.serve.admin.places import PlacedModel, Places
    from zse.serve.state import AppState


class KnownModelEntry(Shape):
    """A model that is known, or lies in one of the server's places."""

    id: str
    source: Literal["registry", "place"]
    category: str | None = None
    architecture: str | None = None
    parameters: int | None = None
    max_context: int | None = None
    """Tokens it was trained for."""
    file_bytes: int | None = None
    memory_gb: dict[str, float]
    """Estimates by scheme, in 10**9 bytes, with 4,096 tokens of context on this device."""
    loadable: bool
    """Whether it is in a place that this server may load from."""


class ModelEstimate(Shape):
    quantization: str
    weights_bytes: int
    kv_bytes: int
    overhead_bytes: int
    total_bytes: int
    fits: bool


class ModelVerdict(Shape):
    """What is known of a model before a byte of it is loaded."""

    model: str
    supported: bool | None
    """Null where nobody knows without downloading it."""
    reason: str | None
    """Why it is not supported, or not known."""
    loadable: bool
    loaded: bool
    fits: bool | None
    left_bytes: int
    context_tokens: int | None
    estimates: list[ModelEstimate]


@cache
def _memory_gb(repository: str, *, on_gpu: bool) -> dict[str, float]:
    """Estimate a known model at each scheme: of all of them it takes a second, so it is kept."""
    estimates = estimates_of(find_known(repository).facts, on_gpu=on_gpu)
    return {one.quantization: round(one.total_bytes / 1e9, 2) for one in estimates}


class Catalog:
    """Looks models up for one request; files are read, so not on the event loop."""

    def __init__(self, state: AppState, places: Places) -> None:
        self._state = state
        self._all_places = places
        self._on_gpu = runs_on_gpu(state.options.load.device.name)

    @cached_property
    def _places(self) -> Places:
        """As they are now: each known model is looked for in them, and folders may be large."""
        return self._all_places.as_now()

    def known(self, category: str | None, memory_gb: float | None) -> list[KnownModelEntry]:
        """Return the registry: one category of it, or what fits in so many GB at INT4."""
        limit = None if memory_gb is None else memory_gb * 1e9
        found = select_models(category=category, largest_bytes=limit, on_gpu=self._on_gpu)
        return [self._entry(model) for model in found]

    def search(self, words: str) -> list[KnownModelEntry]:
        """Return what has every word in its name: the server's own models, then known ones."""
        wanted = words.lower().split()
        placed = [
            KnownModelEntry(
                id=one.name,
                source="place",
                file_bytes=one.size_bytes,
                memory_gb={},
                loadable=True,
            )
            for one in self._places.listed()
            if all(word in one.name.lower() for word in wanted)
        ]
        return placed + [self._entry(model) for model in search_models(words)]

    def check(self, name: str, context_tokens: int) -> ModelVerdict:
        """Say whether a model is supported, may be loaded and fits.

        Raises:
            ModelNotAllowedError: It is neither known nor in one of the places.
        """
        placed, known = self._placed(name), known_models().get(name)
        facts: ModelFacts | None
        reason: str | None
        if known is not None:
            facts, reason = known.facts, None
        elif placed is not None:
            facts, reason = self._facts_of(placed)
        else:
            raise ModelNotAllowedError(
                f"The model '{name[:100]}' is neither known nor in one of the server's places.",
                param="model",
            )
        room = room_for_models(self._state.options, self._state.models)
        estimates = (
            estimates_of(facts, on_gpu=self._on_gpu, context_tokens=context_tokens) if facts else []
        )
        fitting = [room.holds(one) for one in estimates]
        is_hub = facts is None and reason is None
        return ModelVerdict(
            model=name,
            supported=None if is_hub else facts is not None,
            reason="It is downloaded before anything is known of it." if is_hub else reason,
            loadable=placed is not None,
            loaded=self._state.models.has(name),
            fits=any(fitting) if estimates else None,
            left_bytes=room.left_bytes,
            context_tokens=estimates[0].context_tokens if estimates else None,
            estimates=[
                ModelEstimate(
                    quantization=one.quantization,
                    weights_bytes=one.weights_bytes,
                    kv_bytes=one.kv_bytes,
                    overhead_bytes=one.overhead_bytes,
                    total_bytes=one.total_bytes,
                    fits=is_fitting,
                )
                for one, is_fitting in zip(estimates, fitting, strict=True)
            ],
        )

    def _entry(self, model: KnownModel) -> KnownModelEntry:
        return KnownModelEntry(
            id=model.repository,
            source="registry",
            category=model.category,
            architecture=model.architecture,
            parameters=model.num_parameters,
            max_context=model.max_context,
            memory_gb=_memory_gb(model.repository, on_gpu=self._on_gpu),
            loadable=self._placed(model.repository) is not None,
        )

    def _placed(self, name: str) -> PlacedModel | None:
        try:
            return self._places.find(name)
        except ModelNotAllowedError:
            return None

    def _facts_of(self, placed: PlacedModel) -> tuple[ModelFacts | None, str | None]:
        """Return what is known of a placed model, or why it is not supported; of a hub neither."""
        try:
            if isinstance(resolve_model(placed.reference), HubRepository):
                return None, None
            return read_facts(placed.reference, self._state.settings), None
        except ZSEError as error:
            return None, sanitize(str(error))
