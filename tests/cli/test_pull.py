from __future__ import annotations

import hashlib
import json
import signal
from typing import TYPE_CHECKING

import fake_hub
import pytest
from faulty_s3 import faulty_s3
from range_server import serving
from stopped_commands import WRITE_CHUNK, WRITE_PLAIN_CHUNK, run_stopped

from zse.cli import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from faulty_s3 import FaultyS3

__all__ = ["faulty_s3"]
DATA = bytes(range(256)) * 100


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[fake_hub.FakeHub]:
    with fake_hub.serving() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield server


def test_a_hubs_file_is_pulled_under_its_name(
    hub: fake_hub.FakeHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["pull", "hf://owner/name@v1/models/model.zse", "--json"]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert (report["path"], report["verified"]) == ("model.zse", True)
    assert (tmp_path / "model.zse").read_bytes() == fake_hub.LARGE
    assert "checked against the recorded digest" in captured.err


def test_a_folder_takes_the_objects_name_and_a_path_is_taken_as_it_is(
    faulty_s3: FaultyS3, tmp_path: Path
) -> None:
    faulty_s3.objects["/bucket/m/a.zse"] = (DATA, {})
    assert run(["pull", "s3://bucket/m/a.zse", "-o", str(tmp_path)]) == 0
    assert run(["pull", "s3://bucket/m/a.zse", "-o", f"{tmp_path}/new/"]) == 0
    assert run(["pull", "s3://bucket/m/a.zse", "-o", f"{tmp_path}/b"]) == 0
    for name in ("a.zse", "new/a.zse", "b"):
        assert (tmp_path / name).read_bytes() == DATA


def test_the_digest_that_was_given_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "a")
    with serving("/a", DATA) as server:
        good = hashlib.sha256(DATA).hexdigest().upper()
        assert run(["pull", f"{server.url}/a", "-o", out, "--sha256", "0" * 64]) == 8
        assert not (tmp_path / "a").exists()
        assert run(["pull", f"{server.url}/a", "-o", out, "--sha256", good]) == 0
        assert run(["pull", f"{server.url}/a", "-o", out, "--sha256", "abc"]) == 2
    assert "64 hexadecimal digits" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "code"), [("hf://owner/absent/a", 3), ("hf://owner/gated/config.json", 8), ("x://y", 2)]
)
def test_errors_have_their_codes(
    hub: fake_hub.FakeHub, tmp_path: Path, url: str, code: int
) -> None:
    assert run(["pull", url, "-o", str(tmp_path / "a")]) == code
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("resume", [False, True])
def test_sigterm_leaves_nothing_unless_it_is_to_be_resumed(
    faulty_s3: FaultyS3, tmp_path: Path, resume: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    faulty_s3.objects["/bucket/a"] = (DATA * 700, {})
    arguments = ["pull", "s3://bucket/a", "-o", str(tmp_path / "a")] + ["--resume"] * resume
    point = WRITE_CHUNK if resume else WRITE_PLAIN_CHUNK
    result = run_stopped(arguments, point=point, calls=1, environment={})
    assert result.returncode == 128 + signal.SIGTERM, result.stderr
    assert len(list(tmp_path.iterdir())) == resume
    assert run([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["resumed_bytes"] == (8 << 20) * resume
    assert (tmp_path / "a").read_bytes() == DATA * 700
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_an_address_without_a_name_needs_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pull", "https://host/"]) == 2
    assert "-o PATH" in capsys.readouterr().err


def test_a_file_of_the_users_stays_and_one_that_is_the_object_is_not_fetched_again(
    faulty_s3: FaultyS3, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digest = hashlib.sha256(DATA).hexdigest()
    faulty_s3.objects["/bucket/a"] = (DATA, {"x-amz-meta-zse-sha256": digest})
    out = tmp_path / "a"
    out.write_bytes(b"mine")
    command = ["pull", "s3://bucket/a", "-o", str(out), "--json"]
    assert run(command) == 2
    assert "--force" in capsys.readouterr().err
    assert out.read_bytes() == b"mine"
    assert run([*command, "--force"]) == 0
    assert out.read_bytes() == DATA
    faulty_s3.requests.clear()
    capsys.readouterr()
    assert run(command) == 0
    assert json.loads(capsys.readouterr().out)["sha256"] == digest
    assert faulty_s3.seen("^GET /bucket/a") == []
