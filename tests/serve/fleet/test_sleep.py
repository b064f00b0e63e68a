"""Sleep: memory is given back until somebody asks, or an admin says so."""

import asyncio
from dataclasses import replace

import psutil
import pytest

from zse.serve.admin.loading import ModelLoader
from zse.serve.admin.orders import Load
from zse.serve.fleet import moves


def is_sleeping(call):
    return call("GET", "/is_sleeping").json()["is_sleeping"]


@pytest.fixture
def fleet_options(fleet_options):
    return replace(fleet_options, max_resident=2)


@pytest.mark.parametrize("level", ["1", "2"])
def test_an_admin_puts_the_server_to_sleep_and_wakes_it(fleet, call, check_error, expected, level):
    fleet.ask("a")
    fleet.ask("b")
    assert is_sleeping(call) is False
    assert call("POST", f"/sleep?level={level}").status_code == 200
    assert is_sleeping(call) is True
    assert fleet.here() == []
    answer = fleet.ask("a")
    check_error(answer, 503, code="server_is_sleeping", kind="server_error")
    assert "retry-after" in answer.headers
    assert call("GET", "/health/ready").status_code == 503
    assert call("GET", "/health/live").status_code == 200
    assert call("POST", "/wake_up").status_code == 200
    assert is_sleeping(call) is False
    assert sorted(fleet.here()) == ["a", "b"]
    assert fleet.ask("b").json()["choices"][0]["text"] == expected["b"]


def test_sleep_without_a_level_is_the_first_one(call, state):
    call("POST", "/sleep")
    assert state.fleet.sleep.level == 1


@pytest.mark.parametrize(
    ("path", "param"),
    [("/sleep?level=0", "level"), ("/sleep?level=x", "level"), ("/wake_up?tags=all", "tags")],
)
def test_what_means_nothing_is_refused(call, check_error, path, param):
    check_error(call("POST", path), 400, param=param)


@pytest.mark.parametrize("sign", [{"origin": "https://evil.example"}, {"origin": "null"}])
def test_a_page_of_another_site_puts_nothing_to_sleep_and_wakes_nothing(call, check_error, sign):
    for headers in (sign, {**sign, "sec-fetch-site": "cross-site"}):
        refused = call("POST", "/sleep", headers=headers)
        check_error(refused, 403, code="cross_origin_request")
    assert is_sleeping(call) is False
    assert call("POST", "/sleep").status_code == 200
    check_error(call("POST", "/wake_up", headers=sign), 403, code="cross_origin_request")
    assert is_sleeping(call) is True


def test_waking_by_parts_brings_all_of_a_model(fleet, call):
    fleet.ask("a")
    call("POST", "/sleep")
    assert call("POST", "/wake_up?tags=weights").status_code == 200
    assert call("POST", "/wake_up?tags=kv_cache").status_code == 200
    assert fleet.here() == ["a"]


def test_answers_end_before_the_server_sleeps(fleet, runner, state):
    async def sleep_beside_an_answer():
        long = asyncio.create_task(fleet.send("a", max_tokens=200))
        while not state.models.has("a"):
            await asyncio.sleep(0.002)
        asleep = await fleet.call.send("POST", "/sleep")
        return asleep, await long

    asleep, long = runner.run(sleep_beside_an_answer())
    assert asleep.status_code == 200
    assert long.json()["usage"]["completion_tokens"] == 200


def test_who_waits_when_an_admin_wants_sleep_is_answered_after_it(fleet, runner, state, expected):
    async def sleep_before_the_turn():
        long = asyncio.create_task(fleet.send("a", max_tokens=100))
        asleep = asyncio.create_task(fleet.call.send("POST", "/sleep"))
        while not state.fleet.num_waiting:
            await asyncio.sleep(0.001)
        await asleep
        assert (await fleet.send("b")).status_code == 503
        await fleet.call.send("POST", "/wake_up")
        return await long

    assert runner.run(sleep_before_the_turn()).status_code == 200


def test_answers_that_do_not_end_keep_the_server_awake(fleet, runner, state, check_error):
    state.options = replace(state.options, drain_seconds=0.0)

    async def sleep_beside_an_answer():
        long = asyncio.create_task(fleet.send("a", max_tokens=400))
        while not (found := state.models.find("a")) or found.is_free:
            await asyncio.sleep(0.001)
        return await fleet.call.send("POST", "/sleep"), await long

    fleet.ask("b")  # which leaves before it shows that the other one does not
    asleep, long = runner.run(sleep_beside_an_answer())
    check_error(asleep, 409, code="model_busy")
    assert long.status_code == 200
    assert sorted(fleet.here()) == ["a", "b"]
    assert is_sleeping(fleet.call) is False


def test_models_that_change_places_for_long_keep_the_server_awake(
    fleet, runner, state, check_error
):
    state.options = replace(state.options, drain_seconds=0.01)

    async def sleep_beside_a_swap():
        async with state.fleet.moves.moving:
            return await fleet.call.send("POST", "/sleep")

    fleet.ask("a")
    check_error(runner.run(sleep_beside_a_swap()), 409, code="model_busy")
    assert fleet.here() == ["a"]
    assert is_sleeping(fleet.call) is False


def test_who_wakes_the_server_while_models_leave_finds_it_awake(fleet, runner, state):
    async def wake_while_it_falls_asleep():
        async with state.fleet.moves.moving:
            asleep = asyncio.create_task(fleet.call.send("POST", "/sleep"))
            while not state.fleet.sleep.was_asked_for:
                await asyncio.sleep(0.001)
            await fleet.call.send("POST", "/wake_up")
        await asleep

    fleet.ask("a")
    runner.run(wake_while_it_falls_asleep())
    assert is_sleeping(fleet.call) is False
    assert fleet.here() == ["a"]


