"""Models come and go while the server answers: names, memory, work in flight."""

import asyncio
import gc
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from random_adapters import write_adapter

from zse.format import ZSEReader
from zse.models.runner import spec_of
from zse.options import load_options
from zse.quantize.locate import locate_model
from zse.serve.admin import loading
from zse.serve.admin.loading import ModelLoader
from zse.serve.admin.stats import resident_bytes
from zse.serve.ledger import Ledger
from zse.serve.state import AppState
from zse.server_options import ServeOptions
from zse.settings import load_settings

LOAD, UNLOAD = "/api/models/load", "/api/models/unload"


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Two files of the built-in model, and one that is none."""
    folder = tmp_path_factory.mktemp("models")
    tiny = locate_model("tiny", load_settings())
    for name in ("a.zse", "b.zse"):
        shutil.copy(tiny, folder / name)
    (folder / "broken.zse").write_bytes(b"no model")
    return folder


@pytest.fixture
def options(folder):
    load = load_options(device="cpu", num_blocks=64, max_context=512, threads=1)
    return ServeOptions(model="tiny", model_places=str(folder), load=load)


@pytest.fixture
def state(options):
    state = AppState(
        ledger=Ledger(), options=options, settings=replace(load_settings(), serve=options)
    )
    yield state
    for entry in state.models:
        entry.model.close()


def names(call):
    return [entry["id"] for entry in call("GET", "/v1/models").json()["data"]]


def test_a_model_is_loaded_beside_another_answers_by_name_and_goes(call):
    answer = call("POST", LOAD, json={"model": "a.zse", "aliases": ["gpt-*"]})
    assert answer.status_code == 200, answer.text
    assert (answer.json()["status"], answer.json()["name"]) == ("loaded", "a")
    assert answer.json()["phases"]["weights"]["duration_ms"] > 0
    assert names(call) == ["scripted", "a"]
    said = call.chat("hi", model="gpt-4o", max_tokens=4).json()
    assert said["model"] == "a"
    assert said["choices"][0]["message"]["content"]
    assert call.chat("say:still", model="scripted").status_code == 200
    left = call("POST", UNLOAD, json={"model": "a"}).json()
    assert [one["name"] for one in left["models"]] == ["scripted"]
    assert call.chat("hi", model="a").status_code == 404


def test_the_model_of_the_start_comes_back_with_its_adapters(call, state, tmp_path):
    with ZSEReader(locate_model("tiny", load_settings())) as reader:
        folder = write_adapter(tmp_path / "sql", spec_of(reader), size=1.0)
    state.options = replace(state.options, loras=(f"sql={folder}",))
    state.settings = replace(state.settings, serve=state.options)
    said = []
    for _ in range(2):
        assert call("POST", LOAD, json={"model": "tiny"}).status_code == 200
        assert names(call) == ["scripted", "tiny", "sql"]
        said.append(call.complete("Hello", model="sql", max_tokens=8, temperature=0).json())
        if len(said) < 2:
            assert call("POST", UNLOAD, json={"model": "tiny"}).status_code == 200
            assert names(call) == ["scripted"]
    assert said[0]["choices"] == said[1]["choices"]
    assert call("POST", LOAD, json={"model": "tiny", "name": "other"}).status_code == 200
    assert names(call) == ["scripted", "tiny", "sql", "other"]


def test_two_models_answer_as_each_does_alone(call):
    for name in ("a.zse", "b.zse"):
        call("POST", LOAD, json={"model": name})

    def ask(name):
        answer = call.chat("Hello", model=name, max_tokens=12, temperature=0)
        return answer.json()["choices"][0]["message"]["content"]

    alone = ask("a")
    assert ask("b") == ask("a") == alone


def test_without_waiting_the_load_is_told_until_it_is_over(call, state, runner):
    answer = call("POST", LOAD, json={"model": "a.zse", "wait": False})
    assert answer.status_code == 202
    load = state.one_of(ModelLoader).latest
    runner.run(load.wait())
    told = call("GET", "/api/models").json()
    assert told["load"]["status"] == "loaded"
    assert [one["name"] for one in told["models"]] == ["scripted", "a"]


def test_one_load_at_a_time_and_one_model_a_name(call, state, check_error, monkeypatch, runner):
    go_on = threading.Event()
    load = ModelLoader._load
    monkeypatch.setattr(ModelLoader, "_load", lambda *it: go_on.wait(60) and load(*it))
    call("POST", LOAD, json={"model": "a.zse", "wait": False})
    assert call("GET", "/api/models").json()["load"]["status"] == "loading"
    response = call("POST", LOAD, json={"model": "b.zse"})
    check_error(response, 409, code="load_in_progress")
    assert call.chat("say:meanwhile").status_code == 200
    go_on.set()
    runner.run(state.one_of(ModelLoader).latest.wait())
    response = call("POST", LOAD, json={"model": "b.zse", "name": "a"})
    check_error(response, 409, code="model_name_taken")


def test_a_broken_file_is_told_and_the_next_load_goes_on(call, check_error):
    response = call("POST", LOAD, json={"model": "broken.zse"})
    message = check_error(response, 409, code="model_load_failed")
    assert "/" not in message.replace("(path)", "")
    assert call("GET", "/api/models").json()["load"]["status"] == "failed"
    assert call("POST", LOAD, json={"model": "a.zse"}).status_code == 200


@pytest.mark.parametrize(
    "name", ["../a.zse", "/etc/passwd", "%2e%2e/a.zse", "s3://evil/a.zse", "http://10.0.0.1/a.zse"]
)
def test_what_is_in_no_place_is_not_found(call, check_error, name):
    response = call("POST", LOAD, json={"model": name})
    check_error(response, 404, param="model", code="model_not_found")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "model"),
        ({"model": "a\0.zse"}, "model"),
        ({"model": "x" * 600}, "model"),
        ({"model": "a.zse", "path": "/etc"}, "path"),
        ({"model": "a.zse", "quantization": "int1"}, "quantization"),
        ({"model": "a.zse", "max_context": -1}, "max_context"),
        ({"model": "a.zse", "aliases": ["x"] * 17}, "aliases"),
        ({"model": ["a.zse"]}, "model"),
    ],
)
def test_a_body_that_breaks_the_shape_is_refused_by_field(call, body, param):
    response = call("POST", LOAD, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert len(response.content) < 500


def test_unloading_waits_for_work_and_gives_up_in_time(call, state, runner, check_error):
    async def unload_beside_a_stream(**fields):
        stream = asyncio.create_task(call.send("POST", CHAT, json=chat("slow:25")))
        while not state.model.engine.active:
            await asyncio.sleep(0.005)
        asked = {"model": "scripted", **fields}
        unloaded = await call.send("POST", UNLOAD, json=asked)
        return unloaded, await stream

    busy, answer = runner.run(unload_beside_a_stream(timeout_seconds=0))
    check_error(busy, 409, code="model_busy")
    assert answer.status_code == 200
    assert call.chat("say:here").status_code == 200
    unloaded, answer = runner.run(unload_beside_a_stream())
    assert unloaded.json()["models"] == []
    assert answer.json()["choices"][0]["message"]["content"] == "x" * 25


def test_force_ends_work_in_flight(call, state, runner):
    call("POST", LOAD, json={"model": "a.zse"})

    async def force():
        body = {**chat("hi"), "model": "a", "max_tokens": 400, "ignore_eos": True}
        stream = asyncio.create_task(call.send("POST", CHAT, json=body))
        engine = state.models.find("a").model.engine
        while not engine.num_active:
            await asyncio.sleep(0.001)
        unloaded = await call.send("POST", UNLOAD, json={"model": "a", "force": True})
        return unloaded, await stream

    unloaded, answer = runner.run(force())
    assert [one["name"] for one in unloaded.json()["models"]] == ["scripted"]
    assert answer.status_code == 503


def test_without_a_model_there_is_503_and_a_load_mends_it(call, check_error):
    call("POST", UNLOAD, json={"model": "scripted"})
    response = call.chat("hi")
    message = check_error(response, 503, code="server_is_overloaded", kind="server_error")
    assert "POST /api/models/load" in message
    assert call("GET", "/health/ready").status_code == 503
    assert call("GET", "/health/live").status_code == 200
    assert call("POST", LOAD, json={"model": "tiny"}).status_code == 200
    assert call("GET", "/health/ready").status_code == 200
    assert names(call) == ["tiny"]


def test_an_unknown_model_cannot_be_unloaded(call, check_error):
    response = call("POST", UNLOAD, json={"model": "nope"})
    check_error(response, 404, param="model", code="model_not_found")


@pytest.mark.nightly
def test_memory_and_threads_come_back(call, state):
    def cycle():
        assert call("POST", LOAD, json={"model": "a.zse"}).status_code == 200
        call.chat("hi", model="a", max_tokens=4)
        core = state.models.find("a").model.engine._core
        assert call("POST", UNLOAD, json={"model": "a"}).status_code == 200
        return core

    for _ in range(12):  # until the arenas of the threads that come and go are there
        cycle()
    gc.collect()
    before, num_threads = resident_bytes(), threading.active_count()
    cores = [cycle() for _ in range(8)]
    assert all(core.stats().kv_blocks_used == 0 for core in cores)
    cores.clear()
    gc.collect()
    assert threading.active_count() <= num_threads + 1
    assert resident_bytes() < before * 1.05


class TestBudget:
    @pytest.fixture
    def options(self, options):
        return replace(options, models_gib=0.2, load=load_options(device="cpu", threads=1))

    def test_what_does_not_fit_is_refused_and_said_before_it_is_loaded(self, call, check_error):
        assert call("POST", LOAD, json={"model": "a.zse"}).status_code == 200
        memory = call("GET", "/api/models").json()["memory"]
        assert memory["limit_bytes"] == int(0.2 * 2**30)
        assert memory["used_bytes"] + memory["left_bytes"] == memory["limit_bytes"]
        fits = call("GET", "/api/models/check/Qwen/Qwen3-8B").json()
        assert fits["fits"] is False
        loaded = 1
        while (
            response := call("POST", LOAD, json={"model": "b.zse", "name": f"b{loaded}"})
        ).is_success:
            loaded += 1
            assert loaded < 20
        message = check_error(response, 409, code="insufficient_memory")
        assert "are left for models" in message
        assert len(names(call)) == 1 + loaded

    def test_idle_models_go_for_it_where_that_is_asked_the_least_recently_asked_first(
        self, call, state
    ):
        state.models.remove(state.models.find("scripted"))
        count = 0
        while call("POST", LOAD, json={"model": "a.zse", "name": f"m{count}"}).is_success:
            count += 1
        assert count >= 2
        call.chat("hi", model="m0", max_tokens=1)
        answer = call("POST", LOAD, json={"model": "b.zse", "evict": True}).json()
        assert answer["evicted"] == ["m1"]
        assert "m0" in names(call)

    def test_who_goes_is_chosen_where_requests_begin_their_uses(self, call, state, monkeypatch):
        chosen_by, choose = [], ModelLoader._hide_idle

        def watched(loader):
            chosen_by.append(threading.current_thread())
            return choose(loader)

        monkeypatch.setattr(ModelLoader, "_hide_idle", watched)
        state.models.remove(state.models.find("scripted"))
        count = 0
        while call("POST", LOAD, json={"model": "a.zse", "name": f"m{count}"}).is_success:
            count += 1
        assert call("POST", LOAD, json={"model": "b.zse", "evict": True}).json()["evicted"]
        assert set(chosen_by) == {threading.current_thread()}


def test_the_registry_is_filtered_by_category_and_memory(call):
    found = call("GET", "/api/models/registry?category=code&memory_gb=6").json()
    assert {one["category"] for one in found["models"]} == {"code"}
    assert all(one["memory_gb"]["int4"] <= 6 for one in found["models"])
    assert call("GET", "/api/models/registry").json()["total"] > found["total"] > 0


def test_a_search_finds_what_may_be_loaded_first(call):
    found = call("GET", "/api/models/search?q=a.zse").json()["models"]
    assert [(one["id"], one["source"], one["loadable"]) for one in found] == [
        ("a.zse", "place", True)
    ]
    assert call("GET", "/api/models/search?q=qwen3-8b").json()["models"][0]["loadable"] is False


def test_a_check_says_what_is_supported_loadable_and_fits(call, check_error):
    known = call("GET", "/api/models/check/Qwen/Qwen2.5-7B-Instruct").json()
    assert (known["supported"], known["loadable"], known["loaded"]) == (True, False, False)
    assert [one["quantization"] for one in known["estimates"]] == ["int4", "int8", "bf16"]
    own = call("GET", "/api/models/check/a.zse?max_context=256").json()
    assert (own["supported"], own["loadable"], own["context_tokens"]) == (True, True, 256)
    broken = call("GET", "/api/models/check/broken.zse").json()
    assert broken["supported"] is False
    assert broken["reason"]
    for name in ("..%2fa.zse", "sub%2f..%2fa.zse", "%00", "%2fetc%2fpasswd", "nope"):
        check_error(
            call("GET", f"/api/models/check/{name}"), 404, param="model", code="model_not_found"
        )


CHAT = "/v1/chat/completions"


def chat(text):
    return {"messages": [{"role": "user", "content": text}]}


@pytest.mark.parametrize("field", ["quantization", "quant"])
def test_the_scheme_has_two_spellings(call, field):
    answer = call("POST", LOAD, json={"model": "tiny", "name": "t4", field: "int4"})
    assert answer.json()["status"] == "loaded"
    models = call("GET", "/api/models").json()["models"]
    assert models[-1]["quantization"] == "int4"


def test_the_model_of_the_start_comes_back_under_its_name_and_aliases(options, make_caller, state):
    state.options = replace(options, served_model_name="house", model_alias="gpt-*")
    call = make_caller()
    call("POST", UNLOAD, json={"model": "scripted"})
    answer = call("POST", LOAD, json={"model": "house"})
    assert (answer.json()["name"], answer.json()["status"]) == ("house", "loaded")
    assert call.chat("hi", model="gpt-4o", max_tokens=1).json()["model"] == "house"


def test_a_loop_that_has_stopped_keeps_no_load_waiting(monkeypatch):
    """A server that ends runs nothing more that threads ask of its loop."""
    monkeypatch.setattr(loading, "_LOOK_SECONDS", 0.01)
    loader, loop = object.__new__(loading.ModelLoader), asyncio.new_event_loop()
    monkeypatch.setattr(loader, "_hide_idle", lambda: "idle", raising=False)
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(loader._hidden_idle, loop)
        try:
            assert asked.result(5) == "idle"
        finally:
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()
