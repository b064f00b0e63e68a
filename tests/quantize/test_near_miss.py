"""What is nearly a checkpoint is called what it is, and the way on is named."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

import pytest
from broken_rules import breaks
from safetensors.torch import save_file

from zse.errors import CheckpointError, NotFoundError, UsageError, ZSEError
from zse.format.errors import Rule
from zse.format.reader import ZSEReader
from zse.quantize.convert import convert_model
from zse.quantize.hub import check_names
from zse.quantize.near_miss import AdapterError

if TYPE_CHECKING:
    from pathlib import Path


def refusal(model: Path, out: Path) -> ZSEError:
    with pytest.raises(ZSEError) as caught:
        convert_model(model, out)
    assert not out.exists()
    return caught.value


def make_adapter(folder: Path, base: object = "meta-llama/Llama-3.1-8B") -> Path:
    folder.mkdir(parents=True)
    config = {"base_model_name_or_path": base, "peft_type": "LORA"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "adapter_model.safetensors").write_bytes(b"")
    return folder


def test_an_adapter_names_its_base_and_how_to_merge_it(tmp_path: Path) -> None:
    error = refusal(make_adapter(tmp_path / "lora"), tmp_path / "m.zse")
    assert isinstance(error, AdapterError)
    assert "adapter (LoRA) of meta-llama/Llama-3.1-8B" in error.message
    folder = tmp_path / "lora"
    assert f"zse convert meta-llama/Llama-3.1-8B --merge-lora {folder} -o " in error.hint
    assert f"zse serve meta-llama/Llama-3.1-8B --lora NAME={folder}" in error.hint


@pytest.mark.parametrize("content", ["[]", "{", '{"base_model_name_or_path": "a\\u001b[2J\\n"}'])
def test_a_hostile_adapter_configuration_prints_nothing_odd(tmp_path: Path, content: str) -> None:
    folder = make_adapter(tmp_path / "lora")
    (folder / "adapter_config.json").write_text(content)
    assert refusal(folder, tmp_path / "m.zse").message.isprintable()


def test_a_trainers_output_leads_to_its_newest_checkpoint(make_checkpoint, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for step in (500, 1000, 60):
        make_checkpoint(out / f"checkpoint-{step}", num_hidden_layers=1)
    (out / "runs").mkdir()
    error = refusal(out, tmp_path / "m.zse")
    assert "3 inside" in error.message
    assert f"zse convert {out / 'checkpoint-1000'} -o" in error.hint
    make_adapter(out / "checkpoint-2000")
    assert "checkpoint-2000" in refusal(out, tmp_path / "m.zse").hint


def test_a_command_to_paste_holds_a_strangers_folder_name_as_one_word(tmp_path: Path) -> None:
    make_adapter(tmp_path / "out" / "a; rm -rf $HOME")
    hint = refusal(tmp_path / "out", tmp_path / "m.zse").hint
    command = shlex.split(hint.partition(": ")[2])
    assert command[:3] == ["zse", "convert", str(tmp_path / "out" / "a; rm -rf $HOME")]


def test_a_folder_of_a_converted_model_or_of_gguf_is_called_that(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "m.zse").write_bytes(b"ZSE\0")
    assert f"zse serve {folder / 'm.zse'}" in refusal(folder, tmp_path / "out").hint
    (folder / "m.Q4_K.gguf").write_bytes(b"GGUF")
    assert "llama.cpp" in refusal(folder, tmp_path / "out").message


def test_files_that_are_given_for_a_folder_lead_on(llama_folder: Path, tmp_path: Path) -> None:
    done = tmp_path / "done.zse"
    convert_model("tiny", done)
    (tmp_path / "lone.safetensors").write_bytes(b"")
    expected = {
        done: ("converted already", f"zse serve {done}"),
        llama_folder / "model.safetensors": ("one file of a checkpoint", str(llama_folder)),
        tmp_path / "lone.safetensors": ("is a file", "config.json"),
    }
    for path, (found, hint) in expected.items():
        error = refusal(path, tmp_path / "out.zse")
        assert isinstance(error, UsageError)
        assert found in error.message
        assert hint in error.hint


def test_a_reader_of_zse_files_knows_the_other_formats(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF\3\0\0\0" + bytes(100))
    save_file({}, tmp_path / "model.safetensors")
    with breaks(Rule.BAD_MAGIC, match="GGUF") as caught:
        ZSEReader(tmp_path / "m.gguf")
    assert "zse convert FILE.gguf" in caught.value.hint
    with breaks(Rule.BAD_MAGIC, match="safetensors"):
        ZSEReader(tmp_path / "model.safetensors")


def test_a_repository_of_an_adapter_or_of_gguf_is_called_that() -> None:
    with pytest.raises(AdapterError, match="o/n is an adapter"):
        check_names("o/n", ["adapter_config.json", "adapter_model.safetensors"])
    with pytest.raises(CheckpointError, match="GGUF"):
        check_names("o/n-GGUF", ["config.json", "n.Q4_K_M.gguf"])


def test_an_empty_folder_is_told_what_belongs_there(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    error = refusal(tmp_path / "empty", tmp_path / "m.zse")
    assert isinstance(error, NotFoundError)
    assert "config.json and model.safetensors" in error.hint


@pytest.mark.parametrize("option", [{"hidden_act": "quick_gelu"}, {"hidden_act": "relu"}])
def test_an_option_of_a_supported_architecture_is_not_called_an_architecture(
    make_checkpoint, tmp_path: Path, option: dict[str, object]
) -> None:
    folder = make_checkpoint(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text()) | option
    (folder / "config.json").write_text(json.dumps(config))
    error = refusal(folder, tmp_path / "m.zse")
    (name,) = option
    assert f"{name}=" in error.message
    assert "LlamaForCausalLM" not in error.hint
    assert "this option of it is not" in error.hint
    config["architectures"] = ["MambaForCausalLM"]
    (folder / "config.json").write_text(json.dumps(config))
    error = refusal(folder, tmp_path / "m.zse")
    assert "MambaForCausalLM is not supported" in error.message
    assert "Qwen3ForCausalLM" in error.hint
    assert "issue" in error.hint
