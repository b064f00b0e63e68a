"""Models that come for requests: names, turns, pins, failures, work in flight."""

import asyncio
import gc
import threading
import weakref
from collections import deque
from dataclasses import replace

import psutil
import pytest
from child_processes import wait_until
from random_adapters import write_adapter

from zse.engine.async_engine import AsyncEngine
from zse.engine.opening import OpenedModel
from zse.errors import LoRAError, OverloadedError, StoreError
from zse.format import ZSEReader
from zse.models.runner import spec_of
from zse.serve.adapters import as_model
from zse.serve.admin.loading import ModelLoader
from zse.serve.fleet.moves import Moves
from zse.serve.state import LoadedModel
from zse.serve.uses import Uses


@pytest.fixture
def adapter_folder(tmp_path, model_files):
    """A LoRA adapter of the first model."""
    with ZSEReader(model_files["a"]) as reader:
        return write_adapter(tmp_path / "adapter", spec_of(reader), seed=1, rank=4)


def text_of(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def test_a_request_names_a_model_and_gets_it(fleet, expected):
    for name in "cac":
        assert text_of(fleet.ask(name)) == expected[name]
        assert fleet.here() == [name]


def test_who_names_no_model_gets_the_first(fleet, expected):
    fleet.ask("b")
    answer = fleet.ask("default")
    assert answer.json()["model"] == "a"
    assert text_of(answer) == expected["a"]


def test_all_models_are_listed_with_where_they_are(fleet, call, check_error):
    fleet.ask("b")
    assert fleet.statuses() == dict.fromkeys("acdefgh", "unloaded") | {"b": "loaded"}
    assert call("GET", "/v1/models/b").json()["max_model_len"] == 512
    assert call("GET", "/v1/models/c").json()["status"] == "unloaded"
    anthropics = call("GET", "/v1/models", headers={"anthropic-version": "2023-06-01"}).json()
    assert [one["id"] for one in anthropics["data"]] == list("abcdefgh")
    check_error(call("GET", "/v1/models/x"), 404, param="model", code="model_not_found")
    message = check_error(fleet.ask("x"), 404, param="model", code="model_not_found")
    assert "'a', 'b'" in message


def test_who_lists_and_describes_models_in_ollamas_words_brings_none(fleet, call):
    fleet.ask("b")
    listed = call("GET", "/api/tags").json()["models"]
    assert sorted(one["name"] for one in listed) == list("abcdefgh")
    assert [one["name"] for one in call("GET", "/api/ps").json()["models"]] == ["b"]
    for name in "abc":
        shown = call("POST", "/api/show", json={"model": f"{name}:latest"}).json()
        assert bool(shown["model_info"]) is (name == "b")
    assert call("POST", "/api/show", json={"model": "x"}).status_code == 404
    assert fleet.here() == ["b"]


def test_a_model_that_is_leaving_is_told_of_by_its_name_as_in_the_list(fleet, call, state):
    fleet.ask("a")
    entry = state.models.find("a")
    state.models.hide(entry)
    assert call("GET", "/v1/models/a").json()["status"] == "unloading" == fleet.statuses()["a"]
    state.models.show(entry)
    assert call("GET", "/v1/models/default").json()["id"] == "a"


def test_an_admin_sees_who_is_where_and_why_not(fleet, call, folder):
    (folder / "c.zse").write_bytes(b"no model")
    fleet.ask("b")
    fleet.ask("c")
    told = call("GET", "/api/models").json()["fleet"]
    models = {one["name"]: one for one in told["models"]}
    assert {name: one["status"] for name, one in models.items()} == fleet.statuses()
    assert models["c"]["error"]
    assert models["b"]["error"] is None
    assert (told["max_resident"], told["sleep_level"]) == (1, None)
    assert told["swap_seconds"] > 0


def test_a_server_without_a_model_is_ready_when_it_can_bring_one(call):
    assert call("GET", "/health/ready").status_code == 200
    assert call("GET", "/ping").status_code == 200


def test_answers_end_before_their_model_leaves(fleet, runner, expected):
    async def both():
        long = asyncio.create_task(fleet.send("a", max_tokens=200))
        while not fleet.call.app_state.models.has("a"):
            await asyncio.sleep(0.002)
        return await asyncio.gather(long, fleet.send("b"))

    long, other = runner.run(both())
    assert long.json()["usage"]["completion_tokens"] == 200
    assert text_of(other) == expected["b"]
    assert fleet.here() == ["b"]


def test_eight_models_under_load_answer_right_and_lose_nothing(fleet, runner, state, expected):
    async def client(number):
        names = "abcdefgh"[number:] + "abcdefgh"[:number]
        return [(name, text_of(await fleet.send(name))) for name in names * 4]

    async def all_of_them():
        return await asyncio.gather(*map(client, range(8)))

    said = [pair for pairs in runner.run(all_of_them()) for pair in pairs]
    assert len(said) == 256
    assert all(text == expected[name] for name, text in said)
    assert state.fleet.num_waiting == 0
    assert all(entry.is_free for entry in state.models)


def own_threads():
    """Return the names of our threads, once those of a load have ended."""
    ending = ("zse-load", "zse-open", "zse-tokenizer")
    for thread in threading.enumerate():
        if thread.name.startswith(ending):
            thread.join(60)
    return sorted(one.name for one in threading.enumerate() if one.name.startswith("zse-"))


def test_a_model_that_is_asked_without_a_pause_leaves_for_one_that_is_asked_once(
    fleet, runner, expected
):
    async def beside_traffic():
        async def ask_on():
            while not asked.done():
                assert (await fleet.send("a")).status_code == 200

        traffic = [asyncio.create_task(ask_on()) for _ in range(4)]
        asked = asyncio.create_task(fleet.send("b"))
        answer = await asked
        await asyncio.gather(*traffic)
        return answer

    fleet.ask("a")
    assert text_of(runner.run(beside_traffic())) == expected["b"]


def test_a_name_of_its_own_goes_before_the_alias_of_another(fleet, state, expected):
    for seat in state.fleet.seats.values():
        seat.aliases = ("*",) if seat.name == "a" else ()
    fleet.ask("a")
    assert text_of(fleet.ask("b")) == expected["b"]
    assert text_of(fleet.ask("gpt-4o")) == expected["a"]


def test_names_that_clients_make_up_make_no_series_of_numbers(fleet, state):
    state.fleet.seats["a"].aliases = ("gpt-*",)
    assert fleet.ask("gpt-made-up").status_code == 200
    waits = [line for line in state.metrics.render().splitlines() if b"model_wait" in line]
    assert any(b'model="a"' in line for line in waits)
    assert not any(b"made-up" in line for line in waits)


def test_adapters_come_back_with_their_model(fleet, runner, state, adapter_folder):
    fleet.ask("a")
    entry = state.models.find("a")
    adapter = entry.model.engine.adapters(state.options.load.lora).load("tuned", adapter_folder)
    state.models.put_adapter(entry, as_model(entry.model, adapter))
    said = text_of(fleet.ask("tuned"))
    fleet.ask("b")
    assert fleet.here() == ["b"]
    assert text_of(fleet.ask("tuned")) == said
    assert sorted(fleet.here()) == ["a", "tuned"]


def test_one_key_cannot_keep_the_others_out_of_the_queue(fleet, runner, state):
    state.options = replace(state.options, max_queue=0)
    state.settings = replace(state.settings, serve=state.options)
    limit = state.max_admitted

    async def crowd():
        async with state.fleet.moves.moving:  # nobody gets a turn meanwhile
            seat = state.fleet.seats["b"]
            crowd = [state.fleet.queue(seat, "b", "greedy") for _ in range(limit)]
            modest = asyncio.create_task(fleet.send("c"))
            while state.fleet.seats["c"].waiting == deque():
                await asyncio.sleep(0.001)
            refused = [one for one in crowd if one.answer.done()]
            assert refused == crowd[-1:]
            assert state.fleet.num_waiting == limit
            with pytest.raises(OverloadedError):
                state.fleet._make_place("greedy")
            for one in crowd:
                one.leave()
            seat.waiting.clear()
        return await modest

    assert runner.run(crowd()).status_code == 200


def test_the_newcomer_is_refused_where_all_keys_wait_for_as_much(fleet, runner, state):
    async def fill():
        async with state.fleet.moves.moving:
            seat = state.fleet.seats["b"]
            waiters = [
                state.fleet.queue(seat, "b", str(number % 2))
                for number in range(state.max_admitted)
            ]
            for tenant in "01":
                with pytest.raises(OverloadedError):
                    state.fleet._make_place(tenant)
            assert not any(one.answer.done() for one in waiters)
            for one in waiters:
                one.leave()
            seat.waiting.clear()

    runner.run(fill())


def test_a_swap_that_nobody_waits_for_any_more_is_given_up(fleet, runner, state, expected):
    async def leave_before_the_end():
        long = asyncio.create_task(fleet.send("a", max_tokens=400))
        while not (found := state.models.find("a")) or found.is_free:
            await asyncio.sleep(0.001)
        waiting = asyncio.create_task(fleet.send("b"))
        while state.models.find("a") is not None:  # until it is hidden
            await asyncio.sleep(0.001)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        while state.models.find("a") is None:
            await asyncio.sleep(0.001)
        shown_beside_the_answer = not long.done()
        return shown_beside_the_answer, await long

    fleet.ask("a")
    shown, long = runner.run(asyncio.wait_for(leave_before_the_end(), 60))
    assert shown
    assert long.status_code == 200
    assert fleet.here() == ["a"]
    assert state.fleet.seats["b"].failure is None
    assert text_of(fleet.ask("b")) == expected["b"]


def test_an_alias_is_told_of_as_the_model_that_it_means(fleet, call, state, check_error):
    state.fleet.seats["b"].aliases = ("gpt-*",)
    assert call("GET", "/v1/models/gpt-4o").json()["id"] == "b"
    fleet.ask("b")
    assert call("GET", "/v1/models/gpt-4o").json()["status"] == "loaded"
    check_error(call("GET", "/v1/models/x"), 404, param="model", code="model_not_found")


def test_patience_has_an_end(state):
    seat = state.fleet.seats["b"]
    for _ in range(40):
        seat.give_up()
    assert seat.patience_seconds(1.0) == 16


@pytest.mark.nightly
def test_a_thousand_swaps_leave_nothing_behind(fleet, state):
    process = psutil.Process()

    def swaps(count):
        for number in range(count):
            fleet.ask("abcdefgh"[number % 8], max_tokens=1)

    swaps(200)  # until the arenas of threads that come and go are there
    before = process.memory_info().rss, process.num_fds(), own_threads()
    swaps(1000)
    after = process.memory_info().rss, process.num_fds(), own_threads()
    assert after[0] < before[0] * 1.05
    assert after[1:] == before[1:]
    assert state.metrics.render().count(b'outcome="loaded"') == 2 * 8  # and when each was made


def test_a_hundred_swaps_answer_right_and_leave_no_descriptor_and_no_thread_behind(fleet, expected):
    process = psutil.Process()
    fleet.ask("a")
    fleet.ask("h")
    threads, num_descriptors = own_threads(), process.num_fds()
    for name in "abcdefgh" * 13:
        assert text_of(fleet.ask(name)) == expected[name]
    wait_until(lambda: len(own_threads()) <= len(threads))  # those of a load end by themselves
    assert process.num_fds() <= num_descriptors


def test_a_model_that_left_is_gone_without_the_collector(fleet, call, state):
    gc.collect()
    gc.disable()
    try:
        fleet.ask("a")
        fleet.ask("a", stream=True)
        fleet.ask("a", n=3, temperature=1, logprobs=2)
        call.chat("Hello", model="a", max_tokens=4, stop=["x"])
        call("POST", "/v1/embeddings", json={"model": "a", "input": ["Hello", "you"]})
        parts = weakrefs_of(state.models.find("a").model)
        fleet.ask("b")
        assert [name for name, part in parts.items() if part() is not None] == []
    finally:
        gc.enable()


def weakrefs_of(model):
    core = model.engine._core
    parts = [model.engine, core, core.runner, core.runner._backend, model.resources[0]._map]
    return {type(part).__name__: weakref.ref(part) for part in parts}


class TestWhereSomethingIsWrong:
    def test_a_broken_file_costs_nobody_a_place(self, fleet, folder, check_error):
        (folder / "c.zse").write_bytes(b"no model")
        fleet.ask("a")
        answer = fleet.ask("c")
        message = check_error(answer, 503, code="model_unavailable", kind="server_error")
        assert str(folder) not in message
        assert float(answer.headers["retry-after"]) >= 1
        assert fleet.here() == ["a"]
        assert fleet.statuses()["c"] == "failed"

    def test_who_left_comes_back_where_the_other_fails_after_that(
        self, fleet, state, monkeypatch, check_error, expected
    ):
        load = ModelLoader._load

        def failing(loader, one):
            if one.order.name == "b":
                raise OSError(5, "Input/output error")
            return load(loader, one)

        fleet.ask("a")
        monkeypatch.setattr(ModelLoader, "_load", failing)
        answer = fleet.ask("b")
        check_error(answer, 503, code="model_unavailable", kind="server_error")
        assert fleet.here() == ["a"]
        assert text_of(fleet.ask("a")) == expected["a"]

    def test_who_left_comes_back_where_the_last_weights_of_a_model_in_use_do_not_come(
        self, fleet, state, monkeypatch, expected
    ):
        settle, begin, was_let = LoadedModel.settle, Uses.begin, threading.Event()

        def failing(model):
            settle(model)
            if model.name == "b":
                assert was_let.wait(60)
                raise StoreError("the disk is gone")

        def begun(uses):
            begin(uses)
            was_let.set()

        fleet.ask("a")
        monkeypatch.setattr(LoadedModel, "settle", failing)
        monkeypatch.setattr(Uses, "begin", begun)
        answer = fleet.ask("b")
        assert answer.status_code in (200, 503)  # it was as quick as the error, or was ended by it
        wait_until(lambda: fleet.statuses()["b"] == "failed")
        assert text_of(fleet.ask("a")) == expected["a"]
        assert state.models.failure is None, "an engine that crashes ends the process"

    def test_who_brings_a_model_waits_for_all_of_it_where_requests_go_on_before(
        self, fleet, state, runner, monkeypatch, expected
    ):
        settle, arrived = LoadedModel.settle, threading.Event()

        def late(model):
            assert arrived.wait(60)
            settle(model)

        monkeypatch.setattr(LoadedModel, "settle", late)
        seat = state.fleet.seats["b"]

        async def bring():
            bringing = asyncio.create_task(state.fleet.bring(seat))
            answer = await fleet.send("b")
            assert not bringing.done()
            arrived.set()
            await bringing
            return answer

        assert text_of(runner.run(bring())) == expected["b"]
        assert fleet.here() == ["b"]

    def test_a_load_that_fails_before_the_engine_gives_back_what_was_opened(
        self, fleet, monkeypatch, check_error
    ):
        given_back = []
        abandon = OpenedModel.abandon

        def fail(*_):
            raise LoRAError("its folder is gone")

        monkeypatch.setattr(OpenedModel, "abandon", lambda one: given_back.append(abandon(one)))
        monkeypatch.setattr("zse.serve.load._adapters_of", fail)
        check_error(fleet.ask("b"), 503, code="model_unavailable", kind="server_error")
        assert len(given_back) == 1

    def test_a_load_whose_adapters_find_no_room_gives_back_the_model(
        self, fleet, monkeypatch, adapter_folder
    ):
        closed = []
        close = AsyncEngine.close

        def adapters(*_):
            raise LoRAError("no room")

        monkeypatch.setattr(AsyncEngine, "close", lambda one: closed.append(close(one)))
        monkeypatch.setattr(AsyncEngine, "adapters", adapters)
        monkeypatch.setattr("zse.serve.load._adapters_of", lambda *_: [(None, adapter_folder)])
        assert fleet.ask("b").status_code == 503
        assert len(closed) == 1

    def test_everyone_is_told_by_an_error_that_holds_no_request_of_another(
        self, fleet, folder, state
    ):
        (folder / "b.zse").write_bytes(b"no model")
        for _ in range(3):
            assert fleet.ask("b").status_code == 503
        assert state.fleet.seats["b"].failure.error.__traceback__ is None

    def test_a_server_that_ends_during_a_swap_brings_nobody_back(
        self, fleet, runner, state, monkeypatch
    ):
        begun = []

        async def stuck(moves, seat, estimate=None):
            begun.append(seat.name)
            await asyncio.Event().wait()

        async def end_during_the_load():
            asked = asyncio.create_task(fleet.send("b"))
            while not begun:
                await asyncio.sleep(0.002)
            conductor = state.fleet._conductor
            conductor.cancel()
            await asyncio.wait({conductor}, timeout=60)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            return conductor.cancelled()

        fleet.ask("a")
        monkeypatch.setattr(Moves, "_load", stuck)
        assert runner.run(end_during_the_load())
        assert begun == ["b"]

    def test_a_failed_model_is_tried_again_when_its_file_is_another(
        self, fleet, folder, model_files, state, expected
    ):
        (folder / "b.zse").write_bytes(b"no model")
        assert fleet.ask("b").status_code == 503
        failure = state.fleet.seats["b"].failure
        assert fleet.ask("b").status_code == 503
        assert state.fleet.seats["b"].failure is failure  # told again, not tried again
        replacement = folder / "new"
        replacement.write_bytes(model_files["c"].read_bytes())
        replacement.replace(folder / "b.zse")
        assert text_of(fleet.ask("b")) == expected["c"]

    def test_a_file_that_was_replaced_is_what_comes_next(
        self, fleet, folder, model_files, expected
    ):
        fleet.ask("b")
        replacement = folder / "new"
        replacement.write_bytes(model_files["d"].read_bytes())
        replacement.replace(folder / "b.zse")
        assert text_of(fleet.ask("b")) == expected["b"]  # the one that is there is what it was
        fleet.ask("a")
        assert text_of(fleet.ask("b")) == expected["d"]

    def test_a_client_that_leaves_the_queue_holds_nobody_up(self, fleet, runner, state):
        async def leave():
            long = asyncio.create_task(fleet.send("a", max_tokens=300))
            while not state.models.has("a"):
                await asyncio.sleep(0.002)
            waiting = asyncio.create_task(fleet.send("b"))
            while not state.fleet.num_waiting:
                await asyncio.sleep(0.002)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert not state.fleet.num_waiting
            assert (await long).status_code == 200
            return await fleet.send("c")

        assert runner.run(leave()).status_code == 200
        assert all(entry.is_free for entry in state.models)


class TestTime:
    @pytest.fixture
    def fleet_options(self, fleet_options):
        return replace(fleet_options, model_wait=0.2)

    def test_who_waits_too_long_is_told_when_to_come_again(self, fleet, runner, check_error):
        async def too_long():
            long = asyncio.create_task(fleet.send("a", max_tokens=400))
            while not fleet.call.app_state.models.has("a"):
                await asyncio.sleep(0.002)
            answer = await fleet.send("b")
            return answer, await long

        fleet.ask("a")
        answer, long = runner.run(too_long())
        if answer.status_code == 503:  # where 400 tokens took longer
            check_error(answer, 503, code="model_unavailable", kind="server_error")
            assert float(answer.headers["retry-after"]) >= 1
        assert long.json()["usage"]["completion_tokens"] == 400


class TestPins:
    @pytest.fixture
    def fleet_options(self, fleet_options):
        return replace(fleet_options, pins=("c",), max_resident=2)

    def test_what_is_pinned_is_brought_and_never_leaves(self, fleet, runner, state):
        running = runner.get_loop().create_task(state.fleet.run())
        runner.run(asyncio.wait_for(running, 60))
        for name in "abde":
            fleet.ask(name, max_tokens=1)
            assert sorted(fleet.here()) == sorted(["c", name])

    def test_the_least_recently_asked_leaves(self, fleet, state):
        state.fleet.seats["c"].is_pinned = False
        for name in "abac":
            fleet.ask(name, max_tokens=1)
        assert sorted(fleet.here()) == ["a", "c"]
