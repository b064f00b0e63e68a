"""The libraries of a server, one for each key, opened when first asked for."""

from __future__ import annotations

import logging
import re
import sqlite3
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from zse.errors import OverloadedError, UsageError
from zse.serve.documents.library import Library
from zse.serve.fair_queue import FairQueue
from zse.serve.private_database import open_in_memory, open_private
from zse.units import size_text

if TYPE_CHECKING:
    from pathlib import Path

    from zse.serve.state import AppState

LOG = logging.getLogger("zse.serve")

FOLDER = "documents"
MAX_OPEN = 64
READ_AT_ONCE = 2
"""Each may take a gigabyte of memory, and a minute."""
MOST_UNREAD = 64
MAX_FOLDER_BYTES = 16 << 30
"""Of all keys together: beyond it nothing is added."""
_SHARED = "shared"
"""Of all who are asked for no key."""
_OWNER = re.compile(r"[0-9a-zA-Z_-]{1,128}")


class Libraries:
    """Opens libraries; in memory where their folder cannot be written."""

    def __init__(self, state: AppState) -> None:
        self._folder = state.settings.home.expanduser() / FOLDER
        self._lock = threading.Lock()
        self._open: dict[str, Library] = {}
        self.reading = FairQueue(at_once=READ_AT_ONCE, each=1, most=MOST_UNREAD)
        """Before the readers of documents."""

    def of(self, owner: str) -> Library:
        """Return the library of a key; ``owner`` is its id, empty where none is asked for.

        Raises:
            UsageError: It is no id of a key.
        """
        if owner and not _OWNER.fullmatch(owner):
            raise UsageError("a key's id is made of letters and digits")
        with self._lock:
            library = self._open.get(owner)
            if library is None:
                if len(self._open) >= MAX_OPEN:
                    # Others may be in the midst of a search, so the oldest is let go, not closed.
                    self._open.pop(next(iter(self._open)))
                library = Library(_connect(self._folder, f"key-{owner}" if owner else _SHARED))
                self._open[owner] = library
            return library

    def check_room(self) -> None:
        """Refuse another document where the libraries of all keys take as much as they may.

        Raises:
            OverloadedError: They do.
        """
        num_bytes = 0
        with suppress(OSError):
            num_bytes = sum(entry.stat().st_size for entry in self._folder.iterdir())
        if num_bytes > MAX_FOLDER_BYTES:
            most = size_text(MAX_FOLDER_BYTES)
            raise OverloadedError(f"The documents of all keys take up to {most}; delete some.")

    def close(self) -> None:
        with self._lock:
            for library in self._open.values():
                library.close()
            self._open.clear()


def _connect(folder: Path, name: str) -> sqlite3.Connection:
    """Return the database of a key, which only this user may read."""
    try:
        return open_private(folder / f"{name}.sqlite3")
    except (OSError, sqlite3.Error) as error:
        LOG.info(
            "documents are in memory only",
            extra={"folder": str(folder), "reason": str(error)},
        )
        return open_in_memory()
