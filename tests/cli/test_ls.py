from __future__ import annotations

import json
from typing import TYPE_CHECKING

import fake_hub
import pytest
from faulty_s3 import faulty_s3

from zse.cli import run

if TYPE_CHECKING:
    from pathlib import Path

    from faulty_s3 import FaultyS3, Handler

__all__ = ["faulty_s3"]


def test_a_repository_is_listed_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_hub.serving() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        assert run(["ls", "hf://owner/name/models", "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)
        assert rows[0] == {
            "url": "hf://owner/name/models/model.zse",
            "size_bytes": len(fake_hub.LARGE),
        }
        assert run(["ls", "hf://owner/name/absent"]) == 3


def test_a_folder_is_listed_with_sizes_and_a_total(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert run(["ls", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert captured.out.split() == ["5", f"{tmp_path}/a"]
    assert captured.err == "1 objects, 5 B\n"
    (tmp_path / "a").unlink()
    assert run(["ls", str(tmp_path)]) == 0
    assert run(["ls", str(tmp_path / "b")]) == 3


def test_unfinished_uploads_are_listed(
    faulty_s3: FaultyS3, capsys: pytest.CaptureFixture[str]
) -> None:
    faulty_s3.uploads = {"id1": "/bucket/models/a.zse"}
    assert run(["ls", "s3://bucket", "--unfinished"]) == 0
    captured = capsys.readouterr()
    assert "s3://bucket/models/a.zse  id1" in captured.out
    assert captured.out.startswith("2026-01-02T03:04:05")
    assert "1 unfinished" in captured.err
    assert run(["ls", "hf://owner/name", "--unfinished"]) == 2


def test_s3_alone_lists_the_buckets(
    faulty_s3: FaultyS3, capsys: pytest.CaptureFixture[str]
) -> None:
    names = "".join(f"<Bucket><Name>{name}</Name></Bucket>" for name in ("models", "data"))
    body = f"<ListAllMyBucketsResult><Buckets>{names}</Buckets></ListAllMyBucketsResult>"

    def answer(request: Handler) -> bool:
        request.answer(200, body.encode())
        return True

    faulty_s3.fault = answer
    assert run(["ls", "s3://"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "s3://data/\ns3://models/\n"
    assert "2 buckets" in captured.err
    assert run(["ls", "s3://", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0] == {"url": "s3://data/"}


@pytest.mark.system
def test_a_bucket_a_prefix_and_a_name_that_is_not_there(
    s3_bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").write_bytes(b"x")
    assert run(["ls", f"s3://{s3_bucket}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert run(["push", str(tmp_path / "a"), f"s3://{s3_bucket}/m/"]) == 0
    assert run(["ls", f"s3://{s3_bucket}/m/", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows == [{"url": f"s3://{s3_bucket}/m/a", "size_bytes": 1}]
    assert run(["ls", f"s3://{s3_bucket}/absent"]) == 3
