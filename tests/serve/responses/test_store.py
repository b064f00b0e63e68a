"""What is kept of responses: bounded, private, and let go in order of use."""

import pytest

from zse.serve.http.errors import UnknownIdError
from zse.serve.ledger import Ledger
from zse.serve.responses import store as module
from zse.serve.responses.store import ResponseStore, StoredResponse
from zse.serve.state import AppState
from zse.server_options import ServeOptions


def make_store(most=1000):
    return ResponseStore(AppState(ledger=Ledger(), options=ServeOptions(stored_responses=most)))


def item(name):
    return {"id": f"msg_{name}", "type": "message", "role": "user", "content": name}


def stored(name, previous=None, size=0):
    response = {"id": name, "previous_response_id": previous, "output": [item(f"{name}-out")]}
    return StoredResponse(response, [item(f"{name}-in")], input_size=size)


def test_a_chain_is_told_from_its_beginning():
    kept = make_store()
    for name, previous in (("a", None), ("b", "a"), ("c", "b")):
        kept.put("me", stored(name, previous))
    ids = [each["id"] for each in kept.chain("me", "c")]
    assert ids == ["msg_a-in", "msg_a-out", "msg_b-in", "msg_b-out", "msg_c-in", "msg_c-out"]
    kept.drop("me", "a")
    with pytest.raises(UnknownIdError, match="'a'"):
        kept.chain("me", "c")


def test_another_caller_finds_nothing():
    kept = make_store()
    kept.put("me", stored("a"))
    for ask in (kept.get, kept.chain):
        with pytest.raises(UnknownIdError):
            ask("you", "a")
    with pytest.raises(UnknownIdError):
        kept.item("you", "msg_a-out")
    assert kept.item("me", "msg_a-out")["content"] == "a-out"


def test_what_was_not_used_for_longest_goes_first_with_its_items():
    kept = make_store(most=2)
    kept.put("me", stored("a"))
    kept.put("me", stored("b"))
    kept.get("me", "a")
    kept.put("me", stored("c"))
    assert kept.get("me", "a").id == "a"
    with pytest.raises(UnknownIdError):
        kept.get("me", "b")
    with pytest.raises(UnknownIdError):
        kept.item("me", "msg_b-in")


def test_who_takes_the_most_room_makes_room(monkeypatch):
    monkeypatch.setattr(module, "MAX_STORED_CHARACTERS", 4000)
    kept = make_store()
    kept.put("small", stored("s"))
    for number in range(9):
        kept.put("large", stored(f"l{number}", size=900))
    assert kept.get("small", "s").id == "s"
    assert kept.get("large", "l8").id == "l8"
    with pytest.raises(UnknownIdError):
        kept.get("large", "l0")


def test_a_response_that_is_larger_than_all_room_is_not_kept(monkeypatch):
    monkeypatch.setattr(module, "MAX_STORED_CHARACTERS", 1000)
    kept = make_store()
    kept.put("me", stored("a"))
    kept.put("me", stored("b", size=2000))
    assert kept.get("me", "a").id == "a"
    with pytest.raises(UnknownIdError):
        kept.get("me", "b")


def test_a_response_that_is_put_again_takes_its_place_once():
    kept = make_store(most=2)
    for name in ("a", "b", "a", "a"):
        kept.put("me", stored(name))
    assert kept.get("me", "b").id == "b"


def test_with_no_room_at_all_nothing_is_kept():
    kept = make_store(most=0)
    assert not kept.keeps
    kept.put("me", stored("a"))
    with pytest.raises(UnknownIdError):
        kept.get("me", "a")
