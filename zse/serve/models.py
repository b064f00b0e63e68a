"""The models of this process by name, and which of them answers where a request names none.

Threads that load and unload write the table, handlers read it: entries are put in and taken out
whole, so a reader needs no lock.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from zse.errors import ModelNotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from zse.serve.state import LoadedModel

DEFAULT_ALIAS = "default"


class TableEntry:
    """One model of the table."""

    def __init__(self, model: LoadedModel, aliases: tuple[str, ...], *, now: float) -> None:
        self.model = model
        self.aliases = aliases
        """Patterns: ``*`` stands for any text."""
        self.last_asked = now
        """When a request last named it, on the table's clock."""
        self.since = now
        """When it came."""
        self.adapters: dict[str, LoadedModel] = {}
        """What its adapters make of it, by their names."""
        self.is_hidden = False
        """Whether it answers to no name, since it is about to be unloaded."""

    @property
    def num_active(self) -> int:
        """Requests that its engine works on."""
        return self.model.engine.num_active

    @property
    def is_free(self) -> bool:
        """Whether no request needs it, and nothing is left of those that did."""
        return not self.model.uses.count and not self.num_active

    def answers_to(self, name: str) -> bool:
        """Whether a name fits an alias."""
        if not self.aliases:
            return False
        from fnmatch import fnmatchcase

        return any(fnmatchcase(name, alias) for alias in self.aliases)


class NameTakenError(UsageError):
    """Another model answers to this name."""

    http_status = 409
    error_code = "model_name_taken"


class ModelTable:
    """Models by name and alias; the one that is there longest is the default.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: tuple[TableEntry, ...] = ()
        self._by_name: dict[str, TableEntry] = {}
        self._adapted: dict[str, TableEntry] = {}
        """Models by the names of their adapters."""

    def __iter__(self) -> Iterator[TableEntry]:
        """Return the entries as they are now, the default first."""
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def default(self) -> LoadedModel | None:
        """What answers where a request names no model."""
        entry = self._by_name.get(DEFAULT_ALIAS)
        return None if entry is None else entry.model

    @property
    def failure(self) -> BaseException | None:
        """What crashed an engine, if one has."""
        return next((one.model.engine.failure for one in self if one.model.engine.failure), None)

    @property
    def is_healthy(self) -> bool:
        """Whether every engine runs."""
        return all(entry.model.engine.is_healthy for entry in self)

    def find(self, name: str) -> TableEntry | None:
        """Return the model of a name, the default for ``default``, or the first with an alias."""
        entry = self._by_name.get(name)
        if entry is None:
            shown = (one for one in self._entries if not one.is_hidden)
            entry = next((one for one in shown if one.answers_to(name)), None)
        if entry is not None:
            entry.last_asked = self._clock()
        return entry

    def answering(self, name: str) -> LoadedModel | None:
        """Return what answers to a name: a model, or one with an adapter."""
        if name in self._adapted and name not in self._by_name:
            entry = self._adapted[name]
            entry.last_asked = self._clock()
            return entry.adapters.get(name)
        found = self.find(name)
        return None if found is None else found.model

    def has(self, name: str) -> bool:
        """Whether a model has this name; unlike a request, this does not count as asking for it."""
        return any(name == entry.model.name or name in entry.adapters for entry in self._entries)

    def refuse_taken(self, name: str) -> None:
        """Refuse a name that is in use.

        Raises:
            NameTakenError: It is.
        """
        if name == DEFAULT_ALIAS or self.has(name):
            raise NameTakenError(
                f"the name '{name}' belongs to another model",
                hint="Load it under another name, or unload the other first.",
            )

    def put(self, model: LoadedModel, aliases: Iterable[str] = ()) -> TableEntry:
        """Let a model answer from now on.

        Raises:
            NameTakenError: Another one has its name.
        """
        with self._lock:
            if model.name != DEFAULT_ALIAS or self.has(model.name):
                self.refuse_taken(model.name)
            entry = TableEntry(model, tuple(aliases), now=self._clock())
            self._set([*self._entries, entry])
        return entry

    def put_adapter(self, entry: TableEntry, model: LoadedModel) -> None:
        """Let what an adapter makes of a model answer from now on.

        Raises:
            NameTakenError: Another one has its name.
            ModelNotFoundError: The model is there no longer.
        """
        with self._lock:
            if entry not in self._entries:
                raise ModelNotFoundError(f"The model '{entry.model.name}' has been unloaded.")
            self.refuse_taken(model.name)
            entry.adapters = {**entry.adapters, model.name: model}
            self._set(self._entries)

    def remove_adapter(self, name: str) -> LoadedModel:
        """Let an adapter answer no more, and return what it was.

        Raises:
            ModelNotFoundError: There is none of this name.
        """
        with self._lock:
            entry = next((one for one in self._entries if name in one.adapters), None)
            if entry is None:
                raise ModelNotFoundError(f"The lora adapter '{name[:200]}' cannot be found.")
            model = entry.adapters[name]
            entry.adapters = {key: one for key, one in entry.adapters.items() if key != name}
            self._set(self._entries)
        return model

    def hide(self, entry: TableEntry) -> None:
        """Let no further request reach a model; what it works on goes on."""
        with self._lock:
            entry.is_hidden = True
            self._set(self._entries)

    def show(self, entry: TableEntry) -> None:
        """Undo ``hide``."""
        with self._lock:
            entry.is_hidden = False
            self._set(self._entries)

    def remove(self, entry: TableEntry) -> None:
        """Forget a model; whoever removes it closes it."""
        with self._lock:
            self._set([one for one in self._entries if one is not entry])

    def _set(self, entries: Sequence[TableEntry]) -> None:
        shown = [entry for entry in entries if not entry.is_hidden]
        default = {DEFAULT_ALIAS: shown[0]} if shown else {}
        self._entries = tuple(entries)
        self._by_name = default | {entry.model.name: entry for entry in shown}
        self._adapted = {name: entry for entry in shown for name in entry.adapters}
