"""`zse inspect` for people and for scripts."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from range_server import serving

from tests.stream.conftest import write_model
from zse.cli import run
from zse.units import size_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from range_server import RangeServer


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
    assert report["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert report["header_sha256"] == path.read_bytes()[16:48].hex()
    assert report["architecture"] == "llama"
    assert report["provenance"] == small_file.PROVENANCE
    assert [group["name"] for group in report["groups"]] == ["embed", "layers.0", "final"]
    assert set(report["schemes"]) == {
        *("fp32", "fp16", "bf16", "int8", "int4", "int3", "int2", "nf4", "nl4", "mxfp4")
    }
    assert len(report["tensors"]) == 10


def test_plain_output_names_every_tensor_group_section_and_digest(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["inspect", str(path)]) == 0
    out = capsys.readouterr().out
    assert size_text(path.stat().st_size) in out  # in the units of a conversion's report
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
    foreign = tmp_path / "model.bin"
    foreign.write_bytes(b"else" + bytes(100))
    assert run(["inspect", str(foreign)]) == 6
    assert "zse convert" in capsys.readouterr().err


@pytest.fixture
def served(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RangeServer]:
    """The file behind s3://bucket/small.zse and http://."""
    with serving("/bucket/small.zse", path.read_bytes()) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        yield server


@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_of_a_file_behind_an_address_only_the_header_is_read(
    path: Path, served: RangeServer, capsys: pytest.CaptureFixture[str], scheme: str
) -> None:
    url = "s3://bucket/small.zse" if scheme == "s3" else f"{served.url}/bucket/small.zse"
    assert run(["inspect", str(path), "--json"]) == 0
    here = json.loads(capsys.readouterr().out)
    assert run(["inspect", url, "--json"]) == 0
    there = json.loads(capsys.readouterr().out)
    assert there.pop("path") == url
    assert there == {name: value for name, value in here.items() if name != "path"}
    ranges = [text.removeprefix("bytes=").split("-") for text in served.requests]
    assert sum(int(last) + 1 - int(first) for first, last in ranges) < path.stat().st_size / 5


def test_verifying_a_file_behind_an_address_says_what_it_reads_and_finds_damage(
    served: RangeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["inspect", "s3://bucket/small.zse", "--verify"]) == 0
    captured = capsys.readouterr()
    assert "every digest, padding byte and scale" in captured.out
    assert captured.err.startswith("reading all ")
    served.data = served.data[:2097152] + b"\xff" + served.data[2097153:]
    assert run(["inspect", "s3://bucket/small.zse", "--verify"]) == 6
    assert "error: group embed has SHA-256" in capsys.readouterr().err


def test_the_built_in_model_can_be_inspected(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "tiny", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["provenance"]["source"] == "tiny"


def test_a_folder_and_a_repository_lead_to_convert(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (str(tmp_path), "hf://owner/name"):
        assert run(["inspect", name]) == 2
        assert "zse convert" in capsys.readouterr().err


def test_a_head_that_is_not_loaded_is_shown_with_its_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_model(tmp_path / "model.zse", [20, 3, 30], last_name="mtp.0")
    assert run(["inspect", str(path)]) == 0
    assert f"not loaded      {size_text(30 * 4096)}, groups mtp.*" in capsys.readouterr().out
    assert run(["inspect", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spare_bytes"] == 30 * 4096
