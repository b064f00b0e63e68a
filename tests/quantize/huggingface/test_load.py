from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch
from family_shapes import FAMILY_SHAPES, shape_of
from logits import as_tensor
from safetensors.torch import load_file, save_file

from zse import format as zse_format
from zse.errors import FormatError, MissingDependencyError, UsageError
from zse.format import ZSEReader, convert_model
from zse.format.as_torch import unpack_nibbles
from zse.models.builtin import builtin_checkpoint
from zse.models.families import all_families
from zse.models.runner import load_runner
from zse.options import load_options
from zse.quantize.huggingface import load
from zse.quantize.huggingface.bnb import to_bitsandbytes
from zse.quantize.huggingface.layers import ZSELinear
from zse.quantize.huggingface.load import load_zse_model

if TYPE_CHECKING:
    from pathlib import Path

FAMILIES = sorted(set(all_families()) - set(FAMILY_SHAPES))
"""Those whose files keep tensors as checkpoints have them."""
PROMPT = [3, 17, 95, 4, 60, 60, 8, 31, 2, 77, 41, 12]


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([PROMPT])).logits[0]


def runner_logits(path: Path) -> torch.Tensor:
    runner = load_runner(path, load_options(device="torch", num_blocks=4, block_size=8, threads=1))
    try:
        return as_tensor(runner.logits(PROMPT))
    finally:
        runner.close()


def assert_close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-4) -> None:
    assert found.shape == expected.shape
    assert float((found - expected).abs().max() / expected.abs().max()) < tolerance


MIXED = ("mixtral", "qwen3_moe", "gpt_oss", "qwen3_next", "deepseek_v2", "glm4")


@pytest.mark.parametrize(
    ("family", "quantization"), [*((family, "int4") for family in MIXED), ("mixtral", "mxfp4")]
)
def test_experts_and_reordered_rows_give_the_logits_of_the_engine(
    family: str, quantization: str, make_file
) -> None:
    path = make_file(family, quantization, **shape_of(family, num_hidden_layers=3))
    model, _, info = load_zse_model(path, device="cpu")
    assert isinstance(model.lm_head, ZSELinear)
    assert info["schemes"][quantization] > 6
    assert_close(logits(model), runner_logits(path))


