from __future__ import annotations

import hashlib
import json
import signal
from typing import TYPE_CHECKING

import pytest
from faulty_s3 import faulty_s3
from stopped_commands import SEND_PART, WRITE_PLAIN_CHUNK, run_stopped

from zse.cli import run
from zse.format.spec import CONTAINER

if TYPE_CHECKING:
    from pathlib import Path

    from faulty_s3 import FaultyS3

__all__ = ["faulty_s3"]
DATA = bytes(range(256)) * 100


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.zse"
    path.write_bytes(DATA)
    return path


def test_json_report_is_all_of_stdout(
    faulty_s3: FaultyS3, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["push", str(file), "s3://bucket/a.zse", "--json"]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["sha256"] == hashlib.sha256(DATA).hexdigest()
    assert (report["url"], report["size_bytes"]) == ("s3://bucket/a.zse", len(DATA))
    assert report["verified"] is True
    assert "pushed: s3://bucket/a.zse" in captured.err


def test_a_folder_gets_the_files_name(faulty_s3: FaultyS3, file: Path) -> None:
    assert run(["push", str(file), "s3://bucket/models/"]) == 0
    assert faulty_s3.objects["/bucket/models/model.zse"][0] == DATA


def test_the_built_in_model_has_a_name_of_its_own(faulty_s3: FaultyS3) -> None:
    assert run(["push", "tiny", "s3://bucket/models/"]) == 0
    assert faulty_s3.objects["/bucket/models/tiny.zse"][0].startswith(CONTAINER.magic)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("checkpoint", "zse convert checkpoint -o model.zse"),
        ("models", "Name a file in it: models/a.zse"),
        ("s3://bucket/a.zse", "zse pull s3://bucket/a.zse"),
        ("owner/name", "owner/name is a repository of the hub"),
        ("models/aa.zse", "Did you mean models/a.zse?"),
    ],
)
def test_what_is_no_file_leads_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a.zse").write_bytes(DATA)
    assert run(["push", name, "s3://bucket/x.zse"]) in (2, 3)
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "code", "words"),
    [
        ("hf://owner/name/a", 2, "can be read, not written"),
        ("https://host/a", 2, "can be read, not written"),
        ("gs://bucket/a", 2, "gs://"),
        ("http://example.com/a", 4, "not encrypted"),
    ],
)
def test_a_place_that_takes_no_files_is_an_error_with_its_code(
    file: Path, capsys: pytest.CaptureFixture[str], url: str, code: int, words: str
) -> None:
    assert run(["push", str(file), url]) == code
    assert words in capsys.readouterr().err


def test_a_storage_that_refuses_and_a_file_that_is_not_there_have_codes_of_their_own(
    faulty_s3: FaultyS3, file: Path
) -> None:
    faulty_s3.fault = lambda request: request.refuse(403, "AccessDenied")
    assert run(["push", str(file), "s3://bucket/a"]) == 8
    assert run(["push", str(file) + "x", "s3://bucket/a"]) == 3


def test_an_object_that_holds_something_else_wants_force(
    faulty_s3: FaultyS3, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faulty_s3.objects["/bucket/a"] = (b"another model", {})
    assert run(["push", str(file), "s3://bucket/a"]) == 2
    assert "--force" in capsys.readouterr().err
    assert faulty_s3.objects["/bucket/a"][0] == b"another model"
    assert run(["push", str(file), "s3://bucket/a", "--force"]) == 0
    assert faulty_s3.objects["/bucket/a"][0] == DATA
    puts = len(faulty_s3.seen("^PUT"))
    assert run(["push", str(file), "s3://bucket/a"]) == 0
    assert len(faulty_s3.seen("^PUT")) == puts


def test_sigterm_leaves_no_file(file: Path, tmp_path: Path) -> None:
    result = run_stopped(
        ["push", str(file), str(tmp_path / "out" / "copy")],
        point=WRITE_PLAIN_CHUNK,
        calls=1,
        environment={},
    )
    assert result.returncode == 128 + signal.SIGTERM, result.stderr
    assert list((tmp_path / "out").iterdir()) == []


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(DATA * 500)
    return path


@pytest.mark.system
def test_sigterm_leaves_neither_object_nor_parts(
    s3_bucket: str, large: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = {"ZSE_CACHE_DIR": str(tmp_path / "cache")}
    result = run_stopped(
        ["push", str(large), f"s3://{s3_bucket}/large"], point=SEND_PART, environment=cache
    )
    assert result.returncode == 128 + signal.SIGTERM, result.stderr
    capsys.readouterr()
    for option in ([], ["--unfinished"]):
        assert run(["ls", f"s3://{s3_bucket}/", "--json", *option]) == 0
        assert json.loads(capsys.readouterr().out) == []
    assert list((tmp_path / "cache" / "pushes").iterdir()) == []


@pytest.mark.system
def test_what_a_killed_push_left_is_listed_and_taken_up(
    s3_bucket: str,
    large: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ZSE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("zse.store.s3_upload.PART_BYTES", 5 << 20)
    url = f"s3://{s3_bucket}/large"
    result = run_stopped(
        ["push", str(large), url], point=SEND_PART, number=signal.SIGKILL, environment={}
    )
    assert result.returncode == -signal.SIGKILL
    assert run(["ls", url, "--unfinished", "--json"]) == 0
    (left,) = json.loads(capsys.readouterr().out)
    assert left["url"] == url
    assert left["started"].startswith("20")
    assert run(["push", str(large), url, "--resume", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["resumed_bytes"] >= 5 << 20
    assert report["sha256"] == hashlib.sha256(large.read_bytes()).hexdigest()
    assert run(["ls", url, "--unfinished", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
