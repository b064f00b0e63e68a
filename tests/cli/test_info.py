"""`zse info`: every kind of model, and nothing downloaded."""

import json

import pytest
from gguf_files import write_gguf

from tests.quantize.conftest import make_checkpoint_folder
from zse.cli import run
from zse.format import convert_model
from zse.models.builtin import builtin_checkpoint


def describe(capsys, *arguments):
    assert run(["info", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_model_of_the_registry_is_told_by_context_and_scheme(capsys):
    report = describe(capsys, "Qwen/Qwen3-8B")
    assert (report["layers"], report["attention_heads"], report["kv_heads"]) == (36, 32, 8)
    assert report["parameters"] == 8_190_735_360
    memory = {(one["quantization"], one["context_tokens"]): one for one in report["memory"]}
    assert set(memory) == {
        (scheme, context) for scheme in ("int4", "int8", "bf16") for context in (4096, 32768, 40960)
    }
    assert memory["int4", 4096]["smallest_gpu"] == "RTX 4060"
    assert memory["bf16", 4096]["smallest_gpu"] == "L4"
    assert memory["int4", 4096]["total_bytes"] < memory["int4", 40960]["total_bytes"]


def test_a_page_of_the_hub_is_its_repository(capsys):
    assert describe(capsys, "hf://Qwen/Qwen3-8B")["layers"] == 36


def test_a_file_a_folder_and_a_gguf_file_of_a_model_are_told_alike(capsys, tmp_path):
    folder = make_checkpoint_folder(tmp_path / "hf", "qwen2")
    gguf = write_gguf(tmp_path / "m.gguf", folder, "qwen2")
    file = tmp_path / "m.zse"
    convert_model(folder, file, "int8", allow_no_tokenizer=True)
    reports = [describe(capsys, source, "--max-context", "64") for source in (folder, gguf, file)]
    same = ("parameters", "layers", "attention_heads", "kv_heads", "hidden_size", "max_context")
    assert len({tuple(report[name] for name in same) for report in reports}) == 1
    schemes = [[one["quantization"] for one in report["memory"]] for report in reports]
    assert schemes == [["int4", "int8", "bf16"], ["int4", "int8", "bf16"], ["int8"]]
    assert reports[2]["stored_as"] == "int8"


def test_people_read_the_same(capsys):
    assert run(["info", str(builtin_checkpoint("tiny"))]) == 0
    out = capsys.readouterr().out
    assert "[model]" in out
    assert "attention heads" in out
    assert "smallest gpu" in out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["Qwen/Qwen3-8"], 3, "Did you mean Qwen/Qwen3-8B"),
        (["somebody/else"], 3, "the registry has no model"),
        (["absent.zse"], 3, "absent.zse"),
        (["tiny", "--max-context", "-1"], 2, "not in the range"),
    ],
)
def test_what_is_not_known_is_said(capsys, arguments, code, words):
    assert run(["info", *arguments]) == code
    assert words in capsys.readouterr().err
