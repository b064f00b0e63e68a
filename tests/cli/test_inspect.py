"""`zse inspect` for people and for scripts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from zse.cli import run

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "golden"))

import small_file


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inspect") / "small.zse"
    small_file.write(path)
    return path


def test_json_holds_the_whole_header_and_the_size(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["inspect", str(path), "--json", "--verify"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["size_bytes"] == path.stat().st_size
    assert report["verified"] is True
    assert report["architecture"] == "llama"
    assert report["provenance"] == small_file.PROVENANCE
    assert [group["name"] for group in report["groups"]] == ["embed", "layers.0", "final"]
    assert set(report["schemes"]) == {"fp32", "fp16", "bf16", "int8", "int4", "nf4"}
    assert len(report["tensors"]) == 6


def test_plain_output_names_every_tensor_group_section_and_digest(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["inspect", str(path)]) == 0
    out = capsys.readouterr().out
    assert run(["inspect", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    for kind in ("tensors", "groups", "sections"):
        for record in report[kind]:
            assert record["name"] in out
            assert record.get("sha256", "") in out
    assert "made for tests" in out
    assert "header only" in out


def test_terminal_output_is_tables_that_fold_nothing_away(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run(["inspect", str(path)]) == 0
    out = capsys.readouterr().out
    assert "layers.0.qkv.weight" in out
    assert "int4/128" in out


def test_damage_is_found_by_verify_alone(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = bytearray(path.read_bytes())
    data[2097152] ^= 1
    damaged = tmp_path / "damaged.zse"
    damaged.write_bytes(data)
    assert run(["inspect", str(damaged)]) == 0
    capsys.readouterr()
    assert run(["inspect", str(damaged), "--verify"]) == 6
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: group embed has SHA-256")
    assert "hint: " in captured.err


def test_control_characters_of_a_stranger_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from zse.format import ZSEWriter

    path = tmp_path / "m.zse"
    with ZSEWriter(
        path, architecture="x\x1b[2J", model_config={}, provenance={"a\x1b]0;": "b\x07\u202e"}
    ) as writer:
        writer.plan([])
    assert run(["inspect", str(path)]) == 0
    out = capsys.readouterr().out
    assert "\\u001b[2J" in out
    assert not {"\x1b", "\x07", "\u202e"} & set(out)


def test_missing_file_and_foreign_file_have_their_exit_codes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["inspect", str(tmp_path / "absent.zse")]) == 3
    foreign = tmp_path / "model.gguf"
    foreign.write_bytes(b"GGUF" + bytes(100))
    assert run(["inspect", str(foreign)]) == 6
    assert "zse convert" in capsys.readouterr().err


def test_an_address_is_to_be_fetched_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "s3://bucket/model.zse"]) == 2
    assert "hint: Fetch it first: zse pull s3://bucket/model.zse" in capsys.readouterr().err
