from __future__ import annotations

import hashlib
import json
import shutil
from typing import TYPE_CHECKING

import pytest
from little_tokenizer import write_tokenizer

from zse.cli import run
from zse.format.reader import ZSEReader

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    from zse.models.families import read_checkpoint

    folder = tmp_path_factory.mktemp("checkpoint")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 64,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,
        "torch_dtype": "float16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder)
    sources = [piece for weight in read_checkpoint(config).weights() for piece in weight.pieces()]
    tensors = {piece.name: torch.ones(piece.shape, dtype=torch.float16) for piece in sources}
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("name", ["convert", "quantize"])
def test_json_report_is_all_of_stdout(
    name: str, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "m.zse"
    arguments = ["--quant", "nf4", "--group-size", "32", "--lm-head", "fp16", "--json"]
    assert run([name, str(checkpoint), "-o", str(out), *arguments]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["path"] == str(out)
    assert report["size_bytes"] == out.stat().st_size
    assert "wrote: " in captured.err
    with ZSEReader(out) as reader:
        assert reader.entry("layers.0.o.weight").group_size == 32
        assert reader.entry("lm_head.weight").scheme == "fp16"


def test_without_json_stdout_is_empty(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["convert", str(checkpoint), "-o", str(tmp_path / "m.zse")]) == 0
    assert capsys.readouterr().out == ""


def test_error_is_a_message_a_hint_and_a_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["convert", str(tmp_path / "absent"), "-o", str(tmp_path / "m.zse")]) == 3
    captured = capsys.readouterr()
    assert "error: there is no " in captured.err
    assert "hint: " in captured.err


def test_group_size_of_a_scheme_without_groups_is_refused(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "m.zse")
    code = run(["convert", str(checkpoint), "-o", out, "--quant", "int8", "--group-size", "64"])
    assert code == 2
    assert "has no groups" in capsys.readouterr().err


def test_case_of_quant_and_what_became_int8_are_told(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "m.zse"
    assert run(["convert", str(checkpoint), "-o", str(out), "--quant", "INT4", "--json"]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert (report["schemes"]["int4"], report["int8_instead"]) == (4, 0)
    assert report["sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
    assert f"sha256: {report['sha256']}\n" in captured.err
    (warning,) = report["warnings"]
    assert f"warning: {warning}" in captured.err
    assert "--chat-template" in warning


def test_a_model_without_a_tokenizer_is_refused_by_convert_and_by_build_image(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare, out = tmp_path / "bare", str(tmp_path / "m.zse")
    shutil.copytree(checkpoint, bare)
    (bare / "tokenizer.json").unlink()
    assert run(["convert", str(bare), "-o", out]) == 7
    assert "--tokenizer FOLDER" in capsys.readouterr().err
    assert run(["convert", str(bare), "-o", out, "--allow-no-tokenizer"]) == 0
    image = ["build-image", out, "--name", "a:1", "--output", f"oci:{tmp_path / 'image'}"]
    capsys.readouterr()
    assert run(image) == 3
    assert "holds no tokenizer" in capsys.readouterr().err
    assert run(["convert", str(bare), "-o", out, "--tokenizer", str(checkpoint), "--force"]) == 0