def test_who_cannot_come_back_keeps_nobody_else_away(fleet, call, folder, check_error, expected):
    fleet.ask("a")
    fleet.ask("b")
    call("POST", "/sleep")
    (folder / "a.zse").write_bytes(b"no model")
    answer = call("POST", "/wake_up")
    check_error(answer, 503, code="model_unavailable", kind="server_error")
    assert fleet.here() == ["b"]
    assert fleet.ask("b").json()["choices"][0]["text"] == expected["b"]


@pytest.mark.parametrize("asked_for", [True, False])
def test_a_model_that_an_admin_loads_ends_the_sleep(fleet, call, state, runner, asked_for):
    fleet.ask("a")
    if asked_for:
        call("POST", "/sleep")
    else:
        runner.run(state.fleet.sleep._empty(1))
    answer = call("POST", "/api/models/load", json={"model": "b", "wait": True})
    assert answer.status_code == 200, answer.text
    assert is_sleeping(call) is False
    assert call("GET", "/health/ready").status_code == 200
    assert fleet.ask("b").status_code == 200


def test_a_load_that_fails_leaves_the_server_asleep(fleet, call, folder):
    fleet.ask("a")
    call("POST", "/sleep")
    (folder / "b.zse").write_bytes(b"no model")
    call("POST", "/api/models/load", json={"model": "b", "wait": True})
    assert is_sleeping(call) is True
    assert fleet.ask("a").status_code == 503


def test_the_second_level_drops_tokenizers_and_pages(fleet, call, state, monkeypatch):
    dropped = []
    monkeypatch.setattr(moves, "_drop_pages", dropped.append)
    fleet.ask("a")
    call("POST", "/sleep?level=1")
    text_cache = state.fleet.moves._loader.text_cache
    assert len(text_cache) == 1
    assert dropped == []
    call("POST", "/sleep?level=2")
    assert len(text_cache) == 0
    assert len(dropped) == 8
    assert state.fleet.sleep.level == 2


def test_code_stays_on_the_gpu_for_a_model_that_an_admin_loads_meanwhile(
    fleet, call, state, monkeypatch
):
    dropped = []
    monkeypatch.setattr(moves, "drop_code", dropped.append)
    fleet.ask("a")
    loader = state.one_of(ModelLoader)
    loader.latest = Load(loader.latest.order)
    call("POST", "/sleep?level=2")
    assert dropped == []
    loader.latest.done.set_result(None)
    call("POST", "/sleep?level=2")
    assert dropped == ["cpu"]


def test_a_server_of_one_model_sleeps_too(fleet, call, state, expected):
    fleet.ask("a")
    state.fleet = None
    state.options = replace(state.options, fleet=type(state.options.fleet)())
    assert is_sleeping(call) is False
    assert call("POST", "/sleep").status_code == 200
    assert fleet.ask("a").status_code == 503
    assert call("POST", "/wake_up").status_code == 200
    assert fleet.ask("a").json()["choices"][0]["text"] == expected["a"]


def test_a_sleeping_model_maps_nothing(fleet, call, state):
    fleet.ask("a")
    mapped = str(state.models.find("a").model.resources[0].path)
    assert mapped in {one.path for one in psutil.Process().memory_maps()}
    call("POST", "/sleep")
    assert mapped not in {one.path for one in psutil.Process().memory_maps()}


class TestWhenNobodyAsks:
    @pytest.fixture
    def fleet_options(self, fleet_options):
        return replace(fleet_options, sleep_after=0.05)

    def test_the_server_falls_asleep_and_a_request_wakes_it(
        self, fleet, call, state, runner, expected
    ):
        fleet.ask("a")

        async def until_asleep():
            watching = asyncio.create_task(state.fleet.run())
            while state.fleet.sleep.level is None:
                await asyncio.sleep(0.005)
            watching.cancel()

        runner.run(asyncio.wait_for(until_asleep(), 60))
        assert is_sleeping(call) is True
        assert fleet.here() == []
        assert call("GET", "/health/ready").status_code == 200
        assert fleet.ask("a").json()["choices"][0]["text"] == expected["a"]
        assert is_sleeping(call) is False

    def test_who_asks_while_it_falls_asleep_does_not_keep_it_awake_for_ever(
        self, fleet, state, runner
    ):
        fleet.ask("a")
        state.options = replace(state.options, drain_seconds=0.0)
        uses, sleep = state.models.find("a").model.uses, state.fleet.sleep

        async def until_asleep():
            watching = asyncio.create_task(sleep.watch(0.01))
            begun = sleep._take_in_others
            sleep._take_in_others = lambda: (begun(), uses.begin())  # between the look and the end
            await asyncio.sleep(0.05)
            sleep._take_in_others = begun
            while uses.count:
                uses.end()
            while sleep.level is None and not watching.done():
                await asyncio.sleep(0.005)
            watching.cancel()

        runner.run(asyncio.wait_for(until_asleep(), 60))
        assert sleep.level == 1

    def test_waking_brings_those_that_were_there_last(self, fleet, call, state, runner):
        sleep = state.fleet.sleep
        for name in "ab":  # each falls asleep alone, as nobody asks
            fleet.ask(name)
            runner.run(sleep._empty(1))
        call("POST", "/wake_up")
        assert fleet.here() == ["b"]
