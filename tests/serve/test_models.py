"""The table of models: names, aliases, the default and the least recently asked."""

from types import SimpleNamespace

import pytest

from zse.serve.models import ModelTable, NameTakenError


def model(name, **engine):
    facts = {"failure": None, "is_healthy": True, "num_active": 0, **engine}
    return SimpleNamespace(name=name, engine=SimpleNamespace(**facts))


@pytest.fixture
def table():
    ticks = iter(range(100))
    return ModelTable(clock=lambda: next(ticks))


def test_the_first_model_is_the_default_and_the_next_one_follows_it(table):
    first = table.put(model("a"))
    table.put(model("b"))
    assert table.default.name == "a"
    assert table.find("default").model.name == "a"
    table.remove(first)
    assert table.default.name == "b"
    assert table.find("a") is None


def test_an_empty_table_has_no_default(table):
    assert table.default is None
    assert table.find("default") is None


def test_a_model_answers_to_its_aliases(table):
    entry = table.put(model("a"), aliases=["gpt-4", "claude-*"])
    assert table.find("gpt-4") is table.find("claude-opus") is table.find("a") is entry
    assert table.find("gpt-4-turbo") is None
    named = table.put(model("claude-local"))
    assert table.find("claude-local") is named


def test_a_model_that_is_called_default_answers_to_it(table):
    table.put(model("a"))
    table.put(model("default"))
    assert table.find("default").model.name == "default"


def test_a_name_belongs_to_one_model(table):
    table.put(model("a"))
    with pytest.raises(NameTakenError, match="'a'"):
        table.put(model("a"))
    assert len(table) == 1


def test_a_hidden_model_answers_to_nothing_but_keeps_its_name_and_its_rank(table):
    entry = table.put(model("a"), aliases=["gpt-4"])
    table.put(model("b"))
    table.hide(entry)
    assert table.find("a") is table.find("gpt-4") is None
    assert table.default.name == "b"
    with pytest.raises(NameTakenError):
        table.put(model("a"))
    table.show(entry)
    assert table.default.name == "a"


def test_asking_for_a_model_notes_when(table):
    a, b = table.put(model("a")), table.put(model("b"))
    table.find("a")
    assert min(table, key=lambda entry: entry.last_asked) is b
    assert a.last_asked > b.last_asked


def test_one_crashed_engine_makes_the_whole_table_unhealthy(table):
    table.put(model("a"))
    assert table.is_healthy
    assert table.failure is None
    table.put(model("b", failure=ValueError("gone"), is_healthy=False))
    assert not table.is_healthy
    assert str(table.failure) == "gone"


def test_engines_are_counted_by_model(call, state, scripted):
    state.models.put(scripted.scripted_model("other"))
    call.chat("say:hi", model="other")
    text = call("GET", "/metrics").text
    assert 'zse_num_requests_running{model="scripted"} 0.0' in text
    assert 'zse_num_requests_running{model="other"} 0.0' in text


def test_the_field_model_chooses_and_the_list_has_all(call, state, scripted):
    other = scripted.scripted_model("other")
    state.models.put(other, aliases=frozenset({"gpt-4"}))
    assert call.chat("say:hi", model="gpt-4").json()["model"] == "other"
    assert len(other.engine.seen) == 1
    assert call.chat("say:hi").json()["model"] == "scripted"
    listed = call("GET", "/v1/models").json()["data"]
    assert [entry["id"] for entry in listed] == ["scripted", "other"]
