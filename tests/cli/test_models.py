"""`zse models`: the registry on the command line."""

import json

import pytest

from zse.cli import run
from zse.cli.models import complete_known
from zse.models.registry import known_models, select_models

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def read(capsys, *arguments):
    assert run(["models", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_list_has_every_model_with_its_memory_and_source(capsys):
    report = read(capsys, "list")
    assert report["total"] == len(report["models"]) == len(known_models())
    for model in report["models"]:
        assert list(model["memory_bytes"]) == ["int4", "int8", "bf16"]
        assert model["source"]
        assert model["recorded"]


def test_the_list_is_narrowed_by_category_memory_and_recommendation(capsys):
    found = read(capsys, "list", "-r", "-c", "code", "-v", "8")["models"]
    assert {(one["category"], one["recommended"]) for one in found} == {("code", True)}
    assert all(one["memory_bytes"]["int4"] <= 8 * 2**30 for one in found)
    assert [one["id"] for one in found] == [
        one.repository
        for one in select_models(category="code", is_recommended=True, largest_bytes=8 * 2**30)
    ]
    assert read(capsys, "list", "-v", "0.1") == {"total": 0, "models": []}


def test_people_read_a_table_and_a_count(capsys):
    assert run(["models", "search", "QWEN2.5-coder", "7b"]) == 0
    captured = capsys.readouterr()
    assert "Qwen/Qwen2.5-Coder-7B-Instruct  code" in captured.out
    assert captured.err == "1 models\n"
    assert run(["models", "search", "no-such-model"]) == 0
    assert capsys.readouterr().err == "0 models\n"


def test_info_says_what_a_model_is_and_where_that_was_read(capsys):
    report = read(capsys, "info", "openai/gpt-oss-20b")
    assert (report["category"], report["architecture"]) == ("reasoning", "GptOssForCausalLM")
    assert report["source"].startswith("https://")
    assert report["recorded"] == known_models()["openai/gpt-oss-20b"].recorded.isoformat()
    assert report["layers"] == 24


def test_a_check_says_what_a_model_needs_here(capsys):
    report = read(capsys, "check", "HuggingFaceTB/SmolLM2-135M-Instruct", "--max-context", "256")
    assert report["supported"]
    assert report["left_bytes"] > 0
    assert {one["context_tokens"] for one in report["estimates"]} == {256}
    assert [one["fits"] for one in report["estimates"]] == [
        one["total_bytes"] <= report["left_bytes"] for one in report["estimates"]
    ]
    assert run(["models", "check", "HuggingFaceTB/SmolLM2-135M-Instruct"]) == 0
    assert capsys.readouterr().out.startswith("yes: zse runs it. Here, on the ")


def test_a_model_that_is_too_large_or_not_supported_ends_in_one(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("ZSE_DEVICE", "cpu")
    monkeypatch.setenv("ZSE_MODELS_GIB", "1")
    assert run(["models", "check", "Qwen/Qwen3-235B-A22B", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["supported"], report["fits"]) == (True, False)
    config = {"architectures": ["MambaForCausalLM"], "model_type": "mamba"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert run(["models", "check", str(tmp_path)]) == 1
    assert capsys.readouterr().out.startswith("no: architecture MambaForCausalLM is not supported")


def test_a_fetched_model_is_the_folder_in_the_hubs_cache(capsys, tmp_path, monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    name = "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert run(["models", "pull", name]) not in (0, 1)  # nothing is cached, nobody answers
    assert "hint:" in capsys.readouterr().err
    cached = tmp_path / f"models--{name.replace('/', '--')}"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text(COMMIT)
    folder = cached / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert read(capsys, "pull", name) == {
        "model": name,
        "path": str(folder),
        "revision": COMMIT,
        "size_bytes": 2,
    }


def test_tab_completes_the_ids_of_the_registry():
    found = complete_known("meta-llama/Llama-3.")
    assert "meta-llama/Llama-3.2-1B-Instruct" in found
    assert all(name.startswith("meta-llama/Llama-3.") for name in found)
    assert complete_known("no-such") == []


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["info", "qwen3-8b"], 3, "Did you mean Qwen/Qwen3-8B"),
        (["check", "Qwen/Qwen3-8"], 3, "Did you mean Qwen/Qwen3-8B"),
        (["pull", "somebody/else"], 3, "See `zse models list`"),
        (["list", "-v", "much"], 2, "'much' is not a valid float"),
        (["list", "-v", "nan"], 2, "no size of a memory"),
        (["list", "-v", "-1"], 2, "no size of a memory"),
        (["list", "-c", "poetry"], 2, "'poetry' is not one of"),
        (["search"], 2, "WORDS"),
    ],
)
def test_bad_words_are_told_what_is_meant(capsys, arguments, code, words):
    assert run(["models", *arguments]) == code
    assert words in capsys.readouterr().err
