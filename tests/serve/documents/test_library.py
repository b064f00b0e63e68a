"""What is kept is found by its words and its vectors, and what is deleted is gone."""

from __future__ import annotations

import random
import sqlite3
from array import array

import pytest

from zse.engine.vectors import unit
from zse.errors import OverloadedError, StoreError
from zse.serve.documents import library as module
from zse.serve.documents import similar
from zse.serve.documents.chunks import Chunk
from zse.serve.documents.library import Library
from zse.serve.documents.ranking import best_of, within
from zse.serve.http.errors import UnknownIdError

FACTS = {"kind": "text", "metadata": {}, "num_bytes": 1}


@pytest.fixture
def library():
    library = Library(sqlite3.connect(":memory:", check_same_thread=False))
    yield library
    library.close()


def keep(library, name, *texts, vectors=(), heading=""):
    chunks = [Chunk(text=text, page=None, heading=heading) for text in texts]
    embedder = "e" if vectors else ""
    return library.add(chunks, vectors, embedder=embedder, name=name, **FACTS)["id"]


def texts_of(library, question, vector=None, **options):
    found = library.find(question, vector, embedder="e", **options)
    return [hit.text for hit in best_of(library, found, most=10)]


def test_words_find_chunks_in_any_form_and_script(library):
    keep(library, "a", "The cats were running home.", "Über die Brücke", "東京は日本の首都です")
    assert texts_of(library, "a cat runs") == ["The cats were running home."]
    assert texts_of(library, "brucke") == ["Über die Brücke"]
    assert texts_of(library, "首都") == ["東京は日本の首都です"]


@pytest.mark.parametrize(
    "question", ['"', "a OR", "NEAR(x)", "x*", "-x", "text:x", "(((", "'; DROP TABLE words", "\x00"]
)
def test_a_question_is_never_syntax(library, question):
    keep(library, "a", "something else")
    assert texts_of(library, question) == []


def test_vectors_find_what_words_do_not(library):
    keep(library, "a", "one", "two", vectors=[unit([1, 0]), unit([0, 1])])
    assert texts_of(library, "zzz", unit([0.1, 1])) == ["two", "one"]


def test_what_both_rankings_find_comes_first(library):
    vectors = [unit([1, 0]), unit([0.9, 0.5]), unit([0, 1])]
    keep(library, "a", "apple", "apple pie", "pear", vectors=vectors)
    assert texts_of(library, "pie", unit([1, 0.1]))[0] == "apple pie"


def test_vectors_of_another_model_do_not_count(library):
    keep(library, "a", "one", vectors=[unit([1, 0])])
    found = library.find("zzz", unit([1, 0]), embedder="another")
    assert not found.by_vector


@pytest.mark.parametrize("with_numpy", [True, False])
def test_the_nearest_vectors_are_the_nearest(monkeypatch, with_numpy):
    if not with_numpy:
        monkeypatch.setattr(similar, "_numpy", lambda: None)
    chance = random.Random(3)
    rows = [unit([chance.gauss(0, 1) for _ in range(16)]) for _ in range(300)]
    query = unit([chance.gauss(0, 1) for _ in range(16)])
    table = similar.VectorTable(range(300), [similar.blob_of(row) for row in rows], 16)
    expected = sorted(range(300), key=lambda i: -sum(map(float.__mul__, rows[i], query)))[:7]
    assert [near.chunk for near in table.nearest(query, 7)] == expected
    some = set(expected[2:5])
    assert [near.chunk for near in table.nearest(query, 7, some)] == expected[2:5]


def test_numbers_come_back_from_their_blob():
    numbers = array("f", [0.5, -1.25, 3.0])
    assert similar.numbers_of(similar.blob_of(numbers)) == numbers


def test_a_deleted_document_is_found_no_more(library):
    kept = keep(library, "a", "apple", vectors=[unit([1, 0])])
    gone = keep(library, "b", "apple", vectors=[unit([1, 0])])
    assert texts_of(library, "apple", unit([1, 0])) == ["apple", "apple"]
    library.delete(gone)
    found = library.find("apple", unit([1, 0]), embedder="e")
    assert [hit.document for hit in best_of(library, found, most=9)] == [kept]
    with pytest.raises(UnknownIdError):
        library.delete(gone)
    assert library.count() == {"documents": 1, "chunks": 1}


def test_a_search_keeps_to_the_documents_it_names(library):
    keep(library, "a", "apple one", vectors=[unit([1, 0])])
    second = keep(library, "b", "apple two", vectors=[unit([1, 0])])
    assert texts_of(library, "apple", unit([1, 0]), documents=[second]) == ["apple two"]


def test_headings_are_searched_and_count_for_more(library):
    keep(library, "a", "About apples, and a quince too", "Other")
    keep(library, "b", "Other fruit", heading="Quince")
    assert texts_of(library, "quince")[0] == "Other fruit"


def test_there_is_room_for_so_many(library, monkeypatch):
    monkeypatch.setattr(module, "MAX_CHUNKS", 3)
    keep(library, "a", "1", "2")
    with pytest.raises(OverloadedError):
        keep(library, "b", "1", "2")
    monkeypatch.setattr(module, "MAX_DOCUMENTS", 1)
    with pytest.raises(OverloadedError):
        keep(library, "b", "1")
    assert library.count() == {"documents": 1, "chunks": 2}


def test_what_does_not_fit_leaves_nothing_behind(library):
    library._database.execute("PRAGMA max_page_count = 40")
    with pytest.raises(StoreError):
        keep(library, "a", *["words " * 200] * 300)
    assert library.count() == {"documents": 0, "chunks": 0}
    assert texts_of(library, "words") == []


def test_excerpts_keep_to_their_room(library):
    keep(library, "a", "x" * 50, "x " * 20, "x")
    hits = best_of(library, library.find("x"), most=9)
    assert sum(len(hit.text) for hit in within(hits, 45)) <= 45


def test_what_another_process_keeps_is_found_by_its_vector(tmp_path):
    """One that relieves this one, or a library that was let go and opened again."""
    ours, others = (
        Library(sqlite3.connect(tmp_path / "key.sqlite3", check_same_thread=False))
        for _ in range(2)
    )
    keep(ours, "a", "one", vectors=[unit([1, 0])])
    assert texts_of(ours, "zzz", unit([0, 1])) == ["one"]
    keep(others, "b", "two", vectors=[unit([0, 1])])
    assert texts_of(ours, "zzz", unit([0, 1])) == ["two", "one"]
    ours.close()
    others.close()
