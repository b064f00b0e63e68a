"""Pins and swaps of a running server: who stays, who comes, and what is refused."""

from dataclasses import replace

import pytest

PIN, SWAP = "/api/models/pin", "/api/models/swap"


@pytest.fixture
def fleet_options(fleet_options):
    return replace(fleet_options, max_resident=2)


def pin(call, name, **fields):
    response = call("POST", PIN, json={"model": name, **fields})
    assert response.status_code == 200, response.text
    return {one["name"]: one["is_pinned"] for one in response.json()["models"]}


def test_what_was_pinned_stays_while_others_come_and_go(fleet, call):
    fleet.ask("a")
    assert pin(call, "a")["a"] is True
    for name in "bcd":
        assert fleet.ask(name).status_code == 200
        assert sorted(fleet.here()) == ["a", name]
    assert pin(call, "a", pinned=False)["a"] is False
    fleet.ask("e")
    assert sorted(fleet.here()) == ["d", "e"]


def test_a_pin_that_leaves_no_room_for_others_is_refused(fleet, call, check_error):
    pin(call, "a")
    pin(call, "a")
    check_error(call("POST", PIN, json={"model": "b"}), 400)
    assert fleet.ask("c").status_code == 200


def test_a_swap_brings_a_model_in_place_of_the_least_recently_used(fleet, call):
    fleet.ask("a")
    fleet.ask("b")
    told = call("POST", SWAP, json={"model": "c"})
    assert told.status_code == 200, told.text
    statuses = {one["name"]: one["status"] for one in told.json()["models"]}
    assert (statuses["a"], statuses["b"], statuses["c"]) == ("unloaded", "loaded", "loaded")
    assert sorted(fleet.here()) == ["b", "c"]


def test_an_admin_s_load_passes_over_what_is_pinned(fleet, call, state):
    from zse.serve.admin.loading import ModelLoader

    fleet.ask("a")
    fleet.ask("b")
    pin(call, "a")
    assert state.one_of(ModelLoader)._hide_idle().model.name == "b"
    assert state.one_of(ModelLoader)._hide_idle() is None


def test_what_cannot_be_pinned_or_brought_is_refused(fleet, call, state, check_error):
    for path in (PIN, SWAP):
        check_error(
            call("POST", path, json={"model": "nobody"}), 404, code="model_not_found", param="model"
        )
        check_error(call("POST", path, json={"model": ""}), 400, param="model")
    assert call("POST", "/sleep").status_code == 200
    refused = call("POST", SWAP, json={"model": "a"})
    check_error(refused, 503, code="server_is_sleeping", kind="server_error")
    state.fleet = None
    check_error(call("POST", PIN, json={"model": "a"}), 400)


def test_statistics_tell_where_each_model_is(fleet, call):
    fleet.ask("a")
    pin(call, "a")
    told = {one["name"]: one for one in call("GET", "/api/stats").json()["fleet"]["models"]}
    assert (told["a"]["status"], told["a"]["is_pinned"]) == ("loaded", True)
    assert (told["b"]["status"], told["b"]["is_pinned"]) == ("unloaded", False)
