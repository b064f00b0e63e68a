"""One cold start: a fresh process, from its first instruction to the first streamed token."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from dataclasses import field
from typing import IO, TYPE_CHECKING, Any, Literal

from zse.deploy.errors import ColdStartError
from zse.records import record
from zse.settings import subprocess_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

HOST = "127.0.0.1"
_POLL_SECONDS = 0.002
_STOP_SECONDS = 40.0
_LOG_BYTES = 3000
_QUESTION: dict[str, object] = {
    "model": "default",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "max_tokens": 4,
    "temperature": 0,
    "stream": True,
}


def _has_text(event: Mapping[str, Any]) -> bool:
    """Whether a chat's event brings text: the first names the role only."""
    choice = (event.get("choices") or [{}])[0]
    return bool(choice.get("delta", {}).get("content") or choice.get("finish_reason"))


@record
class Dialogue:
    """How a server is asked whether it is there, and for its first token."""

    live_path: str = "/health/live"
    """Empty: the server has none."""
    ready_path: str = "/health/ready"
    """Answers 200 once questions are served; ours tells its phases there."""
    path: str = "/v1/chat/completions"
    question: Mapping[str, object] = field(default_factory=_QUESTION.copy)
    """Body of a request whose answer is streamed."""
    brings_text: Callable[[Mapping[str, Any]], bool] = _has_text
    """Whether an event of the stream holds text, or the end of an answer without any."""
    asks: Literal["ready", "at-once"] = "ready"
    """When the question is put: once the server says that it is ready; or as soon as it listens,
    again and again where it is refused for the time being. Ready is then asked for afterwards."""


@record
class Subject:
    """Something that can be started again and again."""

    name: str
    how: str
    """How it is started: ``process``, or the name of a runner."""
    command: Callable[[int], list[str]]
    """Port -> a command that serves there."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of the command; the port is passed as PORT too."""
    dialogue: Dialogue = Dialogue()
    is_told_when: bool = False
    """Whether the process hears when it was started, which is finer than what the kernel says."""


@record
class LedgerPhase:
    """One phase, as the server itself recorded it."""

    end_ms: float
    """Since its process began."""
    duration_ms: float


@record
class Start:
    """One cold start, in ms since the command was run."""

    live_ms: float
    """It answered that it lives; 0 where it has no such answer."""
    ready_ms: float
    """It answered that it is ready."""
    first_token_ms: float
    """The first text of a streamed answer arrived."""
    ledger: Mapping[str, LedgerPhase]
    """The server's own record."""

    @property
    def milestones(self) -> dict[str, float]:
        return {"live": self.live_ms, "ready": self.ready_ms, "first-token": self.first_token_ms}


def measure_start(
    subject: Subject, *, timeout_seconds: float, then: Callable[[int], None] | None = None
) -> Start:
    """Start once, wait, ask once, call ``then`` with the server's port, stop.

    Raises:
        ColdStartError: The process ended, or did not answer in time; its last words are quoted.
    """
    port = _free_port()
    with tempfile.TemporaryFile() as log:
        variables = {**subject.environment, "PORT": str(port)}
        command = subject.command(port)
        if subject.is_told_when:
            variables["ZSE_START_TIME_NS"] = str(time.time_ns())
        began = time.perf_counter()
        with _running(command, variables, log) as process:
            watch = _Watch(
                process=process, port=port, began=began, timeout_seconds=timeout_seconds, log=log
            )
            dialogue = subject.dialogue
            live_ms = watch.wait(dialogue.live_path) if dialogue.live_path else 0.0
            if dialogue.asks == "at-once":
                first_token_ms = watch.ask_at_once(dialogue)
                ready_ms = watch.wait(dialogue.ready_path)
            else:
                ready_ms = watch.wait(dialogue.ready_path)
                first_token_ms = watch.ask(dialogue)
            ledger = watch.ledger(dialogue.ready_path)
            if then is not None:
                then(port)
    return Start(live_ms=live_ms, ready_ms=ready_ms, first_token_ms=first_token_ms, ledger=ledger)


