"""Servers of their own: keys from their first start, and what is left when they are killed."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from zse.serve.access.key_file import KeyFile
from zse.serve.access.keys import make_key
from zse.serve.audit.files import AuditFiles
from zse.serve.audit.query import Wanted, find
from zse.settings import subprocess_environment

SCRIPT = str(Path(__file__).parents[1] / "scripted_server.py")
KEY = re.compile(r"zse-[A-Za-z0-9_-]{43}")
CHAT = "/v1/chat/completions"


def audited(home):
    return {entry.request_id for entry in find(AuditFiles(home / "audit"), Wanted())}


def body(text):
    return {"messages": [{"role": "user", "content": text}]}


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def start(start_command, home):
    def start(**environment):
        server = start_command(SCRIPT, ZSE_HOME=str(home), **environment)
        server.wait_for_line("ready")
        return server

    return start


def test_a_server_for_other_machines_prints_its_first_key_once_and_logs_it_never(start):
    server = start(ZSE_HOST="0.0.0.0")
    assert server.http.get("/health/ready").status_code == 200
    assert server.http.get("/v1/models").status_code == 401
    (secret,) = KEY.findall("".join(server.raw))
    assert secret not in json.dumps(server.lines)
    headers = {"authorization": f"Bearer {secret}"}
    assert server.http.get("/v1/models", headers=headers).status_code == 200
    again = start(ZSE_HOST="0.0.0.0")
    assert not KEY.findall("".join(again.raw))
    assert again.http.get("/v1/models", headers=headers).status_code == 200


def test_behind_a_gate_no_key_is_made(start, home):
    server = start(ZSE_HOST="0.0.0.0", ZSE_PUBLIC="1")
    assert server.http.get("/v1/models").status_code == 200
    assert server.http.get("/api/keys").status_code == 401
    assert not (home / "api_keys.json").exists()


def test_a_key_file_that_others_can_read_ends_a_start_with_the_reason(home):
    home.mkdir()
    (home / "api_keys.json").write_text("{}")
    (home / "api_keys.json").chmod(0o644)
    done = subprocess.run(
        [sys.executable, SCRIPT],
        env=subprocess_environment(PYTHONPATH=str(Path(SCRIPT).parents[2]), ZSE_HOME=str(home)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 4
    assert "is open to others (mode 0644)" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_that_is_killed_under_load_leaves_keys_and_audit_whole(start, home, number):
    new = make_key("app")
    file = KeyFile(home / "api_keys.json")
    file.add(new.key)
    server = start()
    headers = {"x-api-key": new.secret, "user-agent": "load"}
    answered: list[str] = []
    is_over = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=server.url, headers=headers, timeout=30) as client:
            while not is_over.is_set():
                try:
                    answer = client.post(CHAT, json=body("say:hidden-canary"))
                except httpx.HTTPError:
                    return
                if answer.status_code == 200:
                    answered.append(answer.headers["x-request-id"])

    with ThreadPoolExecutor(4) as pool:
        work = [pool.submit(ask) for _ in range(4)]
        deadline = time.monotonic() + 120
        while len(answered) < 40 and time.monotonic() < deadline:
            time.sleep(0.05)
        for name in ("more", "still-more"):
            file.add(make_key(name).key)
        # What was answered a moment before a SIGKILL may still be on its way to the disk.
        on_disk = set(answered)
        while not on_disk <= audited(home) and time.monotonic() < deadline:
            time.sleep(0.05)
        server.stop(number)
        is_over.set()
        for each in work:
            each.result()
    assert [key.name for key in file.read().keys] == ["app", "more", "still-more"]
    entries = list(find(AuditFiles(home / "audit"), Wanted()))
    ids = [entry.request_id for entry in entries]
    assert len(ids) == len(set(ids))
    assert (on_disk if number == signal.SIGKILL else set(answered)) <= set(ids)
    assert {entry.api_key_name for entry in entries} == {"app"}
    told = "".join(server.raw) + (home / "audit" / "audit.jsonl").read_text()
    assert new.secret not in told
    assert "hidden-canary" not in told


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_prompt_that_one_key_asked_is_in_no_cache_of_another(start_command, home):
    words = ["-m", "zse.serve", "tiny", "--port", "0", "--device", "cpu"]
    keys = {"alice": "sk-alice-of-tests", "bob": "sk-bob-of-tests"}
    server = start_command(*words, ZSE_HOME=str(home), ZSE_API_KEYS=",".join(keys.values()))
    server.wait_for_line("ready")
    question = body("What is the capital of France? " * 20) | {"max_tokens": 2}

    def cached(who: str) -> int:
        headers = {"authorization": f"Bearer {keys[who]}"}
        usage = server.http.post(CHAT, headers=headers, json=question).json()["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    assert cached("alice") == 0
    assert cached("alice") > 0
    assert cached("bob") == 0
    assert cached("bob") > 0


def shake_hands(server, path: str, *headers: str) -> str:
    """Ask for a WebSocket; return the head of the answer."""
    lines = [
        f"GET {path} HTTP/1.1",
        f"host: 127.0.0.1:{server.port}",
        "connection: upgrade",
        "upgrade: websocket",
        "sec-websocket-version: 13",
        "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==",
        *headers,
    ]
    with socket.create_connection(("127.0.0.1", server.port), 60) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        head = b""
        while b"\r\n\r\n" not in head:
            more = connection.recv(4096)
            assert more, head
            head += more
    return head.decode("latin-1").lower()


def test_a_websocket_opens_for_its_key_alone_and_repeats_it_never(start, home):
    chats, counts = make_key("chats"), make_key("counts", scope="metrics")
    for new in (chats, counts):
        KeyFile(home / "api_keys.json").add(new.key)
    server = start()
    assert shake_hands(server, "/ws/chat").startswith("http/1.1 401")
    offered = f"sec-websocket-protocol: zse, zse-api-key.{chats.secret}"
    opened = shake_hands(server, "/ws/chat", offered)
    assert opened.startswith("http/1.1 101")
    assert "sec-websocket-protocol: zse\r\n" in opened
    assert chats.secret.lower() not in opened
    assert shake_hands(server, "/ws/stats", offered).startswith("http/1.1 403")
    shown = f"authorization: Bearer {counts.secret}"
    assert shake_hands(server, "/ws/stats", shown).startswith("http/1.1 101")
    server.stop()
    told = "".join(server.raw) + (home / "audit" / "audit.jsonl").read_text()
    assert chats.secret not in told
    statuses = [e.status_code for e in find(AuditFiles(home / "audit"), Wanted(path="/ws/"))]
    assert sorted(statuses) == [101, 101, 401, 403]
