"""Adapters as models of their own: they share the engine of the model that they are added to."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from zse.engine.adapters import parse_named, read_named
from zse.errors import UsageError
from zse.serve.models import DEFAULT_ALIAS

if TYPE_CHECKING:
    from pathlib import Path

    from zse.backends.adapters import AdapterWeights
    from zse.engine.adapters import Adapter
    from zse.models.spec import ModelSpec
    from zse.options import LoRAOptions
    from zse.serve.models import ModelTable, TableEntry
    from zse.serve.state import LoadedModel
    from zse.server_options import ServeOptions


def read_for_start(
    options: ServeOptions, name: str, spec: ModelSpec
) -> list[tuple[AdapterWeights, Path]]:
    """Read what ``--lora`` names, before the model's weights are there.

    Raises:
        UsageError: A name is none, or the model's own.
        ZSEError: As ``read_named``.
    """
    named = parse_named(options.loras)
    for taken in (name, DEFAULT_ALIAS):
        if taken in named:
            raise UsageError(
                f"--lora names an adapter {taken!r}, as the model is called",
                hint="Give it another name.",
            )
    return read_named(named, spec, options.load.lora)


def put_adapters(models: ModelTable, entry: TableEntry, options: LoRAOptions) -> None:
    """Let all that adapters make of a model answer.

    Raises:
        NameTakenError: Another model has a name of theirs.
    """
    for adapter in entry.model.engine.adapters(options):
        models.put_adapter(entry, as_model(entry.model, adapter))


def as_model(base: LoadedModel, adapter: Adapter) -> LoadedModel:
    """Return what answers to an adapter's name."""
    return replace(
        base,
        name=adapter.name,
        adapter=adapter,
        parent=base.name,
        created=int(time.time()),
        fingerprint=f"{base.fingerprint}-{adapter.number}",
        resources=(),
    )
