"""The adapters of one model by name: they come and go while it answers.

A request holds the adapter that it was asked with, so one that is taken out goes on in what runs
and gives its memory back with the last of it.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from zse.errors import LoRAError, ModelNotFoundError, UsageError
from zse.models.lora.modules import places_at_run_time
from zse.models.lora.read import read_adapter
from zse.models.lora.stacks import stacks_of
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from zse.backends.adapters import AdapterWeights
    from zse.backends.handles import Handle
    from zse.models.runner import ModelRunner
    from zse.models.spec import ModelSpec
    from zse.options import LoRAOptions

_MAX_NAME = 200
_numbers = itertools.count(1)


class AdapterNameTakenError(UsageError):
    """Another adapter has this name."""

    http_status = 409
    error_code = "model_name_taken"


@record
class Adapter:
    """An adapter that requests may name."""

    name: str
    folder: Path
    size_bytes: int
    """Of its numbers, as its file has them."""
    handle: Handle = field(compare=False, repr=False)
    """What a backend made of it."""
    number: int = field(default_factory=lambda: next(_numbers))
    """Which of all that this process has loaded: keys and values are no other's, of whatever
    name."""


def parse_named(texts: tuple[str, ...]) -> dict[str, Path]:
    """Return the folders of ``NAME=FOLDER``, by name.

    Raises:
        UsageError: A text is none, or names one twice.
    """
    found: dict[str, Path] = {}
    for text in texts:
        name, separator, folder = text.partition("=")
        if not separator or not folder:
            raise UsageError(f"--lora {text!r} names no adapter", hint="Write --lora NAME=FOLDER.")
        if name in found:
            raise UsageError(f"--lora names {name!r} twice")
        found[name] = Path(folder).expanduser()
    return found


def read_named(
    named: Mapping[str, Path], spec: ModelSpec, options: LoRAOptions
) -> list[tuple[AdapterWeights, Path]]:
    """Read adapters for a model, before its weights are there.

    Raises:
        NotFoundError: A folder is none of an adapter.
        LoRAError: One is damaged, or for another model.
        UsageError: There are too many, or a name is none.
    """
    if len(named) > options.max_loaded:
        raise UsageError(
            f"{len(named)} adapters are more than --max-loras, {options.max_loaded}",
            hint="Raise --max-loras.",
        )
    return [(_read(name, folder, spec, options), folder) for name, folder in named.items()]


class Adapters:
    """What a model has; any thread may ask."""

    def __init__(self, runner: ModelRunner, options: LoRAOptions) -> None:
        self._runner = runner
        self._options = options
        self._lock = threading.Lock()
        self._by_name: dict[str, Adapter] = {}

    def __iter__(self) -> Iterator[Adapter]:
        return iter(tuple(self._by_name.values()))

    def get(self, name: str) -> Adapter:
        """Return an adapter.

        Raises:
            ModelNotFoundError: There is none of this name.
        """
        adapter = self._by_name.get(name)
        if adapter is None:
            raise ModelNotFoundError(f"there is no adapter '{name[:_MAX_NAME]}'")
        return adapter

    def load(self, name: str, folder: str | Path) -> Adapter:
        """Read an adapter and let requests name it from now on.

        Raises:
            AdapterNameTakenError: There is one of this name.
            ZSEError: As ``read_named``.
        """
        self._check(name)
        path = Path(folder).expanduser()
        return self.add(_read(name, path, self._runner.spec, self._options), path)

    def add(self, weights: AdapterWeights, folder: Path) -> Adapter:
        """Let requests name what was read.

        Raises:
            AdapterNameTakenError: There is one of this name.
            LoRAError: A number in it is not finite.
            UnsupportedModelError: The device adds no adapters.
        """
        handle = self._runner.bind_adapter(weights)
        adapter = Adapter(
            name=weights.name, folder=folder, size_bytes=weights.size_bytes, handle=handle
        )
        with self._lock:
            self._check(weights.name)
            self._by_name[weights.name] = adapter
        return adapter

    def remove(self, name: str) -> Adapter:
        """Let no further request name an adapter; those that run go on with it.

        Raises:
            ModelNotFoundError: There is none of this name.
        """
        with self._lock:
            adapter = self.get(name)
            del self._by_name[name]
        return adapter

    def _check(self, name: str) -> None:
        if name in self._by_name:
            raise AdapterNameTakenError(
                f"The lora adapter '{name}' has already been loaded.",
                hint="Unload it first, or load this one under another name.",
            )
        if len(self._by_name) >= self._options.max_loaded:
            raise UsageError(
                f"{len(self._by_name)} adapters are loaded, as many as --max-loras allows",
                hint="Unload one first.",
            )


def _read(name: str, folder: Path, spec: ModelSpec, options: LoRAOptions) -> AdapterWeights:
    if not name or len(name) > _MAX_NAME or not name.isprintable():
        raise UsageError(
            f"{name[:_MAX_NAME]!r} is no name of an adapter: expected 1 to {_MAX_NAME} characters "
            "that can be printed"
        )
    if spec.is_encoder:
        raise LoRAError("a model that reads whole texts takes no adapters")
    places, stacks = places_at_run_time(spec), stacks_of(spec)
    return read_adapter(folder, name, places, max_rank=options.max_rank, stacks=stacks)
