from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from faulty_s3 import faulty_s3

from zse.cli import run
from zse.store import cache as cache_module
from zse.store.cache import Cache

if TYPE_CHECKING:
    from pathlib import Path

    from faulty_s3 import FaultyS3

__all__ = ["faulty_s3"]


@pytest.fixture
def filled(faulty_s3: FaultyS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Three cached objects of 1000 bytes, fetched by a process that has ended."""
    monkeypatch.setenv("ZSE_CACHE_DIR", str(tmp_path))
    paths = []
    for name in ("a.zse", "b.zse", "c.zse"):
        faulty_s3.objects[f"/bucket/{name}"] = (name.encode() * 200, {})
        paths.append(Cache(tmp_path).fetch(f"s3://bucket/{name}"))
    for path in paths:
        os.close(cache_module._held.pop(path))
    for age_days, path in zip((9, 5, 0), paths, strict=True):
        record = path.with_suffix(".json")
        now = record.stat().st_mtime
        os.utime(record, (now, now - age_days * 86400))
    return paths


def removed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    capsys.readouterr()
    assert run(["cache", "clean", "--json", *arguments]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["freed_bytes"] == 1000 * len(report["removed"])
    return [entry["url"].rpartition("/")[2] for entry in report["removed"]]


def test_ls_shows_what_is_there_and_what_is_in_use(
    filled: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZSE_CACHE_GIB", "0.5")
    with filled[1].open("rb"):
        assert run(["cache", "ls", "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert run(["cache", "ls"]) == 0
    assert [entry["is_in_use"] for entry in report["entries"]] == [False, True, False]
    assert (report["limit_bytes"], report["size_bytes"]) == (1 << 29, 3000)
    captured = capsys.readouterr()
    assert "in use      s3://bucket/b.zse" in captured.out
    assert "3 files, 3.0 KB of 0.5 GiB" in captured.err


def test_clean_removes_everything_that_is_not_in_use(
    filled: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with filled[1].open("rb"):
        assert removed(capsys) == ["a.zse", "c.zse"]
    assert removed(capsys) == ["b.zse"]
    assert run(["cache", "clean"]) == 0
    assert capsys.readouterr().out == "removed: 0 files, 0 B; kept: 0\n"


def test_clean_keeps_what_the_options_say(
    filled: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert removed(capsys, "--older-than-days", "7") == ["a.zse"]
    assert removed(capsys, "--to-gib", str(1500 / (1 << 30))) == ["b.zse"]
    assert removed(capsys, "--to-gib", "1") == []


@pytest.mark.parametrize("option", ["--to-gib", "--older-than-days"])
@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
def test_clean_takes_numbers_only(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["cache", "clean", option, value]) == 2
    assert option in capsys.readouterr().err
