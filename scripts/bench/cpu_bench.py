"""What the rows of the CPU's table are measured with: models, programs, short runs."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from control_group import ControlGroup, busy_neighbours
from cpu_models import ModelFiles, tiny_model
from peers.llama_cpp import batch_rate_of, decode_rate_of, find_or_build
from server_memory import memory_of_children
from timed_server import (
    START_LIMIT_SECONDS,
    TimedServer,
    complete,
    decode_speed,
    prompt_ids,
    zse_server,
)

from zse.deploy.measure.start import measure_start
from zse.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cpu_table import Figures
    from peers.llama_cpp import LlamaCpp

CONTEXT_TOKENS = 4096
MEMORY_TOKENS = (1920, 128)
"""Prompt and answer of a server whose memory is looked at."""
REST_SECONDS = 2.0
"""After which a server that nobody asks anything has given back what it does not need."""


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Tokens of the short runs."""

    decode_prompt: int = 32
    decode: int = 48
    prefill: int = 512


@dataclass(frozen=True, kw_only=True)
class Bench:
    """One run of the benchmark.

    Args:
        work: Folder of models and programs, kept.
        given_llama: Folder of llama.cpp's programs; None builds them.
        device: Of zse.
        threads: Of llama.cpp; zse finds out by itself.
        shares: CPU shares of all that is measured, beside 1024 of other work; 0 leaves them.
        lengths: Of the short runs.
    """

    work: Path
    given_llama: Path | None
    device: str
    threads: int
    shares: int = 0
    lengths: Lengths = field(default_factory=Lengths)

    @cached_property
    def llama(self) -> LlamaCpp:
        return find_or_build(self.given_llama, self.work, threads=self.threads)

    def llama_facts(self) -> dict[str, object]:
        """Return how llama.cpp was built; nothing where no row asked for it."""
        return self.llama.facts() if "llama" in self.__dict__ else {}

    @cached_property
    def models(self) -> ModelFiles:
        return ModelFiles(folder=self.work / "models", llama=lambda: self.llama)

    @contextlib.contextmanager
    def surroundings(self, *, cores: float = 0, neighbours: int = 0) -> Iterator[None]:
        """Have what is measured in a control group with its shares, a quota and busy neighbours."""
        if not (self.shares or cores or neighbours):
            yield
            return
        with contextlib.closing(ControlGroup()) as group, contextlib.ExitStack() as stack:
            group.set_shares(self.shares or 1024)
            group.set_quota(cores)
            stack.enter_context(group.joined())
            stack.enter_context(busy_neighbours(group, neighbours))
            yield

    # --- speed ----------------------------------------------------------------------------------

    def zse_decode(self, size: str, quant: str, *words: str, batch: int = 1) -> Figures:
        lengths = self.lengths
        found = self._zse(
            self.models.zse(size, quant), lengths.decode_prompt, lengths.decode, batch, *words
        )
        return {"tokens_per_second": found["decode_tokens_per_second"]}

    def zse_prefill(self, size: str, quant: str) -> Figures:
        found = self._zse(self.models.zse(size, quant), self.lengths.prefill, 2, 1)
        return {"tokens_per_second": found["prefill_tokens_per_second"]}

    def _zse(self, model: Path, prompt: int, output: int, batch: int, *words: str) -> Figures:
        sizes = ("--prompt-tokens", prompt, "--output-tokens", output, "--batch", batch)
        command = (sys.executable, "-m", "zse", "benchmark", model, "--json", *sizes)
        return json.loads(output_of([*map(str, command), "--device", self.device, *words]))

    def llama_decode(self, size: str, kind: str, *, threads: int = 0) -> Figures:
        lengths = self.lengths
        command = self.llama.with_threads(threads or self.threads).decode(
            self.models.gguf(size, kind), prompt=lengths.decode_prompt, output=lengths.decode
        )
        return {"tokens_per_second": decode_rate_of(output_of(command))}

    def llama_prefill(self, size: str, kind: str) -> Figures:
        command = self.llama.prefill(self.models.gguf(size, kind), prompt=self.lengths.prefill)
        return {"tokens_per_second": decode_rate_of(output_of(command))}

    def llama_batch(self, size: str, kind: str, batch: int) -> Figures:
        lengths = self.lengths
        command = self.llama.batch(
            self.models.gguf(size, kind),
            prompt=lengths.decode_prompt,
            output=lengths.decode,
            batch=batch,
        )
        return {"tokens_per_second": batch_rate_of(output_of(command))}

    # --- servers --------------------------------------------------------------------------------

    def zse_server(self, size: str, quant: str, *words: str) -> TimedServer:
        """Return our server with default settings, but for ``words``; of ``tiny``, the built-in."""
        is_tiny = size == "tiny"
        model = tiny_model(load_settings()) if is_tiny else self.models.zse(size, quant)
        return zse_server(model, device=self.device, arguments=words)

    def llama_server(self, size: str, kind: str, *words: str) -> TimedServer:
        return self.llama.server(self.models.gguf(size, kind), context=CONTEXT_TOKENS, more=words)


def first_token(server: TimedServer, vocabulary: int) -> Figures:
    """Start a server, ask for a token, stop it."""
    start = measure_start(server.subject(vocabulary), timeout_seconds=START_LIMIT_SECONDS)
    return {"first_token_ms": start.first_token_ms, "ready_ms": start.ready_ms}


def served_decode(server: TimedServer, vocabulary: int, tokens: int) -> Figures:
    """Start a server and decode over HTTP."""

    def rate(port: int) -> Figures:
        speed = decode_speed(port, server, vocabulary, tokens=tokens, num_pairs=1)
        return {"tokens_per_second": speed}

    return while_served(server, vocabulary, rate)


def used_memory(server: TimedServer, vocabulary: int) -> Figures:
    """Start a server, use 2,048 tokens of its cache, return what it holds when it rests."""
    prompt, answer = MEMORY_TOKENS

    def held(port: int) -> Figures:
        complete(port, server, prompt_ids(prompt, vocabulary, 1), answer)
        time.sleep(REST_SECONDS)
        return memory_of_children()

    return while_served(server, vocabulary, held)


def while_served(server: TimedServer, vocabulary: int, use: Callable[[int], Figures]) -> Figures:
    """Return what ``use`` finds of a started server, given its port."""
    found: dict[str, float] = {}
    measure_start(
        server.subject(vocabulary),
        timeout_seconds=START_LIMIT_SECONDS,
        then=lambda port: found.update(use(port)),
    )
    return found


def output_of(command: list[str]) -> str:
    """Run a command; return what it wrote.

    Raises:
        SystemExit: It failed; its last words are quoted.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout
