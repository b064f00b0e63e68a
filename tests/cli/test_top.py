"""`zse top`: what a server's statistics look like, and what is said where there are none."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from zse.cli import run
from zse.cli.running import StatsClient, UnreachableError
from zse.cli.top_view import lines_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MODEL = {
    "name": "tiny", "is_default": True, "device": "cpu", "quantization": "int8", "max_context": 2048,
    "running": 3, "waiting": 1, "max_running": 4, "kv_usage": 0.5, "kv_blocks": 128,
    "prompt_tokens": 700, "generated_tokens": 90, "computed_tokens": 300, "prefix_hit_tokens": 100,
    "preemptions": 2, "draft_tokens": 50, "accepted_draft_tokens": 20,
}  # fmt: skip
STATS: dict[str, Any] = {
    "status": "ready", "uptime_seconds": 3725.0, "in_flight": 4, "max_in_flight": 8,
    "cpu": {"load_average": 1.5, "cores": 2},
    "memory": {"total_bytes": 8 << 30, "available_bytes": 6 << 30, "process_bytes": 1 << 30},
    "gpu": {"gpus": []},
    "models": [MODEL],
}  # fmt: skip


@pytest.fixture
def serve() -> Iterator[Callable[[int, str], str]]:
    """Return what answers every request with a status and a text, and where it is."""
    servers = []

    def start(status: int, text: str) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_view_has_queue_cache_tokens_and_speeds() -> None:
    later = {**STATS, "models": [{**MODEL, "prompt_tokens": 900, "generated_tokens": 140}]}
    text = "\n".join(lines_of("http://here", later, STATS, 2.0))
    for words in (
        "up 1 h 2 min", "4 of 8 at most", "2.0 GiB of 8.0 GiB", "3 of 4, 1 waiting, 2 preempted",
        "50% of 128 blocks", "100 in and 25 out a second; 900 in, 140 out in all",
        "25% of prompts' tokens", "40% of 50 accepted",
    ):  # fmt: skip
        assert words in text, text


def test_a_model_that_came_since_has_no_speed_yet() -> None:
    before = {**STATS, "models": []}
    text = "\n".join(lines_of("http://here", STATS, before, 2.0))
    assert "tokens   700 in, 90 out in all" in text


def test_a_model_named_by_a_stranger_cannot_command_the_terminal() -> None:
    stats = {**STATS, "models": [{**MODEL, "name": "\x1b]0;x\x07"}]}
    assert "\x1b" not in "\n".join(lines_of("http://here", stats, None, 0.0))


def test_without_a_terminal_it_looks_once(
    serve: Callable[[int, str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    url = serve(200, json.dumps(STATS))
    assert run(["top", f"{url}/v1"]) == 0
    assert "tiny (default)   int8 on cpu" in capsys.readouterr().out
    assert run(["top", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == STATS


@pytest.mark.parametrize(
    ("status", "text", "words"),
    [
        (401, "{}", "need a key"),
        (503, '{"error": {"message": "loading"}}', "is not ready: loading"),
        (503, '{"error": "loading"}', "answered 503"),
        (200, "[]", "not with statistics of zse"),
        (404, "<html>", "answered 404"),
    ],
)
def test_what_is_no_answer_is_said(
    serve: Callable[[int, str], str], status: int, text: str, words: str
) -> None:
    client = StatsClient(serve(status, text))
    with pytest.raises(UnreachableError, match=words):
        client.stats()
    client.close()


def test_where_nobody_answers_the_exit_code_is_that_of_a_server(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["top", "http://127.0.0.1:9"]) == 8
    assert "zse serve" in capsys.readouterr().err
