"""Servers for the tests: an application in this process, and real ones as child processes."""

import asyncio
import contextlib
import importlib.util
import json
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from bytes_model import bytes_model, loaded

from zse.serve.app import create_app
from zse.serve.ledger import Ledger
from zse.serve.state import AppState
from zse.settings import subprocess_environment
from zse.text.dialect import Dialect
from zse.text.reasoning.controls import ThinkingControls

__all__ = ["bytes_model", "loaded"]

SCRIPT = Path(__file__).parent / "scripted_server.py"
ROOT = str(Path(__file__).parents[2])
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def import_script(path: Path):
    """Import a server's script as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def scripted():
    """The module with the scripted engine."""
    return import_script(SCRIPT)


@pytest.fixture(scope="session")
def paced():
    """The module with the real engine over a model that takes a set time."""
    return import_script(SCRIPT.with_name("paced_server.py"))


class ServerChild:
    """A server process, its log, and clients for it."""

    def __init__(self, command: list[str], **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stderr=subprocess.PIPE,
            text=True,
            env=subprocess_environment(PYTHONPATH=ROOT, OMP_NUM_THREADS="1", **environment),
        )
        self.lines: list[dict] = []
        self.raw: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.http = httpx.Client(timeout=60)
        try:
            self.port = self.wait_for_line("listening")["port"]
        except BaseException:
            self.close()
            raise
        self.url = f"http://127.0.0.1:{self.port}"
        self.http.base_url = self.url

    def _read(self) -> None:
        for line in self.process.stderr:
            with self._changed:
                self.raw.append(line)
                with contextlib.suppress(ValueError):
                    self.lines.append(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def wait_for_line(self, message: str, seconds: float = 120) -> dict:
        """Return the first log line with this message."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while True:
                for line in self.lines:
                    if line["message"] == message:
                        return line
                over = time.monotonic() > deadline or not self._reader.is_alive()
                assert not over, f"no {message!r} in the log:\n" + "".join(self.raw)
                self._changed.wait(0.2)

    def gauge(self, name: str) -> float:
        """Return one metric, over all models."""
        lines = (line.rpartition(" ") for line in self.http.get("/metrics").text.splitlines())
        values = [float(value) for key, _, value in lines if key.partition("{")[0] == name]
        assert values, f"no metric {name}"
        return sum(values)

    def wait_for_gauge(self, name: str, value: float) -> None:
        """Wait until a metric has a value."""
        deadline = time.monotonic() + 60
        while self.gauge(name) != value:
            assert time.monotonic() < deadline, f"{name} is {self.gauge(name)}, not {value}"
            time.sleep(0.02)

    def openai(self, **options):
        """Return an OpenAI client for this server."""
        import openai

        options.setdefault("max_retries", 0)
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="unused", timeout=60, **options)

    def anthropic(self, **options):
        """Return an Anthropic client for this server."""
        import anthropic

        options.setdefault("max_retries", 0)
        return anthropic.Anthropic(base_url=self.url, api_key="unused", timeout=60, **options)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Signal the process and return its exit code."""
        self.process.send_signal(number)
        return self.process.wait(60)

    def close(self) -> None:
        self.http.close()
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stderr.close()


@pytest.fixture
def start_server():
    """Start scripted servers with given flags; they end with the test."""
    children = []

    def start(*flags: str) -> ServerChild:
        children.append(ServerChild([str(SCRIPT), *flags]))
        return children[-1]

    yield start
    for child in children:
        child.close()


@pytest.fixture(scope="session")
def server():
    """One scripted server for the tests that leave it as it was."""
    child = ServerChild([str(SCRIPT)])
    child.wait_for_line("ready")
    yield child
    child.close()


@pytest.fixture
def client(server):
    """An OpenAI client for the shared server."""
    with server.openai() as client:
        yield client


@pytest.fixture
def start_command():
    """Start any Python command line that ends up as a server."""
    children = []

    def start(*command: str, **environment: str) -> ServerChild:
        children.append(ServerChild(list(command), **environment))
        return children[-1]

    yield start
    for child in children:
        child.close()


@pytest.fixture(scope="session")
def server_class():
    """For modules that start a server of their own."""
    return ServerChild


class Caller:
    """Calls an application in this process."""

    def __init__(self, state, runner, **options) -> None:
        self.app = create_app(state, **options)
        self.app_state = state
        self.runner = runner

    def __call__(self, method, path, **options) -> httpx.Response:
        return self.runner.run(self.send(method, path, **options))

    async def send(self, method, path, **options) -> httpx.Response:
        """Ask from within the loop, beside other requests."""
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, **options)

    @property
    def routes(self):
        """The routes inside every wrapper."""
        app = self.app
        while hasattr(app, "app"):
            app = app.app
        return app.routes

    def chat(self, text="Hello", headers=None, **fields):
        body = {"messages": [{"role": "user", "content": text}], **fields}
        return self("POST", CHAT, json=body, headers=headers)

    def complete(self, prompt="Hello", **fields):
        return self("POST", COMPLETIONS, json={"prompt": prompt, **fields})


@pytest.fixture(scope="session")
def caller_class():
    """For tests with a state of their own."""
    return Caller


@pytest.fixture
def state():
    return AppState(ledger=Ledger())


@pytest.fixture
def runner():
    """One event loop for a test: the server has one for its life."""
    with asyncio.Runner() as runner:
        yield runner


def serve_model(state, model):
    """Let one model answer, and no other."""
    for entry in state.models:
        state.models.remove(entry)
    state.models.put(model, state.options.aliases)
    state.phase = "ready"


@pytest.fixture
def loading(state, runner):
    return Caller(state, runner)


@pytest.fixture
def call(state, runner, scripted):
    serve_model(state, scripted.scripted_model())
    return Caller(state, runner)


@pytest.fixture(scope="session")
def check_error():
    """Check an error response; returns its message."""
    return _check_error


def _check_error(response, status, *, param=None, code=None, kind="invalid_request_error"):
    """The body is OpenAI's error object: four keys, their types, nothing else."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert list(body) == ["error"]
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert error["type"] == kind
    assert error["param"] == param
    assert error["code"] == code
    return error["message"]


@pytest.fixture
def make_caller(state, runner, scripted):
    """Make a caller of an application with other options."""

    def make(model=None, **options):
        serve_model(state, model or scripted.scripted_model())
        return Caller(state, runner, **options)

    return make


@pytest.fixture
def real(make_caller, loaded):
    """Calls an application in this process over a real engine."""
    return make_caller(loaded)


class ThinkingTemplate:
    """A template that keeps what it was given, for a model that thinks before it answers."""

    def __init__(self) -> None:
        self.messages, self.variables = None, None

    def render(self, messages, tools=None, add_generation_prompt=True, **kwargs):
        self.messages, self.variables = messages, kwargs
        return "say:<think>Hm.</think>\n\nParis"


@pytest.fixture
def thinker(make_caller, scripted):
    """Make a caller of a model that thinks, and its template."""

    def make(**controls):
        template = ThinkingTemplate()
        dialect = Dialect(reasoning="think", thinking=ThinkingControls(**controls))
        model = replace(scripted.scripted_model(), template=template, dialect=dialect)
        return make_caller(model), template

    return make


@pytest.fixture(scope="module")
def tiny(server_class):
    """The real server, started as an image starts it."""
    child = server_class(["-m", "zse.serve", "serve", "tiny", "--port", "0", "--device", "cpu"])
    try:
        child.wait_for_line("ready", seconds=300)
        yield child
    finally:
        child.close()
