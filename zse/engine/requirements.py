"""Which model is meant, and what is known of it before a byte of it is loaded."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zse.backends.gpu.key_factors import read_key_factors
from zse.errors import DeviceError
from zse.format.reader import ZSEReader
from zse.models.builtin import builtin_checkpoint
from zse.models.families import read_checkpoint, read_header
from zse.models.memory import ModelFacts
from zse.models.resolve import Builtin, LocalFile, OciFile, RemoteFile, resolve_model
from zse.stream.opening import open_remote, source_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from zse.format.model_file import ModelFile
    from zse.format.spec import ZSEHeader
    from zse.models.memory import MemoryEstimate
    from zse.settings import Settings


def read_facts(model: str | Path, settings: Settings) -> ModelFacts:
    """Look up what ``resolve_model`` knows.

    Of a file behind an address the header is read; a repository of the hub is downloaded, as
    loading it would.

    Raises:
        NotFoundError: There is no such model.
        UnsupportedModelError: Its architecture is not supported.
    """
    match resolve_model(model):
        case Builtin(name=name):
            return _facts_of_checkpoint(builtin_checkpoint(name))
        case LocalFile(path=path):
            with ZSEReader(path) as reader:
                return facts_of_file(reader)
        case RemoteFile(location=location):
            with open_remote(location, settings) as remote:
                return facts_of(remote.header)
        case OciFile(reference=reference):
            with open_remote(reference, settings) as remote:
                return facts_of(remote.header)
        case _:
            from zse.quantize.source import resolve_source

            with closing(resolve_source(model, settings)) as source:
                return _facts_of_checkpoint(source.path)


def facts_of_file(reader: ModelFile) -> ModelFacts:
    """Return what a file on this machine says of its model, its biases read as well.

    Behind an address they would be a request each.
    """
    facts = facts_of(reader.header)
    with closing(source_of(reader)) as source:
        factors = read_key_factors(source, reader.header, facts.spec)
    return replace(facts, key_factors=factors)


def facts_of(header: ZSEHeader) -> ModelFacts:
    """Return what the validated header of a .zse file says of its model."""
    return ModelFacts(
        spec=read_header(header.model_config),
        tensors=header.loaded().tensors,
        stored_bytes=sum(header.bytes_by_scheme().values()),
        stored_quantization=header.main_scheme,
    )


def largest_that_fits(budget_bytes: int, estimates: Sequence[MemoryEstimate]) -> MemoryEstimate:
    """Return the first estimate within the budget; the best quality stands first.

    Raises:
        DeviceError: Not even the last one fits.
    """
    for estimate in estimates:
        if estimate.total_bytes <= budget_bytes:
            return estimate
    least = estimates[-1]
    raise DeviceError(
        f"the model needs {least.total_bytes / 1e9:.2f} GB at {least.quantization} with "
        f"{least.context_tokens} tokens of context, but {budget_bytes / 1e9:.2f} GB are available",
        hint="Choose a smaller model or a shorter context, or give it more memory.",
    )


def _facts_of_checkpoint(checkpoint: Path) -> ModelFacts:
    if checkpoint.is_file():
        from zse.quantize.gguf.documents import config_in, read_header

        return ModelFacts(
            spec=read_checkpoint(config_in(checkpoint, read_header(checkpoint)), None)
        )
    from zse.quantize.formats import unquantized_config

    generation = checkpoint / "generation_config.json"
    spec = read_checkpoint(
        unquantized_config(_read_json(checkpoint / "config.json")),
        _read_json(generation) if generation.is_file() else None,
    )
    return ModelFacts(spec=spec)


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
