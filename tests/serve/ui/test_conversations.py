"""What the playground keeps: private to a key, a tree that nothing overwrites, in one file."""

import sqlite3
import stat

import pytest

from zse.errors import OverloadedError, StoreError
from zse.serve.http.errors import UnknownIdError
from zse.serve.ledger import Ledger
from zse.serve.state import AppState
from zse.serve.ui import conversations
from zse.serve.ui.conversations import FILE_NAME, FOLDER, Conversations, branch
from zse.serve.ui.export import as_markdown
from zse.settings import Settings

EMPTY = {"title": "", "system": "", "settings": {}}


@pytest.fixture
def store(state):
    store = Conversations(state)
    yield store
    store.close()


def talk(store, owner="alice", *texts):
    """Begin a conversation with some messages, each behind the one before."""
    found, parent = store.create(owner, **EMPTY), None
    for text in texts:
        parent = store.add(owner, found["id"], role="user", content=text, parent=parent)["id"]
    return found["id"]


def test_a_conversation_is_there_again_after_a_restart(store, state):
    identifier = talk(store, "alice", "one", "two")
    again = Conversations(state)
    assert [one["content"] for one in again.messages("alice", identifier)] == ["one", "two"]
    again.close()


def test_the_first_statement_makes_the_file_in_wal_mode_for_its_user_alone(store, state):
    path = state.settings.home / FOLDER / FILE_NAME
    assert not path.exists()  # it is made in the loop, which waits for no disk
    store.find("alice")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path.with_name(FILE_NAME + "-wal").exists()


def test_another_key_has_nothing_by_that_id(store):
    identifier = talk(store, "alice", "secret")
    assert store.find("bob") == []
    assert store.find("bob", query="secret") == []
    for ask in (store.get, store.messages, store.delete, store.update):
        with pytest.raises(UnknownIdError):
            ask("bob", identifier)
    with pytest.raises(UnknownIdError):
        store.add("bob", identifier, role="user", content="x")


def test_an_edit_is_a_branch_and_nothing_is_overwritten(store):
    identifier = talk(store, "alice", "a", "b")
    first, second = store.messages("alice", identifier)
    edited = store.add("alice", identifier, role="user", content="b2", parent=first["id"])
    rows = store.messages("alice", identifier)
    assert [one["content"] for one in branch(rows, second["id"])] == ["a", "b"]
    assert [one["content"] for one in branch(rows, edited["id"])] == ["a", "b2"]


def test_a_message_follows_only_one_of_its_own_conversation(store):
    other = store.messages("alice", talk(store, "alice", "x"))[0]["id"]
    for parent in (other, "msg_none", ""):
        with pytest.raises(UnknownIdError):
            store.add("alice", talk(store), role="user", content="y", parent=parent)


def test_a_circle_in_the_file_ends_a_branch_in_an_error_and_not_in_a_loop():
    rows = [{"id": "a", "parent": "b"}, {"id": "b", "parent": "a"}]
    with pytest.raises(UnknownIdError):
        branch(rows, "a")


def test_a_search_takes_its_text_letter_by_letter(store):
    hit = talk(store, "alice", "50% of a_b")
    talk(store, "alice", "500 of aXb")
    for text in ("50%", "a_b", "OF A_"):
        assert [one["id"] for one in store.find("alice", query=text)] == [hit]
    assert store.find("alice", query="' OR 1=1 --") == []


def test_there_are_as_many_as_there_may_be(store, monkeypatch):
    monkeypatch.setattr(conversations, "MAX_CONVERSATIONS", 1)
    monkeypatch.setattr(conversations, "MAX_MESSAGES", 1)
    identifier = talk(store, "alice", "x")
    with pytest.raises(OverloadedError):
        store.create("alice", **EMPTY)
    with pytest.raises(OverloadedError):
        store.add("alice", identifier, role="user", content="y")
    assert talk(store, "bob")


def test_a_conversation_is_as_long_as_can_be_shown_and_a_key_fills_no_file(store, monkeypatch):
    monkeypatch.setattr(conversations, "MAX_CONVERSATION_BYTES", 2000)
    monkeypatch.setattr(conversations, "MAX_KEY_BYTES", 3000)
    identifier = talk(store, "alice", "\u20ac" * 600)
    with pytest.raises(OverloadedError, match="begin another"):
        store.add("alice", identifier, role="user", content="x" * 400)
    talk(store, "alice", "x" * 900)
    for grow in (
        lambda: talk(store, "alice", "x" * 400),
        lambda: store.create("alice", title="", system="x" * 400, settings={}),
        lambda: store.update("alice", identifier, settings={"model": "x" * 400}),
    ):
        with pytest.raises(OverloadedError, match="delete some"):
            grow()
    assert talk(store, "bob", "x" * 1000)


def test_a_message_is_added_without_reading_the_others(store, monkeypatch):
    identifier = talk(store, "alice", "a", "b")
    monkeypatch.setattr(store, "messages", None)
    assert store.add("alice", identifier, role="user", content="c")


def test_deleting_a_conversation_deletes_its_messages(store):
    identifier = talk(store, "alice", "needle")
    store.delete("alice", identifier)
    store.save("msg_gone", content="x")
    assert store.find("alice", query="needle") == []
    assert store._rows("SELECT * FROM messages") == []


def test_a_file_that_is_full_is_an_error_that_says_so(store):
    store._run("PRAGMA max_page_count = 1")
    with pytest.raises(StoreError, match="cannot be read or kept"):
        talk(store, "alice", "x" * 1_000_000)


def test_where_nothing_can_be_written_it_is_kept_in_memory(tmp_path):
    (tmp_path / "file").write_text("")
    store = Conversations(AppState(ledger=Ledger(), settings=Settings(home=tmp_path / "file")))
    assert talk(store, "alice", "x")
    store.close()


def test_markdown_has_the_branch_that_was_written_last(store):
    identifier = talk(store, "alice", "a", "b")
    first = store.messages("alice", identifier)[0]
    store.add("alice", identifier, role="assistant", content="c", parent=first["id"])
    found = store.update("alice", identifier, title="A\n# title", system="Be brief.")
    text = as_markdown(found, store.messages("alice", identifier))
    assert text.startswith("# A # title\n\n**System**\n\nBe brief.\n\n**You**\n\na\n\n")
    assert text.endswith("**Assistant**\n\nc\n")
    assert "\nb\n" not in text


def test_a_file_of_before_there_were_documents_is_read_and_written(state):
    folder = state.settings.home / FOLDER
    folder.mkdir(parents=True)
    old = sqlite3.connect(folder / FILE_NAME)
    kept = conversations._SCHEMA.replace(",\n    sources TEXT NOT NULL DEFAULT '[]'", "")
    assert "sources" not in kept
    old.executescript(kept)
    old.execute("INSERT INTO conversations VALUES ('c', 'alice', '', '', '{}', 1, 1)")
    old.execute(
        "INSERT INTO messages VALUES"
        " ('m', 'c', NULL, 'user', 'Hi', '', '[]', '', 'done', '', 0, 0, 1, 1)"
    )
    old.commit()
    old.close()
    store = Conversations(state)
    source = {"number": 1, "name": "a.txt", "page": 2, "heading": "Leave", "text": "31 days"}
    store.add("alice", "c", role="assistant", content="31 [1]", parent="m", sources=[source])
    rows = store.messages("alice", "c")
    assert [row["sources"] for row in rows] == [[], [source]]
    assert "[1] a.txt, page 2: Leave" in as_markdown(store.get("alice", "c"), rows)
    store.close()