@record
class _Watch:
    """A process with a stopwatch."""

    process: subprocess.Popen[bytes]
    port: int
    began: float
    """By ``time.perf_counter``, in seconds."""
    timeout_seconds: float
    log: IO[bytes]

    def wait(self, path: str) -> float:
        """Return the ms until a path answers 200."""
        while self._elapsed_ms() < self.timeout_seconds * 1000:
            try:
                with self._request("GET", path) as answer:
                    if answer.status == http.HTTPStatus.OK:
                        return self._elapsed_ms()
            except (OSError, http.client.HTTPException):
                pass
            if self.process.poll() is not None:
                raise self._failure(f"the server ended with code {self.process.returncode}")
            time.sleep(_POLL_SECONDS)
        raise self._failure(f"{path} was not answered with 200 in {self.timeout_seconds:g} s")

    def ask(self, dialogue: Dialogue) -> float:
        """Return the ms until the first text of a streamed answer."""
        body = json.dumps(dialogue.question).encode()
        try:
            with self._request("POST", dialogue.path, body) as answer:
                if answer.status != http.HTTPStatus.OK:
                    text = answer.read(500).decode(errors="replace")
                    raise self._failure(f"the question was answered with {answer.status}: {text}")
                return self._first_text(answer, dialogue)
        except (OSError, http.client.HTTPException) as error:
            raise self._failure(f"the question was not answered: {error}") from error

    def ask_at_once(self, dialogue: Dialogue) -> float:
        """Ask from the first moment on; return the ms until the first text of a streamed answer."""
        body = json.dumps(dialogue.question).encode()
        while self._elapsed_ms() < self.timeout_seconds * 1000:
            try:
                with self._request("POST", dialogue.path, body) as answer:
                    if answer.status == http.HTTPStatus.OK:
                        return self._first_text(answer, dialogue)
                    if answer.status != http.HTTPStatus.SERVICE_UNAVAILABLE:
                        text = answer.read(500).decode(errors="replace")
                        what = f"the question was answered with {answer.status}: {text}"
                        raise self._failure(what)
            except (OSError, http.client.HTTPException):
                pass
            if self.process.poll() is not None:
                raise self._failure(f"the server ended with code {self.process.returncode}")
            time.sleep(_POLL_SECONDS)
        raise self._failure(f"the question was not taken in {self.timeout_seconds:g} s")

    def _first_text(self, answer: http.client.HTTPResponse, dialogue: Dialogue) -> float:
        for line in answer:
            if line.startswith(b"data: {") and dialogue.brings_text(json.loads(line[6:])):
                elapsed_ms = self._elapsed_ms()
                answer.read()
                return elapsed_ms
        raise self._failure("the stream ended without a token")

    def ledger(self, path: str) -> dict[str, LedgerPhase]:
        """Return the server's own record of its start; empty where it keeps none."""
        try:
            with self._request("GET", path) as answer:
                phases: dict[str, Any] = json.loads(answer.read()).get("phases", {})
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._failure(f"the ledger could not be read: {error}") from error
        return {
            name: LedgerPhase(end_ms=phase["end_ms"], duration_ms=phase["duration_ms"])
            for name, phase in phases.items()
        }

    def _elapsed_ms(self) -> float:
        return (time.perf_counter() - self.began) * 1000

    @contextmanager
    def _request(
        self, method: str, path: str, body: bytes | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=self.timeout_seconds)
        try:
            connection.request(method, path, body, {"content-type": "application/json"})
            yield connection.getresponse()
        finally:
            connection.close()

    def _failure(self, what: str) -> ColdStartError:
        self.log.seek(0)
        words = self.log.read()[-_LOG_BYTES:].decode(errors="replace").strip()
        return ColdStartError(f"{what}; its last words:\n{words}" if words else what)


@contextmanager
def _running(
    command: list[str], variables: Mapping[str, str], log: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command; ask it to end at the end, as an orchestrator would, and then make it."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=subprocess_environment(**variables),
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port
