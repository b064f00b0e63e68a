"""SQLite files of this user: conversations and documents, which nobody else may read."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MAX_FILE_BYTES = 1 << 30
_BUSY_SECONDS = 5.0
"""How long a statement waits for another process that writes to the same file."""


def open_private(path: Path) -> sqlite3.Connection:
    """Open a database for use by any thread, one at a time; make it where there is none.

    Raises:
        OSError, sqlite3.Error: Its folder or the file cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):  # SQLite would make it with the permissions of the umask
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    database = sqlite3.connect(path, timeout=_BUSY_SECONDS, check_same_thread=False)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
    except sqlite3.Error:
        database.close()
        raise
    return database


def open_in_memory() -> sqlite3.Connection:
    """Open a database that ends with the process; for any thread, too."""
    return sqlite3.connect(":memory:", check_same_thread=False)


def bound(database: sqlite3.Connection) -> None:
    """Have rows go with what they refer to, and the file grow to ``MAX_FILE_BYTES`` at most."""
    database.execute("PRAGMA foreign_keys = ON")
    page_bytes = database.execute("PRAGMA page_size").fetchone()[0]
    database.execute(f"PRAGMA max_page_count = {MAX_FILE_BYTES // page_bytes}")
