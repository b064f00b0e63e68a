from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from zse.cli import run
from zse.quantize.convert import convert_model

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "tiny.zse"
    convert_model("tiny", path, "int4")
    return path


def test_json_report_is_all_of_stdout(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["export", str(model), "-o", str(tmp_path / "out"), "--json"]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["path"] == str(tmp_path / "out")
    assert report["files"] == 1
    assert "wrote: " in captured.err
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= names


def test_int4_is_kept_and_what_that_loses_is_said(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(["export", str(model), "-o", str(out), "--format", "compressed-tensors"]) == 0
    words = capsys.readouterr().err
    assert "matrices INT4" in words
    assert "warning: " in words
    config = json.loads((out / "config.json").read_text())
    assert config["quantization_config"]["format"] == "pack-quantized"


def test_a_folder_that_is_there_is_not_replaced(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["export", str(model), "-o", str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err
