"""A server whose engine makes a token for every running answer each 20 ms, and costs nothing else.

What a token of it costs is what the server costs: from the engine's thread to the socket. A child
of ``http_cost.py``; it runs on any tree of the project that is first on the path. With a number of
streams and of seconds there is no server: it prints what the engine alone costs.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from zse.engine.async_engine import AsyncEngine
from zse.engine.request import TokenEvent
from zse.options import load_options
from zse.serve.start import start
from zse.serve.state import AppState, LoadedModel
from zse.server_options import ServeOptions
from zse.settings import load_settings

STEP_SECONDS = 0.02
MAX_CONTEXT = 1 << 20
MAX_RUNNING = 512
WORDS = tuple(f" word{number}" for number in range(256))


class WordTokenizer:
    """One word a token."""

    def encode(self, text: str, **_: Any) -> list[int]:
        return [len(word) for word in text.split()]

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(WORDS[token_id] for token_id in ids)

    def token_text(self, token_id: int) -> str:
        return WORDS[token_id]

    def token_bytes(self, token_id: int) -> bytes:
        return WORDS[token_id].encode()

    special_ids: frozenset[int] = frozenset()
    facts = SimpleNamespace(kind="bytes", strips_space=False)


class PlainTemplate:
    """The words of the last message."""

    def render(self, messages: list[dict[str, Any]], **_: Any) -> str:
        return str(messages[-1]["content"])


class PacedCore:
    """What ``AsyncEngine`` needs of an engine: every request gets a token a step, to its last."""

    def __init__(self) -> None:
        self.options = SimpleNamespace(max_sequences=MAX_RUNNING)
        self.runner = SimpleNamespace()
        self._left: dict[str, int] = {}
        self._next = time.perf_counter()

    @property
    def has_work(self) -> bool:
        return bool(self._left)

    patience_seconds = 0.0

    def watch_readers(self, _are_busy: Any) -> None:
        """Put nothing off."""

    def prepare_idle(self) -> bool:
        """Prepare nothing."""
        return False

    def check(self, *_: Any) -> None:
        """Take everything."""

    def add_request(self, request: Any) -> None:
        self._left[request.request_id] = request.params.max_tokens

    def abort(self, request_id: str, index: int | None = None) -> None:  # noqa: ARG002
        self._left.pop(request_id, None)

    def stats(self) -> SimpleNamespace:
        names = "kv_usage kv_blocks_total prefix_query_tokens prefix_hit_tokens preemptions steps"
        zeros = dict.fromkeys([*names.split(), "computed_tokens", "num_waiting"], 0)
        return SimpleNamespace(num_running=len(self._left), **zeros)

    def step(self) -> list[TokenEvent]:
        now = time.perf_counter()
        self._next = max(self._next + STEP_SECONDS, now)
        time.sleep(self._next - now)
        events = []
        for request_id, left in list(self._left.items()):
            self._left[request_id] = left - 1
            if left == 1:
                del self._left[request_id]
            reason = "length" if left == 1 else None
            events.append(TokenEvent(request_id, 0, left % 256, finish_reason=reason))
        return events

    def rest(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is open."""


def load(state: AppState) -> LoadedModel:  # noqa: ARG001
    tokenizer = WordTokenizer()
    return LoadedModel(
        name="paced",
        engine=AsyncEngine(PacedCore(), tokenizer),  # type: ignore[arg-type]
        tokenizer=tokenizer,  # type: ignore[arg-type]
        template=PlainTemplate(),  # type: ignore[arg-type]
        max_context=MAX_CONTEXT,
        vocab_size=len(WORDS),
        fingerprint="paced",
        created=1,
    )


def print_cost_of_pacing(num_streams: int, seconds: float) -> None:
    """Print the CPU microseconds a token of the engine: its sleep, its waking up, its events."""
    core = PacedCore()
    num_steps = max(int(seconds / STEP_SECONDS), 1)
    params = SimpleNamespace(max_tokens=num_steps + 1)
    for number in range(num_streams):
        core.add_request(SimpleNamespace(request_id=str(number), params=params))
    before = time.process_time_ns()
    for _ in range(num_steps):
        core.step()
    print((time.process_time_ns() - before) / 1000 / (num_steps * num_streams))


def main() -> int:
    if len(sys.argv) == 3:
        print_cost_of_pacing(int(sys.argv[1]), float(sys.argv[2]))
        return 0
    options = ServeOptions(
        model="paced",
        port=0,
        log_level="info",
        log_format="json",
        load=load_options(max_sequences=MAX_RUNNING),
    )
    return start(replace(load_settings(), serve=options), load)


if __name__ == "__main__":
    sys.exit(main())
