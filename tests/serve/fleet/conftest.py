"""Fleets of small models in this process."""

import shutil
from dataclasses import replace

import pytest
from bytes_model import write_checkpoint

from zse.engine.llm import LLM
from zse.engine.request import SamplingParams
from zse.format import convert_model
from zse.options import load_options
from zse.serve.fleet.fleet import Fleet
from zse.serve.fleet.roster import with_start_model
from zse.serve.ledger import Ledger
from zse.serve.state import AppState
from zse.server_options import FleetOptions, ServeOptions
from zse.settings import load_settings

NAMES = tuple("abcdefgh")
PROMPT = "Hello"
NUM_TOKENS = 8
LOAD = {"device": "cpu", "num_blocks": 64, "max_context": 512, "threads": 1}


@pytest.fixture(scope="session")
def model_files(tmp_path_factory):
    """Files of eight models, by name; conversions take time, so there are two of each."""
    folder = tmp_path_factory.mktemp("fleet")
    for seed, (name, twin) in enumerate(zip(NAMES[:4], NAMES[4:], strict=True)):
        checkpoint = folder / f"checkpoint-{name}"
        checkpoint.mkdir()
        write_checkpoint(checkpoint, seed)
        convert_model(checkpoint, folder / f"{name}.zse", quantization="bf16")
        shutil.copy(folder / f"{name}.zse", folder / f"{twin}.zse")
    return {name: folder / f"{name}.zse" for name in NAMES}


@pytest.fixture(scope="session")
def expected(model_files):
    """What each model says to the prompt when it is alone."""
    params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True)
    said = {}
    for name, path in model_files.items():
        with LLM(path, **LOAD) as llm:
            said[name] = llm.generate(PROMPT, params)[0].text
    assert len(set(said.values())) == len(NAMES) / 2
    return said


@pytest.fixture
def folder(tmp_path, model_files):
    """A folder of the eight models, of the test's own."""
    for name, path in model_files.items():
        shutil.copy(path, tmp_path / f"{name}.zse")
    return tmp_path


@pytest.fixture
def fleet_options(folder):
    return FleetOptions(models=(str(folder),), max_resident=1, model_turn=0.01, model_wait=60)


@pytest.fixture
def state(fleet_options):
    options = ServeOptions(fleet=fleet_options, load=load_options(**LOAD))
    settings = with_start_model(replace(load_settings(), serve=options))
    state = AppState(ledger=Ledger(), options=settings.serve, settings=settings)
    state.fleet = Fleet(state)
    state.phase = "ready"
    yield state
    for entry in state.models:
        entry.model.close()


class FleetCaller:
    """Asks the models of a fleet."""

    def __init__(self, call) -> None:
        self.call = call

    def body(self, name, **fields):
        asked = {"max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True, **fields}
        return {"prompt": PROMPT, "model": name, **asked}

    async def send(self, name, **fields):
        return await self.call.send("POST", "/v1/completions", json=self.body(name, **fields))

    def ask(self, name, **fields):
        return self.call.runner.run(self.send(name, **fields))

    def statuses(self):
        """Return where each model is."""
        told = self.call("GET", "/v1/models").json()["data"]
        return {one["id"]: one["status"] for one in told}

    def here(self):
        """Return the names of the models that are there."""
        return [name for name, status in self.statuses().items() if status == "loaded"]


@pytest.fixture
def call(caller_class, state, runner):
    return caller_class(state, runner)


@pytest.fixture
def fleet(call):
    return FleetCaller(call)
