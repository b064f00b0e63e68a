"""The documents of one key in SQLite: chunks, an index of their words, and their vectors.

Each key has a file of its own, so nobody's words weigh in another's search, and what a search takes
does not grow with what others keep. All of this is called off the event loop.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
import uuid
from contextlib import closing
from typing import TYPE_CHECKING, Any

from zse.errors import OverloadedError, StoreError
from zse.records import record
from zse.serve.documents.similar import Near, VectorTable, blob_of
from zse.serve.documents.words import full_text_query, indexed
from zse.serve.http.errors import UnknownIdError
from zse.serve.private_database import MAX_FILE_BYTES, bound
from zse.units import size_text

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    from zse.serve.documents.chunks import Chunk

MAX_DOCUMENTS = 2000
MAX_CHUNKS = 50_000
_SCHEMA = """
CREATE TABLE IF NOT EXISTS documents (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, kind TEXT NOT NULL, metadata TEXT NOT NULL,
    num_bytes INTEGER NOT NULL, num_characters INTEGER NOT NULL, num_chunks INTEGER NOT NULL,
    num_pages INTEGER NOT NULL, embedder TEXT NOT NULL, created REAL NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS chunks (
    id INTEGER PRIMARY KEY,
    document TEXT NOT NULL REFERENCES documents (id) ON DELETE CASCADE,
    position INTEGER NOT NULL, page INTEGER, heading TEXT NOT NULL, text TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS of_document ON chunks (document, position);
CREATE TABLE IF NOT EXISTS vectors (
    chunk INTEGER PRIMARY KEY REFERENCES chunks (id) ON DELETE CASCADE,
    embedder TEXT NOT NULL, size INTEGER NOT NULL, numbers BLOB NOT NULL
) STRICT;
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5 (
    heading, text, tokenize = "porter unicode61 remove_diacritics 2"
);
"""

Row = dict[str, Any]


@record
class Found:
    """Chunks by the words of a question, and by its vector, each the best first."""

    by_words: Sequence[int]
    by_vector: Sequence[Near]


class Library:
    """Documents of one key.

    Args:
        database: Where they lie; this takes it over.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self._lock = threading.Lock()
        self._database = database
        self._database.row_factory = sqlite3.Row
        self._tables: dict[tuple[str, int, int, int], VectorTable] = {}
        self._version = 0
        database.executescript(_SCHEMA)
        bound(database)

    def add(
        self,
        chunks: Sequence[Chunk],
        vectors: Sequence[array[float]] = (),
        *,
        embedder: str = "",
        **facts: Any,
    ) -> Row:
        """Keep a document, all of it or nothing.

        Args:
            chunks: In their order.
            vectors: One for each chunk, of length 1; none where no model makes any.
            embedder: The model that made them.
            facts: Its ``name``, ``kind``, ``metadata`` and ``num_bytes``.

        Raises:
            OverloadedError: There are as many documents or chunks as may be.
            StoreError: The disk does not take it.
        """
        row = {
            "id": f"doc_{uuid.uuid4().hex}",
            **facts,
            "metadata": json.dumps(facts["metadata"]),
            "num_characters": sum(len(chunk.text) for chunk in chunks),
            "num_chunks": len(chunks),
            "num_pages": max((chunk.page or 0 for chunk in chunks), default=0),
            "embedder": embedder,
            "created": time.time(),
        }
        try:
            with self._lock, self._database:
                self._check_room(len(chunks))
                names, marks = ", ".join(row), ", ".join("?" * len(row))
                self._database.execute(
                    f"INSERT INTO documents ({names}) VALUES ({marks})", list(row.values())
                )
                for position, chunk in enumerate(chunks):
                    at = self._add_chunk(row["id"], position, chunk)
                    if vectors:
                        numbers = vectors[position]
                        self._database.execute(
                            "INSERT INTO vectors VALUES (?, ?, ?, ?)",
                            (at, embedder, len(numbers), blob_of(numbers)),
                        )
                self._version += 1
        except sqlite3.Error as error:
            raise _not_kept(error) from error
        return self.get(row["id"])

    def _check_room(self, num_chunks: int) -> None:
        (there,) = self._database.execute(
            "SELECT count(*) AS documents, coalesce(sum(num_chunks), 0) AS chunks FROM documents"
        ).fetchall()
        if there["documents"] >= MAX_DOCUMENTS:
            raise OverloadedError(f"There are {MAX_DOCUMENTS:,} documents; delete some.")
        if there["chunks"] + num_chunks > MAX_CHUNKS:
            raise OverloadedError(
                f"All documents of a key have up to {MAX_CHUNKS:,} chunks; there are "
                f"{there['chunks']:,} and this has {num_chunks:,}. Delete some."
            )

    def _add_chunk(self, document: str, position: int, chunk: Chunk) -> int:
        values = (document, position, chunk.page, chunk.heading, chunk.text)
        at = self._database.execute(
            "INSERT INTO chunks (document, position, page, heading, text) VALUES (?, ?, ?, ?, ?)",
            values,
        ).lastrowid
        self._database.execute(
            "INSERT INTO words (rowid, heading, text) VALUES (?, ?, ?)",
            (at, indexed(chunk.heading), indexed(chunk.text)),
        )
        return int(at or 0)

    def newest(self, *, limit: int = 100, offset: int = 0) -> list[Row]:
        """Return documents, the newest first."""
        return self._rows(
            "SELECT * FROM documents ORDER BY created DESC, rowid DESC LIMIT ? OFFSET ?",
            *(limit, offset),
        )

    def count(self) -> Row:
        """Return how many documents and chunks there are."""
        (there,) = self._rows(
            "SELECT count(*) AS documents, coalesce(sum(num_chunks), 0) AS chunks FROM documents"
        )
        return there

    def get(self, document: str) -> Row:
        """Return what is known of a document.

        Raises:
            UnknownIdError: There is none of this id.
        """
        rows = self._rows("SELECT * FROM documents WHERE id = ?", document)
        if not rows:
            raise UnknownIdError("document", document)
        return rows[0]

    def delete(self, document: str) -> None:
        """Forget a document, its chunks, words and vectors.

        Raises:
            UnknownIdError: As ``get``.
        """
        self.get(document)
        try:
            with self._lock, self._database:
                self._database.execute(
                    "DELETE FROM words WHERE rowid IN (SELECT id FROM chunks WHERE document = ?)",
                    (document,),
                )
                self._database.execute("DELETE FROM documents WHERE id = ?", (document,))
                self._version += 1
        except sqlite3.Error as error:
            raise _not_kept(error) from error

    def embedders(self) -> list[str]:
        """Return the models that made vectors, that of the most documents first."""
        rows = self._rows(
            "SELECT embedder FROM documents WHERE embedder != '' GROUP BY embedder"
            " ORDER BY sum(num_chunks) DESC"
        )
        return [row["embedder"] for row in rows]

    def find(
        self,
        question: str,
        vector: array[float] | None = None,
        *,
        embedder: str = "",
        most: int = 50,
        documents: Sequence[str] | None = None,
    ) -> Found:
        """Return chunks that may answer a question.

        Args:
            question: Its words are looked for.
            vector: Of the question, of length 1; None looks for words alone.
            embedder: The model that made it; chunks with vectors of another are found by words.
            most: Of each of the two lists.
            documents: Where to look; None looks in all.
        """
        among = None if documents is None else self._chunks_of(documents)
        near: list[Near] = []
        if vector is not None:
            table = self._table(embedder, len(vector))
            near = table.nearest(vector, most, among)
        return Found(by_words=self._by_words(question, most, among), by_vector=near)

    def _by_words(self, question: str, most: int, among: frozenset[int] | None) -> list[int]:
        query = full_text_query(question)
        if not query:
            return []
        # A heading says what its chunk is about, so a word there counts for more.
        statement = "SELECT rowid FROM words WHERE words MATCH ? ORDER BY bm25(words, 2.0, 1.0)"
        if among is None:
            rows = self._rows(f"{statement} LIMIT ?", query, most)
            return [row["rowid"] for row in rows]
        found = (row["rowid"] for row in self._rows(statement, query))
        return [chunk for chunk in found if chunk in among][:most]

    def chunks(self, ids: Sequence[int]) -> dict[int, Row]:
        """Return chunks by their ids, each with the name of its document."""
        marks = ", ".join("?" * len(ids))
        rows = self._rows(
            "SELECT chunks.*, documents.name FROM chunks JOIN documents"
            f" ON documents.id = chunks.document WHERE chunks.id IN ({marks})",
            *ids,
        )
        return {row["id"]: row for row in rows}

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def _chunks_of(self, documents: Sequence[str]) -> frozenset[int]:
        marks = ", ".join("?" * len(documents))
        rows = self._rows(f"SELECT id FROM chunks WHERE document IN ({marks})", *documents)
        return frozenset(row["id"] for row in rows)

    def _table(self, embedder: str, size: int) -> VectorTable:
        """Return the vectors of a model, read once and kept until a document comes or goes."""
        # Another process, or another opening of the same file, may have changed it.
        (seen,) = self._rows("PRAGMA data_version")
        key = (embedder, size, self._version, seen["data_version"])
        table = self._tables.get(key)
        if table is None:
            rows = self._rows(
                "SELECT chunk, numbers FROM vectors WHERE embedder = ? AND size = ?", embedder, size
            )
            chunks, blobs = [row["chunk"] for row in rows], [row["numbers"] for row in rows]
            table = VectorTable(chunks, blobs, size)
            self._tables = {key: table}  # one is in use at a time: two would double the memory
        return table

    def _rows(self, statement: str, *values: Any) -> list[Row]:
        try:
            with self._lock, closing(self._database.execute(statement, values)) as cursor:
                return [_loaded(row) for row in cursor]
        except sqlite3.Error as error:
            raise _not_kept(error) from error


def _loaded(row: sqlite3.Row) -> Row:
    values = dict(row)
    if "metadata" in values:
        values["metadata"] = json.loads(values["metadata"])
    return values


def _not_kept(error: sqlite3.Error) -> StoreError:
    hint = f"They take up to {size_text(MAX_FILE_BYTES)}; delete some, or look at the disk."
    return StoreError(f"the documents cannot be read or kept: {error}", hint=hint)
