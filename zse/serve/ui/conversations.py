"""Conversations of the playground, in SQLite: whoever has a key sees those of that key alone.

A message knows the one that it follows, so an edit or another answer is a branch and nothing is
overwritten. One connection, one statement at a time; all of this is called off the event loop.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
import uuid
from contextlib import closing
from typing import TYPE_CHECKING, Any

from zse.errors import OverloadedError, StoreError
from zse.serve.http.errors import UnknownIdError
from zse.serve.private_database import MAX_FILE_BYTES, bound, open_in_memory, open_private
from zse.units import size_text

if TYPE_CHECKING:
    from pathlib import Path

    from zse.serve.state import AppState

LOG = logging.getLogger("zse.serve")

FOLDER, FILE_NAME = "chat", "conversations.sqlite3"
MAX_CONVERSATIONS = 5000
"""Of one key."""
MAX_MESSAGES = 2000
"""Of one conversation."""
MAX_CONVERSATION_BYTES = 16 << 20
"""Of its messages: all of them are read to show it."""
MAX_KEY_BYTES = 64 << 20
"""Of all conversations of one key, so that none fills the file for the others."""
_JSON_COLUMNS = frozenset({"settings", "calls", "sources"})
_MESSAGE_BYTES = " + ".join(
    f"length(CAST({name} AS BLOB))"
    for name in ("content", "reasoning", "calls", "error", "sources")
)
_SCHEMA = """
CREATE TABLE IF NOT EXISTS conversations (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, title TEXT NOT NULL, system TEXT NOT NULL,
    settings TEXT NOT NULL, created REAL NOT NULL, updated REAL NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS of_owner ON conversations (owner, updated DESC);
CREATE TABLE IF NOT EXISTS messages (
    id TEXT PRIMARY KEY,
    conversation TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    parent TEXT, role TEXT NOT NULL, content TEXT NOT NULL, reasoning TEXT NOT NULL,
    calls TEXT NOT NULL, model TEXT NOT NULL, status TEXT NOT NULL, error TEXT NOT NULL,
    tokens INTEGER NOT NULL, seconds REAL NOT NULL, created REAL NOT NULL, saved REAL NOT NULL,
    sources TEXT NOT NULL DEFAULT '[]'
) STRICT;
CREATE INDEX IF NOT EXISTS of_conversation ON messages (conversation, created);
"""

Row = dict[str, Any]


class Conversations:
    """All conversations of a server; in memory where its folder cannot be written.

    Made in the event loop, it opens its file with the first statement, off the loop: that may wait
    for another process that writes to the file.
    """

    def __init__(self, state: AppState) -> None:
        self._lock = threading.Lock()
        self._folder = state.settings.home.expanduser() / FOLDER
        self._opened: sqlite3.Connection | None = None

    def create(self, owner: str, **facts: Any) -> Row:
        """Begin a conversation; ``facts`` are its title, system prompt and settings.

        Raises:
            OverloadedError: The key has as many as it may, or as long ones.
        """
        count = self._rows("SELECT count(*) AS n FROM conversations WHERE owner = ?", owner)
        if count[0]["n"] >= MAX_CONVERSATIONS:
            raise OverloadedError(f"There are {MAX_CONVERSATIONS} conversations; delete some.")
        now = time.time()
        self._check_room(owner, facts)
        row = {"id": _new_id("conv"), "owner": owner, "created": now, "updated": now, **facts}
        self._insert("conversations", row)
        return self.get(owner, row["id"])

    def find(self, owner: str, *, query: str = "", limit: int = 100) -> list[Row]:
        """Return conversations, the last used first: all, or those that hold some text."""
        # Not LIKE: a text that nearly matches everywhere costs it hundredfold, and others wait.
        return self._rows(
            "SELECT * FROM conversations WHERE owner = ? AND (? = '' OR instr(lower(title),"
            " lower(?)) OR EXISTS (SELECT 1 FROM messages WHERE conversation = conversations.id"
            " AND instr(lower(content), lower(?)))) ORDER BY updated DESC LIMIT ?",
            *(owner, query, query, query, limit),
        )

    def get(self, owner: str, conversation: str) -> Row:
        """Return one conversation.

        Raises:
            UnknownIdError: The owner has none of this id.
        """
        rows = self._rows(
            "SELECT * FROM conversations WHERE id = ? AND owner = ?", conversation, owner
        )
        if not rows:
            raise UnknownIdError("conversation", conversation)
        return rows[0]

    def update(self, owner: str, conversation: str, **facts: Any) -> Row:
        """Change its title, system prompt or settings.

        Raises:
            UnknownIdError: As ``get``.
            OverloadedError: As ``create``.
        """
        self.get(owner, conversation)
        self._check_room(owner, facts)
        self._update("conversations", conversation, {**facts, "updated": time.time()})
        return self.get(owner, conversation)

    def delete(self, owner: str, conversation: str) -> None:
        """Forget a conversation and its messages.

        Raises:
            UnknownIdError: As ``get``.
        """
        self.get(owner, conversation)
        self._run("DELETE FROM conversations WHERE id = ?", conversation)

    def messages(self, owner: str, conversation: str) -> list[Row]:
        """Return all messages of all branches in the order in which they were begun.

        Raises:
            UnknownIdError: As ``get``.
        """
        self.get(owner, conversation)
        return self._rows(
            "SELECT * FROM messages WHERE conversation = ? ORDER BY created, rowid", conversation
        )

    def add(self, owner: str, conversation: str, **facts: Any) -> Row:
        """Add a message; ``facts`` are its role and content, and what else is known of it.

        Raises:
            UnknownIdError: As ``get``; or the message that it follows is not there.
            OverloadedError: The conversation has as many as it may, or the key as long ones.
        """
        self.get(owner, conversation)
        self._check_messages(conversation, facts)
        self._check_room(owner, facts)
        now = time.time()
        known: Row = {"parent": None, "reasoning": "", "calls": [], "sources": [], "model": ""}
        counted = {
            "status": "done",
            "error": "",
            "tokens": 0,
            "seconds": 0.0,
            "created": now,
            "saved": now,
        }
        row = {**known, **counted, "id": _new_id("msg"), "conversation": conversation, **facts}
        self._insert("messages", row)
        self._update("conversations", conversation, {"updated": now})
        return row

    def save(self, message: str, **facts: Any) -> None:
        """Change what is known of a message; one that was deleted stays so."""
        self._update("messages", message, {**facts, "saved": time.time()})

    def close(self) -> None:
        with self._lock:
            if self._opened is not None:
                self._opened.close()

    def _check_messages(self, conversation: str, facts: Row) -> None:
        """Look at what is there, without reading it, before a message is added."""
        parent = facts.get("parent")
        known = "SELECT 1 FROM messages WHERE conversation = ? AND id = ?"
        if parent is not None and not self._rows(known, conversation, parent):
            raise UnknownIdError("message", parent)
        (there,) = self._rows(
            f"SELECT count(*) AS n, coalesce(sum({_MESSAGE_BYTES}), 0) AS num_bytes"
            " FROM messages WHERE conversation = ?",
            conversation,
        )
        if there["n"] >= MAX_MESSAGES:
            raise OverloadedError(f"A conversation has up to {MAX_MESSAGES} messages.")
        if there["num_bytes"] + _bytes_of(facts) > MAX_CONVERSATION_BYTES:
            most = size_text(MAX_CONVERSATION_BYTES)
            raise OverloadedError(f"A conversation has up to {most}; begin another.")

    def _check_room(self, owner: str, facts: Row) -> None:
        """Refuse what would make the conversations of a key too long, all together."""
        (there,) = self._rows(
            "SELECT (SELECT coalesce(sum(length(CAST(title || system || settings AS BLOB))), 0)"
            " FROM conversations WHERE owner = ?)"
            f" + (SELECT coalesce(sum({_MESSAGE_BYTES}), 0) FROM messages"
            " WHERE conversation IN (SELECT id FROM conversations WHERE owner = ?)) AS num_bytes",
            *(owner, owner),
        )
        if there["num_bytes"] + _bytes_of(facts) > MAX_KEY_BYTES:
            most = size_text(MAX_KEY_BYTES)
            raise OverloadedError(f"The conversations of a key take up to {most}; delete some.")

    def _insert(self, table: str, row: Row) -> None:
        names = ", ".join(row)
        marks = ", ".join("?" * len(row))
        self._run(f"INSERT INTO {table} ({names}) VALUES ({marks})", *_stored(row))

    def _update(self, table: str, identifier: str, facts: Row) -> None:
        names = ", ".join(f"{name} = ?" for name in facts)
        self._run(f"UPDATE {table} SET {names} WHERE id = ?", *_stored(facts), identifier)

    def _run(self, statement: str, *values: Any) -> None:
        try:
            with self._lock, self._database() as database:
                database.execute(statement, values)
        except sqlite3.Error as error:
            raise _not_kept(error) from error

    def _rows(self, statement: str, *values: Any) -> list[Row]:
        try:
            with self._lock, closing(self._database().execute(statement, values)) as cursor:
                return [_loaded(row) for row in cursor]
        except sqlite3.Error as error:
            raise _not_kept(error) from error

    def _database(self) -> sqlite3.Connection:
        """Return the database; the caller holds the lock."""
        if self._opened is None:
            self._opened = _open(self._folder)
            self._opened.row_factory = sqlite3.Row
        return self._opened


def branch(messages: list[Row], last: str | None) -> list[Row]:
    """Return the messages that lead to one, the first of them first.

    Raises:
        UnknownIdError: It is none of them.
    """
    known = {message["id"]: message for message in messages}
    found: list[Row] = []
    while last is not None:
        if last not in known:
            raise UnknownIdError("message", last)
        found.append(known.pop(last))  # taken out: no circle is walked twice
        last = found[-1]["parent"]
    return found[::-1]


def _open(folder: Path) -> sqlite3.Connection:
    """Return the database of a folder, which only this user may read."""
    try:
        database = open_private(folder / FILE_NAME)
        _make_tables(database)
    except (OSError, sqlite3.Error) as error:
        LOG.info(
            "conversations are in memory only",
            extra={"folder": str(folder), "reason": str(error)},
        )
        database = open_in_memory()
        _make_tables(database)
    bound(database)
    return database


def _make_tables(database: sqlite3.Connection) -> None:
    database.executescript(_SCHEMA)
    columns = {row[1] for row in database.execute("PRAGMA table_info(messages)")}
    if "sources" not in columns:  # the file is of a version that knew no documents
        database.execute("ALTER TABLE messages ADD COLUMN sources TEXT NOT NULL DEFAULT '[]'")


def _not_kept(error: sqlite3.Error) -> StoreError:
    hint = f"They take up to {size_text(MAX_FILE_BYTES)}; delete some, or look at the disk."
    return StoreError(f"the conversations cannot be read or kept: {error}", hint=hint)


def _stored(row: Row) -> list[Any]:
    return [json.dumps(v) if name in _JSON_COLUMNS else v for name, v in row.items()]


def _bytes_of(facts: Row) -> int:
    return sum(len(v.encode()) for v in _stored(facts) if isinstance(v, str))


def _loaded(row: sqlite3.Row) -> Row:
    values = dict(row)
    return {name: json.loads(v) if name in _JSON_COLUMNS else v for name, v in values.items()}


def _new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
