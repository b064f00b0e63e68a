"""The hub library against a small server that speaks the hub's protocol on loopback."""

from __future__ import annotations

import hashlib
import json
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, TypeAlias

import pytest

from zse.errors import HubError, RefusedError
from zse.quantize.hub import HubOfflineError, fetch_snapshot
from zse.quantize.text_files import TextOptions, TokenizerMissingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Fetch: TypeAlias = "Callable[..., Path]"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "good/model": ["config.json", "model.safetensors", "modeling.py", "pytorch_model.bin"],
    "pickle/model": ["config.json", "pytorch_model.bin"],
}


class HubHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        """Stay quiet."""

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server.requested.append(self.path)
        path = self.path.split("?")[0]
        if path.startswith("/api/models/gated/"):
            self.reply(403, X_Error_Code="GatedRepo", X_Error_Message="gated")
        elif path.startswith("/api/models/absent/"):
            self.reply(401, X_Error_Code="RepoNotFound", X_Error_Message="absent")
        elif path.startswith("/api/models/broken/"):
            self.reply(500)
        elif path.endswith("/revision/nope"):
            self.reply(404, X_Error_Code="RevisionNotFound", X_Error_Message="no revision")
        elif path.startswith("/api/models/"):
            self.list_files("/".join(path.split("/")[3:5]), tree="/tree/" in path)
        else:
            body = f"content of {path.rsplit('/')[-1]}".encode()
            etag = hashlib.sha1(body).hexdigest()
            self.reply(200, body, ETag=f'"{etag}"', X_Repo_Commit=COMMIT)

    def list_files(self, repository: str, *, tree: bool) -> None:
        names = FILES[repository]
        if tree:
            listing: object = [
                {"type": "file", "path": name, "size": 20, "oid": "0" * 40} for name in names
            ]
        else:
            siblings = [{"rfilename": name} for name in names]
            listing = {"id": repository, "sha": COMMIT, "siblings": siblings}
        self.reply(200, json.dumps(listing).encode(), Content_Type="application/json")


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadingHTTPServer]:
    pytest.importorskip("huggingface_hub")
    server = ThreadingHTTPServer(("127.0.0.1", 0), HubHandler)
    server.requested = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def fetch(server: ThreadingHTTPServer, tmp_path: Path) -> Fetch:
    endpoint = f"http://127.0.0.1:{server.server_port}"
    return partial(fetch_snapshot, endpoint=endpoint, cache_dir=tmp_path, token="t")


def test_snapshot_holds_weights_and_never_code_or_pickle(fetch: Fetch) -> None:
    folder = fetch("good/model")
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["config.json", "model.safetensors"]
    assert folder.name == COMMIT


def test_second_fetch_downloads_nothing(fetch: Fetch, server: ThreadingHTTPServer) -> None:
    fetch("good/model")
    server.requested.clear()  # type: ignore[attr-defined]
    fetch("good/model", COMMIT)
    assert not [path for path in server.requested if "/resolve/" in path]  # type: ignore[attr-defined]


def test_cached_commit_is_found_without_a_network(fetch: Fetch, tmp_path: Path) -> None:
    folder = fetch("good/model")
    offline = "http://127.0.0.1:9"
    assert fetch_snapshot("good/model", COMMIT, endpoint=offline, cache_dir=tmp_path) == folder


@pytest.mark.parametrize(
    ("repository", "revision", "message", "hint"),
    [
        ("gated/model", None, "is gated", "HF_TOKEN"),
        ("absent/model", None, "does not exist", "Check the name"),
        ("good/model", "nope", "no revision 'nope'", "branch"),
        ("broken/model", None, "status 500", "later"),
    ],
)
def test_refusal_says_what_to_do(
    fetch: Fetch, repository: str, revision: str | None, message: str, hint: str
) -> None:
    with pytest.raises(HubError, match=message) as caught:
        fetch(repository, revision)
    assert hint in caught.value.hint


def test_pickle_repository_is_refused_before_any_download(
    fetch: Fetch, server: ThreadingHTTPServer
) -> None:
    server.requested.clear()  # type: ignore[attr-defined]
    with pytest.raises(RefusedError, match="pickle"):
        fetch("pickle/model")
    assert not [path for path in server.requested if "/resolve/" in path]  # type: ignore[attr-defined]


def test_a_repository_without_a_tokenizer_is_refused_before_any_download(
    fetch: Fetch, server: ThreadingHTTPServer
) -> None:
    server.requested.clear()  # type: ignore[attr-defined]
    with pytest.raises(TokenizerMissingError, match=r"good/model holds no tokenizer\.json"):
        fetch("good/model", check=TextOptions().check_names)
    assert not [path for path in server.requested if "/resolve/" in path]  # type: ignore[attr-defined]


def test_no_network_and_no_cache_is_an_offline_error(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    with pytest.raises(HubOfflineError, match="cannot be reached"):
        fetch_snapshot("good/model", endpoint="http://127.0.0.1:9", cache_dir=tmp_path)
