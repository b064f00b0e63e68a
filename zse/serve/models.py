"""The models of this process by name, and which of them answers where a request names none.

Threads that load and unload write the table, handlers read it: entries are put in and taken out
whole, so a reader needs no lock.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from zse.errors import UsageError

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
        self.is_hidden = False
        """Whether it answers to no name, since it is about to be unloaded."""

    @property
    def num_active(self) -> int:
        """Requests that its engine works on."""
        return self.model.engine.num_active

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

    def has(self, name: str) -> bool:
        """Whether a model has this name; unlike a request, this does not count as asking for it."""
        return any(entry.model.name == name for entry in self._entries)

    def put(self, model: LoadedModel, aliases: Iterable[str] = ()) -> TableEntry:
        """Let a model answer from now on.

        Raises:
            NameTakenError: Another one has its name.
        """
        with self._lock:
            if self.has(model.name):
                raise NameTakenError(
                    f"the name '{model.name}' belongs to another model",
                    hint="Load it under another name, or unload the other first.",
                )
            entry = TableEntry(model, tuple(aliases), now=self._clock())
            self._set([*self._entries, entry])
        return entry

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
