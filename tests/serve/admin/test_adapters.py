"""Adapters come and go over the API: names, places, work in flight."""

import asyncio
from dataclasses import replace

import pytest
from random_adapters import write_adapter

from zse.options import load_options
from zse.serve.adapters import as_model
from zse.serve.ledger import Ledger
from zse.serve.state import AppState
from zse.server_options import ServeOptions
from zse.settings import load_settings

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
PROMPT = "The quick brown fox jumps over the lazy dog"
GREEDY = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}


@pytest.fixture(scope="module")
def places(tmp_path_factory, loaded):
    """A folder that adapters may come from, beside one that they may not."""
    root = tmp_path_factory.mktemp("adapters")
    write_adapter(root / "allowed" / "one", loaded.spec, seed=1, size=1.0)
    write_adapter(root / "allowed" / "two", loaded.spec, seed=2, size=1.0)
    write_adapter(root / "elsewhere" / "three", loaded.spec, seed=3)
    (root / "allowed" / "link").symlink_to(root / "elsewhere" / "three")
    half = root / "allowed" / "half"
    half.mkdir()
    (half / "adapter_config.json").symlink_to(root / "elsewhere" / "three" / "adapter_config.json")
    (half / "adapter_model.safetensors").write_bytes(b"")
    return root


@pytest.fixture
def state(places):
    options = ServeOptions(lora_places=str(places / "allowed"), load=load_options(max_loras=2))
    return AppState(
        ledger=Ledger(), options=options, settings=replace(load_settings(), serve=options)
    )


@pytest.fixture
def call(real, loaded):
    yield real
    adapters = loaded.engine.adapters(load_options(max_loras=2).lora)
    for adapter in adapters:
        adapters.remove(adapter.name)


def load(call, places, name="one", folder="allowed/one", **more):
    return call("POST", LOAD, json={"lora_name": name, "lora_path": str(places / folder), **more})


def said(call, model):
    answer = call.complete(PROMPT, model=model, **GREEDY)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == model
    return answer.json()["choices"][0]["text"]


def test_an_adapter_is_loaded_answers_by_name_and_goes(call, places, check_error):
    answer = load(call, places)
    assert answer.status_code == 200, answer.text
    assert answer.text == "Success: LoRA adapter 'one' added successfully."
    listed = {one["id"]: one for one in call("GET", "/v1/models").json()["data"]}
    assert list(listed) == ["bytes", "one"]
    assert listed["one"]["parent"] == "bytes"
    assert "parent" not in listed["bytes"]
    assert call("GET", "/v1/models/one").json()["parent"] == "bytes"
    assert said(call, "one") != said(call, "bytes")
    answer = call("POST", UNLOAD, json={"lora_name": "one", "lora_int_id": 3})
    assert answer.text == "Success: LoRA adapter 'one' removed successfully."
    gone = call.complete(PROMPT, model="one")
    check_error(gone, 404, param="model", code="model_not_found")
    check_error(call("POST", UNLOAD, json={"lora_name": "one"}), 404, code="model_not_found")


def test_requests_for_several_adapters_answer_together_as_alone(call, places):
    for name in ("one", "two"):
        assert load(call, places, name, f"allowed/{name}").status_code == 200
    names = ["one", "bytes", "two"]
    alone = {name: said(call, name) for name in names}
    assert len(set(alone.values())) == 3

    async def together():
        bodies = [{"prompt": PROMPT, "model": name, **GREEDY} for name in names * 3]
        asked = [call.send("POST", "/v1/completions", json=body) for body in bodies]
        return [answer.json() for answer in await asyncio.gather(*asked)]

    for answer in call.runner.run(together()):
        assert answer["choices"][0]["text"] == alone[answer["model"]]


@pytest.mark.parametrize(
    "folder",
    ["elsewhere/three", "allowed/../elsewhere/three", "allowed/link", "allowed/half", "allowed/no"],
)
def test_a_folder_outside_the_places_is_refused_whether_or_not_it_exists(
    call, places, folder, check_error
):
    message = check_error(
        load(call, places, folder=folder), 404, param="lora_path", code="adapter_not_found"
    )
    assert "in no folder that this server may load adapters from" in message
    assert str(places) not in message


def test_without_places_nothing_is_loaded(call, state, places, check_error):
    state.options = replace(state.options, lora_places="")
    check_error(load(call, places), 404, param="lora_path", code="adapter_not_found")


@pytest.mark.parametrize("name", ["one", "bytes", "default"])
def test_a_name_that_is_taken_is_refused(call, places, name, check_error):
    assert load(call, places).status_code == 200
    check_error(load(call, places, name, "allowed/two"), 409, code="model_name_taken")


def test_there_are_no_more_than_was_allowed(call, places, check_error):
    for name in ("one", "two"):
        assert load(call, places, name, f"allowed/{name}").status_code == 200
    assert "as many as --max-loras allows" in check_error(load(call, places, "three"), 400)


def test_what_is_unloaded_meanwhile_ends_its_answers(call, places):
    assert load(call, places).status_code == 200
    expected = said(call, "one")

    async def asked():
        body = {"prompt": PROMPT, "model": "one", **GREEDY}
        running = asyncio.create_task(call.send("POST", "/v1/completions", json=body))
        engine = call.app_state.model.engine
        while not (engine.num_active or running.done()):
            await asyncio.sleep(0.001)
        gone = await call.send("POST", UNLOAD, json={"lora_name": "one"})
        return gone, await running

    gone, answer = call.runner.run(asked())
    assert gone.status_code == 200
    assert answer.json()["choices"][0]["text"] == expected


def test_a_model_that_is_unloaded_takes_its_adapters_along(state, call, places):
    assert load(call, places).status_code == 200
    (entry,) = state.models
    state.models.hide(entry)
    assert state.models.answering("one") is None
    state.models.show(entry)
    assert state.models.answering("one").adapter is not None
    state.models.remove(entry)
    assert not state.models.has("one")


def test_an_adapter_has_a_fingerprint_of_its_own(call, loaded, places):
    assert load(call, places).status_code == 200
    (adapter,) = loaded.engine.adapters(load_options().lora)
    model = as_model(loaded, adapter)
    assert model.fingerprint != loaded.fingerprint
    assert (model.name, model.parent, model.resources) == ("one", "bytes", ())


def test_a_web_page_of_another_site_loads_nothing(call, places):
    answer = call(
        "POST",
        LOAD,
        json={"lora_name": "one", "lora_path": str(places / "allowed/one")},
        headers={"Origin": "https://elsewhere.example"},
    )
    assert answer.status_code == 403
