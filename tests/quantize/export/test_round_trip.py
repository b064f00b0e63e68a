"""A file, its checkpoint again, and the file of that: the same bytes; transformers reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from family_shapes import ENCODERS, shape_of
from little_tokenizer import write_tokenizer
from logits import as_tensor
from model_pairs import CONFIG_CLASSES
from safetensors import safe_open

from zse.format import ZSEReader
from zse.models.families import all_families
from zse.models.runner import load_runner
from zse.options import load_options
from zse.quantize.convert import convert_model
from zse.quantize.export.model import export_model

if TYPE_CHECKING:
    from pathlib import Path

FAMILIES = sorted(all_families())
DECODERS = sorted(set(FAMILIES) - ENCODERS)
PROMPT = [3, 17, 95, 4, 60, 60, 8, 31, 2, 77, 41, 12]
WITH_GUESSES = ("qwen3_next", "glm4_moe", "deepseek_v3")


def make(make_checkpoint: Any, folder: Path, family: str, **more: Any) -> Path:
    return make_checkpoint(folder / "model", family, **shape_of(family, **more))  # type: ignore[no-any-return]


@pytest.mark.parametrize("family", FAMILIES)
def test_in_16_bits_the_file_of_the_exported_checkpoint_has_the_same_bytes(
    make_checkpoint: Any, tmp_path: Path, family: str
) -> None:
    folder = make(make_checkpoint, tmp_path / "a", family, has_guesses=family in WITH_GUESSES)
    first = convert_model(folder, tmp_path / "a.zse", "bf16")
    (tmp_path / "b").mkdir()
    report = export_model(tmp_path / "a.zse", tmp_path / "b" / "model")
    second = convert_model(tmp_path / "b" / "model", tmp_path / "b.zse", "bf16")
    assert report.dtype == "bf16"
    assert second.sha256 == first.sha256


def logits(folder: Path) -> torch.Tensor:
    """Return what transformers makes of a checkpoint, all of whose weights must be there."""
    model, told = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not set(told["missing_keys"]) - set(model.all_tied_weights_keys or ())
    assert not told["unexpected_keys"]
    with torch.inference_mode():
        found: torch.Tensor = model.eval()(torch.tensor([PROMPT])).logits[0]
    return found


@pytest.mark.parametrize("family", DECODERS)
def test_transformers_gives_the_logits_of_the_checkpoint_that_the_file_was_made_of(
    tmp_path: Path, family: str
) -> None:
    torch.manual_seed(4)
    config = CONFIG_CLASSES[family](**shape_of(family))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "model")
    write_tokenizer(tmp_path / "model")
    convert_model(tmp_path / "model", tmp_path / "m.zse", "bf16")
    export_model(tmp_path / "m.zse", tmp_path / "out")
    found = logits(tmp_path / "out")
    assert torch.equal(found, logits(tmp_path / "model"))
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "out").vocab_size > 3
    options = load_options(device="torch", kv_dtype="fp32", num_blocks=8, block_size=8, threads=1)
    runner = load_runner(tmp_path / "m.zse", options)
    try:
        ours = as_tensor(runner.logits(PROMPT))
    finally:
        runner.close()
    assert float((found - ours).abs().max() / ours.abs().max()) < 2e-3


def test_a_model_that_sees_is_exported_as_its_text(make_checkpoint: Any, tmp_path: Path) -> None:
    text = shape_of("qwen3_5", model_type="qwen3_5_text")
    whole = {"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": text}
    folder = make(make_checkpoint, tmp_path, "qwen3_5", **whole)
    convert_model(folder, tmp_path / "a.zse", "bf16")
    (tmp_path / "b").mkdir()
    export_model(tmp_path / "a.zse", tmp_path / "b" / "model")
    convert_model(tmp_path / "b" / "model", tmp_path / "b.zse", "bf16")
    with ZSEReader(tmp_path / "a.zse") as before, ZSEReader(tmp_path / "b.zse") as after:
        assert before.names() == after.names()
        digests = [[g.sha256 for g in file.header.groups] for file in (before, after)]
    assert digests[0] == digests[1]
    config = transformers.AutoConfig.from_pretrained(tmp_path / "b" / "model")
    assert config.architectures == ["Qwen3_5ForCausalLM"]
    assert config.model_type == "qwen3_5_text"


def test_what_16_bits_do_not_hold_stays_in_32(make_checkpoint: Any, tmp_path: Path) -> None:
    folder = make(make_checkpoint, tmp_path, "llama", torch_dtype="float32")
    convert_model(folder, tmp_path / "m.zse", "bf16")
    export_model(tmp_path / "m.zse", tmp_path / "out")
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as exported:
        assert exported.get_tensor("model.norm.weight").dtype is torch.float32
        assert exported.get_tensor("lm_head.weight").dtype is torch.bfloat16
        found = exported.get_tensor("model.norm.weight")
    with safe_open(folder / "model.safetensors", "pt") as original:
        assert torch.equal(found, original.get_tensor("model.norm.weight"))
