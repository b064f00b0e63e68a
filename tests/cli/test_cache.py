from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from faulty_s3 import faulty_s3

from zse.cli import run
from zse.settings import load_settings
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
        paths.append(
            Cache(replace(load_settings(), cache_dir=tmp_path)).fetch(f"s3://bucket/{name}")
        )
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
    return [entry["name"].rpartition("/")[2] for entry in report["removed"]]


def test_ls_shows_what_is_there_and_what_is_in_use(
    filled: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZSE_CACHE_GIB", "0.5")
    with filled[1].open("rb"):
        assert run(["cache", "ls", "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert run(["cache", "ls"]) == 0
    assert [item["is_in_use"] for item in report["items"]] == [False, True, False]
    assert {item["kind"] for item in report["items"]} == {"models"}
    assert (report["limit_bytes"], report["size_bytes"]) == (1 << 29, 3000)
    captured = capsys.readouterr()
    assert "in use      s3://bucket/b.zse" in captured.out
    assert "3 items, 3.0 KB of 536.9 MB in" in captured.err


def test_ls_sums_up_a_kind_that_is_not_named(
    filled: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = filled[0].parent.parent / "triton"
    for name in ("A", "B"):
        (folder / name).mkdir(parents=True)
        (folder / name / "x.cubin").write_bytes(bytes(500))
    assert run(["cache", "ls"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = (line.split() for line in lines if line.startswith("triton"))
    assert (line[1:3], line[-2:]) == (["1.0", "KB"], ["2", "items"])
    assert run(["cache", "ls", "triton"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines] == ["A", "B"]


def test_clean_removes_everything_that_is_not_in_use_and_says_what_is(
    filled: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with filled[1].open("rb"):
        assert run(["cache", "clean"]) == 0
    out = capsys.readouterr().out
    assert "in use, kept: models, s3://bucket/b.zse" in out
    assert "removed: 2 items, 2.0 KB; kept: 1" in out
    assert removed(capsys, "--all") == ["b.zse"]
    assert [path.name for path in filled[0].parent.parent.iterdir()] == ["CACHEDIR.TAG"]
    assert run(["cache", "clean"]) == 0
    assert capsys.readouterr().out == "removed: 0 items, 0 B; kept: 0\n"


def test_a_dry_run_removes_nothing(filled: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cache", "clean", "--dry-run"]) == 0
    assert "would remove: 3 items, 3.0 KB; kept: 0" in capsys.readouterr().out
    assert all(path.exists() for path in filled)


@pytest.mark.parametrize(
    ("options", "gone"),
    [
        (["--older-than", "7d"], ["a.zse"]),
        (["--keep", "7d"], ["a.zse"]),
        (["--keep", "2KB"], ["a.zse"]),
        (["--keep", "1.5kb"], ["a.zse", "b.zse"]),
        (["--keep", "a.zse", "--keep", "1h"], ["b.zse"]),
        (["--keep", "models"], []),
        (["triton"], []),
        (["models", "--keep", "bucket/b"], ["a.zse", "c.zse"]),
    ],
)
def test_clean_keeps_what_the_options_say(
    filled: list[Path], capsys: pytest.CaptureFixture[str], options: list[str], gone: list[str]
) -> None:
    assert len(filled) == 3
    assert removed(capsys, *options) == gone


def test_work_of_the_user_goes_only_by_name_or_with_all(
    filled: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    table = filled[0].parent.parent / "tuned" / "h100.json"
    table.parent.mkdir()
    for options in (["tuned"], ["--all"]):
        table.parent.mkdir(exist_ok=True)
        table.write_bytes(bytes(1000))
        assert "h100.json" not in removed(capsys)
        assert removed(capsys, *options) == ["h100.json"]


def test_a_folder_of_others_is_not_cleaned_before_its_owner_says_that_all_of_it_may_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ZSE_CACHE_DIR", str(tmp_path))
    assert run(["cache", "clean", "--all"]) == 0
    for name in ("uploads/a.jpg", "kernels/linux.tar", "triton/src/a.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(bytes(1000))
    assert run(["cache", "ls"]) == 0
    assert "(no CACHEDIR.TAG: nothing is removed)" in capsys.readouterr().err
    for options in (["--all"], ["uploads"], ["--dry-run"]):
        assert run(["cache", "clean", *options]) == 8
    hint = capsys.readouterr().err.rpartition("say so: ")[2]
    assert all((tmp_path / name).is_dir() for name in ("uploads", "kernels", "triton/src"))
    subprocess.run(hint, shell=True, check=True)
    assert sorted(removed(capsys, "--all")) == ["a.jpg", "linux.tar", "src"]


@pytest.mark.parametrize(
    "options", [["--older-than", "soon"], ["--older-than", "-1d"], ["--keep", " "], ["modles"]]
)
def test_what_means_nothing_is_refused(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["cache", "clean", *options]) == 2
    assert capsys.readouterr().err


def test_a_cache_folder_that_is_none_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ZSE_CACHE_DIR", str(tmp_path / "file"))
    for arguments in (["cache", "ls"], ["cache", "clean"], ["benchmark", "tiny"]):
        assert run(arguments) == 8
        assert "(ZSE_CACHE_DIR) cannot be used: Not a directory" in capsys.readouterr().err
