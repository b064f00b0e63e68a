"""Models that are in memory: packed, handed to bitsandbytes, measured, and trained around."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import zse
from zse.errors import UsageError
from zse.format.as_torch import dequantize
from zse.quantize.huggingface.in_memory import (
    QuantizedLinear,
    convert_model_to_bnb,
    get_model_memory,
    quantize_model,
)
from zse.quantize.huggingface.layers import ZSELinear
from zse.quantize.huggingface.load import load_zse_model

if TYPE_CHECKING:
    from pathlib import Path

PROMPT = torch.tensor([[3, 17, 95, 4, 60, 8]])
BLOCK = torch.nn.Sequential


def linear(columns: int = 128, rows: int = 48) -> torch.nn.Linear:
    torch.manual_seed(2)
    return torch.nn.Linear(columns, rows)


@pytest.mark.parametrize(
    ("quantization", "error"),
    [("int8", 0.01), ("int4", 0.13), ("nf4", 0.13), ("mxfp4", 0.16), ("bf16", 4e-3)],
)
def test_a_quantized_linear_stands_in_the_place_of_an_ordinary_one(
    quantization: str, error: float
) -> None:
    before = linear()
    after = QuantizedLinear(before, quantization)
    inputs = torch.randn(2, 3, 128, generator=torch.Generator().manual_seed(1))
    expected, found = before(inputs).detach(), after(inputs).detach()
    assert isinstance(after, torch.nn.Linear)
    assert (after.in_features, after.out_features) == (128, 48)
    assert 0 < float((found - expected).norm() / expected.norm()) < error
    stored = after.stored()
    assert torch.equal(dequantize(stored.entry, stored.parts), stored.values())


def test_rows_that_no_group_divides_become_int8() -> None:
    assert QuantizedLinear(linear(columns=40), "int4").stored().entry.scheme == "int8"
    assert QuantizedLinear(linear(), "int4", 32).stored().entry.group_size == 32


def test_a_model_is_quantized_but_for_the_layers_that_are_skipped() -> None:
    model = BLOCK()
    for name in ("up", "gate", "lm_head"):
        model.add_module(name, linear(128, 128))
    before = get_model_memory(model)
    assert quantize_model(model, "int4", skip_layers=["lm_head", "gate"]) is model
    after = get_model_memory(model)
    kinds = {name: type(module) for name, module in model.named_children()}
    assert kinds == {"up": QuantizedLinear, "gate": torch.nn.Linear, "lm_head": torch.nn.Linear}
    assert (before.packed_layers, before.dense_layers) == (0, 3)
    assert (after.packed_layers, after.dense_layers) == (1, 2)
    assert before.total_bytes == 3 * (128 * 128 + 128) * 4
    assert after.packed_bytes == 128 * 64 + 128 * 4
    assert after.parameters_bytes == 2 * (128 * 128 + 128) * 4
    assert after.buffers_bytes == 128 * 4  # the bias of the packed one


def test_a_model_without_a_layer_to_quantize_is_an_error() -> None:
    with pytest.raises(UsageError, match="no linear layer but those skipped: lm_head"):
        quantize_model(BLOCK(torch.nn.Identity()))
    with pytest.raises(UsageError, match="quantization 'int5'"):
        quantize_model(BLOCK(linear()), "int5")


def test_what_seeds_call_them_is_offered_by_the_package() -> None:
    assert zse.quantize_model is quantize_model
    assert zse.QuantizedLinear is QuantizedLinear
    assert zse.get_model_memory is get_model_memory
    assert zse.convert_model_to_bnb is convert_model_to_bnb


@pytest.mark.filterwarnings("ignore")  # bitsandbytes tells what it would like to have installed
@pytest.mark.parametrize(("quantization", "is_nested"), [("nf4", False), ("int4", True)])
def test_layers_of_a_file_become_those_of_bitsandbytes(
    make_file: Any, quantization: str, is_nested: bool
) -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    from transformers import BitsAndBytesConfig

    model = load_zse_model(make_file("llama", quantization), device="cpu")[0]
    layer = model.model.layers[0].self_attn.q_proj
    expected = layer.stored().values()
    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.float32,
        bnb_4bit_use_double_quant=is_nested,
    )
    convert_model_to_bnb(model, config)
    made = model.model.layers[0].self_attn.q_proj
    assert type(made) is bitsandbytes.nn.Linear4bit
    assert isinstance(model.lm_head, ZSELinear)
    state = made.weight.quant_state
    assert state.nested is is_nested
    found = bitsandbytes.functional.dequantize_4bit(made.weight.data, state)
    error = float((found - expected).norm() / expected.norm())
    assert error < (1e-6 if quantization == "nf4" else 0.12)
    with torch.inference_mode():
        assert bool(model(PROMPT).logits.isfinite().all())


@pytest.mark.filterwarnings("ignore")
def test_eight_bits_of_bitsandbytes_are_refused() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BitsAndBytesConfig(load_in_8bit=True)
    with pytest.raises(UsageError, match="4 bits"):
        convert_model_to_bnb(BLOCK(linear()), config)


def test_gradients_of_packed_weights_are_those_of_the_numbers_they_stand_for() -> None:
    layer = QuantizedLinear(linear(), "int4")
    inputs = torch.randn(3, 128, requires_grad=True)
    layer(inputs).square().sum().backward()
    plain = inputs.detach().clone().requires_grad_()
    torch.nn.functional.linear(plain, layer.stored().values(), layer.bias).square().sum().backward()
    assert inputs.grad is not None
    assert plain.grad is not None
    assert float((inputs.grad - plain.grad).abs().max()) < 1e-5


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("quantization", ["int4", "bf16"])
def test_adapters_are_trained_around_packed_layers_saved_and_loaded(
    make_file: Any, tmp_path: Path, quantization: str
) -> None:
    peft = pytest.importorskip("peft")
    path = make_file("qwen2", quantization)
    base = load_zse_model(path, device="cpu")[0]
    packed = {name: part.clone() for name, part in base.named_buffers()}
    targets = ["q_proj", "v_proj", "down_proj"]
    model = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=targets))
    with torch.inference_mode():
        before = model(PROMPT).logits
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
    for _ in range(2):
        optimizer.zero_grad()
        model(PROMPT, labels=PROMPT).loss.backward()
        optimizer.step()
    adapters = {name: p for name, p in model.named_parameters() if "lora_" in name}
    assert len(adapters) == 2 * 3 * base.config.num_hidden_layers
    assert all(bool(p.grad.abs().max() > 0) for p in adapters.values())
    same = dict(base.named_buffers())
    assert all(torch.equal(part, same[_named(name, same)]) for name, part in packed.items())
    model.save_pretrained(tmp_path / "adapter")
    with torch.inference_mode():
        trained = model(PROMPT).logits
    again = peft.PeftModel.from_pretrained(
        load_zse_model(path, device="cpu")[0], str(tmp_path / "adapter")
    )
    with torch.inference_mode():
        found = again(PROMPT).logits
    assert float((trained - before).abs().max()) > 1e-5
    assert torch.equal(found, trained)


def _named(name: str, names: dict[str, Any]) -> str:
    """Return what a buffer is called since its layer has an adapter."""
    path, _, leaf = name.rpartition(".")
    return name if name in names else f"{path}.base_layer.{leaf}"