def test_experts_that_a_checkpoint_had_in_mxfp4_are_put_back(
    make_checkpoint, tmp_path: Path
) -> None:
    shape = shape_of("gpt_oss", quantization_config={"quant_method": "mxfp4"})
    folder = make_checkpoint(tmp_path / "packed", "gpt_oss", **shape)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, rows, columns = tensors.pop(name).shape
        codes = torch.randint(0, 256, (experts, rows, columns // 32, 16), dtype=torch.uint8)
        tensors[f"{name}_blocks"] = codes
        tensors[f"{name}_scales"] = torch.randint(117, 121, codes.shape[:3], dtype=torch.uint8)
    save_file(tensors, folder / "model.safetensors")
    shutil.copy(builtin_checkpoint("tiny") / "tokenizer.json", folder)
    convert_model(folder, tmp_path / "m.zse", "int4")
    model, _, info = load_zse_model(tmp_path / "m.zse", device="cpu")
    assert {"int4", "mxfp4"} <= set(info["schemes"])
    assert_close(logits(model), runner_logits(tmp_path / "m.zse"))


@pytest.mark.parametrize("quantization", ["int4", "nf4", "int8", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_layers_give_the_logits_of_the_engine(
    family: str, quantization: str, make_file
) -> None:
    path = make_file(family, quantization)
    model, _, info = load_zse_model(path, device="cpu")
    assert isinstance(model.model.layers[1].self_attn.k_proj, ZSELinear)
    assert isinstance(model.lm_head, ZSELinear)
    assert model.config.model_type == family
    assert info["schemes"][quantization] >= 9
    assert_close(logits(model), runner_logits(path))


@pytest.mark.parametrize("family", FAMILIES)
def test_cached_weights_are_ordinary_layers_with_the_same_logits(family: str, make_file) -> None:
    path = make_file(family, "int4")
    model, _, _ = load_zse_model(path, cache_weights=True, device="cpu")
    assert type(model.model.layers[0].self_attn.q_proj) is torch.nn.Linear
    assert_close(logits(model), logits(load_zse_model(path, device="cpu")[0]))


@pytest.mark.parametrize("cache_weights", [True, False])
def test_a_dtype_that_is_named_is_the_one_computed_in(cache_weights: bool, make_file) -> None:
    path = make_file("qwen2", "int4")
    model, _, _ = load_zse_model(path, cache_weights, device="cpu", dtype="bfloat16")
    assert logits(model).dtype is torch.bfloat16
    assert_close(logits(model).float(), runner_logits(path), 4e-2)


def test_a_dtype_that_no_model_computes_in_is_refused(make_file) -> None:
    with pytest.raises(UsageError, match="'int8' is not known"):
        load_zse_model(make_file("qwen2", "int4"), device="cpu", dtype="int8")


def test_generate_gives_the_tokens_of_the_engine(tmp_path: Path) -> None:
    from zse.engine.llm import LLM
    from zse.engine.request import SamplingParams

    convert_model("tiny", tmp_path / "tiny.zse", quantization="int4")
    model, tokenizer, info = load_zse_model(tmp_path / "tiny.zse", device="cpu")
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    tokens = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    with torch.inference_mode():
        output = model.generate(torch.tensor([tokens]), max_new_tokens=12, do_sample=False)
    answer = output[0, len(tokens) :].tolist()
    with LLM(tmp_path / "tiny.zse", device="cpu", num_blocks=16, threads=1) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=12)
        assert llm.generate([tokens], params)[0].token_ids == answer
    assert "Paris" in tokenizer.decode(answer)
    assert info["size_bytes"] == (tmp_path / "tiny.zse").stat().st_size


@pytest.mark.parametrize("quantization", ["int4", "bf16"])
def test_tied_head_and_embedding_are_one_matrix_of_the_file(quantization: str, make_file) -> None:
    path = make_file("qwen3", quantization, tie_word_embeddings=True)
    packed, _, _ = load_zse_model(path, device="cpu")
    plain, _, _ = load_zse_model(path, cache_weights=True, device="cpu")
    assert plain.lm_head.weight is plain.model.embed_tokens.weight
    assert torch.equal(packed.lm_head.stored().values(), packed.model.embed_tokens.weight)
    assert_close(logits(packed), logits(plain))


@pytest.mark.filterwarnings("ignore")  # bitsandbytes tells what it would like to have installed
@pytest.mark.parametrize("family", FAMILIES)
def test_bitsandbytes_layers_give_the_logits_of_the_engine(family: str, make_file) -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    path = make_file(family, "nf4")
    model, _, _ = load_zse_model(path, backend="bnb", device="cpu")
    layer = model.model.layers[1].self_attn.o_proj
    assert type(layer) is bitsandbytes.nn.Linear4bit
    assert type(model.lm_head) is torch.nn.Linear  # INT8 in the file
    with ZSEReader(path) as reader:
        expected = reader.tensor("layers.1.o.weight")
    state = layer.weight.quant_state
    found = bitsandbytes.functional.dequantize_4bit(layer.weight.data, state)
    assert_close(found, expected, 1e-6)
    assert_close(logits(model), runner_logits(path), 2e-2)  # its CPU kernel computes in bfloat16


def test_bitsandbytes_has_neighbours_in_a_byte_and_the_first_one_high() -> None:
    packed = torch.randint(0, 256, (3, 64), dtype=torch.uint8)
    codes = unpack_nibbles(packed, 32).reshape(-1, 2)
    assert torch.equal(to_bitsandbytes(packed, 32)[:, 0], codes[:, 0] * 16 + codes[:, 1])


def test_layers_outlive_the_file(make_file, tmp_path: Path) -> None:
    path = tmp_path / "copy.zse"
    path.write_bytes(make_file("llama", "int4").read_bytes())
    model, _, _ = load_zse_model(path, device="cpu")
    before = logits(model)
    path.write_bytes(b"")
    assert torch.equal(logits(model), before)


def test_half_precision_inputs_give_outputs_of_their_type(make_file) -> None:
    layer = load_zse_model(make_file("qwen2", "int4"), device="cpu")[0].model.layers[0]
    projection = layer.self_attn.o_proj
    inputs = torch.randn(2, 3, 128)
    outputs = projection(inputs.bfloat16())
    assert outputs.dtype is torch.bfloat16
    assert_close(outputs.float(), projection(inputs), 2e-2)
    assert "scheme=int4, group_size=128" in repr(projection)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "onnx"}, "backend 'onnx'"),
        ({"cache_weights": "yes"}, "cache_weights is 'yes'"),
        ({"device": "tpu9"}, "device 'tpu9'"),
        ({"device": "meta"}, "device 'meta'"),
    ],
)
def test_unknown_option_is_a_usage_error(options: dict[str, Any], message: str, make_file) -> None:
    with pytest.raises(UsageError, match=message):
        load_zse_model(make_file("llama", "int4"), **options)


def test_bitsandbytes_without_an_nf4_layer_is_refused(make_file) -> None:
    with pytest.raises(UsageError, match="the file has fp32, int4, int8") as caught:
        load_zse_model(make_file("llama", "int4"), backend="bnb", device="cpu")
    assert "--quant nf4" in caught.value.hint


@pytest.mark.parametrize("missing", ["transformers", "bitsandbytes"])
def test_missing_package_is_named_with_the_way_to_have_it(
    missing: str, make_file, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, missing, None)
    with pytest.raises(MissingDependencyError, match=missing) as caught:
        load_zse_model(make_file("llama", "nf4"), backend="bnb", device="cpu")
    assert "[hf]" in caught.value.hint


def test_file_without_a_tokenizer_is_a_format_error(llama_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bare"
    shutil.copytree(llama_folder, folder)
    (folder / "tokenizer.json").unlink()
    convert_model(folder, tmp_path / "m.zse", "int4", allow_no_tokenizer=True)
    with pytest.raises(FormatError, match=r"no section tokenizer\.json"):
        load_zse_model(tmp_path / "m.zse", device="cpu")


def test_configuration_of_another_shape_is_a_format_error(
    make_file, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = load._empty_model

    def wider(transformers: Any, reader: Any, dtype: torch.dtype) -> Any:
        model = original(transformers, reader, dtype)
        config = model.config
        config.intermediate_size += 1
        with torch.device("meta"):
            return type(model)(config)

    monkeypatch.setattr(load, "_empty_model", wider)
    with pytest.raises(FormatError, match=r"gate_proj is \(256, 128\).* gives \(257, 128\)"):
        load_zse_model(make_file("llama", "int4"), device="cpu")


def test_the_format_package_offers_it() -> None:
    assert zse_format.load_zse_model is load_zse_model
