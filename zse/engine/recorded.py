"""What is known of a model without downloading it: by its files, or by the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.engine.requirements import read_facts
from zse.models.registry import find_known
from zse.models.resolve import HubRepository, resolve_model

if TYPE_CHECKING:
    from pathlib import Path

    from zse.models.memory import ModelFacts
    from zse.settings import Settings


def recorded_facts(model: str | Path, settings: Settings) -> ModelFacts:
    """Look up what is known of a model; of a repository of the hub what the registry recorded.

    Nothing is downloaded but the header of a file behind an address.

    Raises:
        NotFoundError: There is no such model, or the registry does not know the repository.
        UnsupportedModelError: Its architecture is not supported.
    """
    named = resolve_model(model)
    if isinstance(named, HubRepository):
        return find_known(named.repository).facts
    return read_facts(model, settings)
