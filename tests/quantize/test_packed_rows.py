"""Checkpoints that are MXFP4 already: same codes, same exponents, and transformers' logits."""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from family_shapes import shape_of
from logits import as_tensor
from safetensors.torch import load_file, save_file

from zse.errors import CheckpointError, ConversionError, UnsupportedModelError
from zse.format import Scheme, ZSEReader
from zse.models.runner import load_runner
from zse.options import load_options
from zse.quantize.convert import convert_model

if TYPE_CHECKING:
    from pathlib import Path

EXPERTS, HIDDEN, WIDTH = 5, 128, 96
QUANTIZATION = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
}
"""As checkpoints of gpt-oss have it."""
PROMPT = torch.randint(3, 320, (45,), generator=torch.Generator().manual_seed(3)).tolist()


def packed(experts: int, rows: int, columns: int) -> dict[str, torch.Tensor]:
    """Return random codes, and exponents that make weights of an ordinary size."""
    groups = (experts, rows, columns // 32)
    return {
        "blocks": torch.randint(0, 256, (*groups, 16), dtype=torch.uint8),
        "scales": torch.randint(121, 125, groups, dtype=torch.uint8),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny gpt-oss whose experts are MXFP4; read only."""
    path = tmp_path_factory.mktemp("packed") / "little-gpt-oss"
    torch.manual_seed(5)
    config = transformers.GptOssConfig(**shape_of("gpt_oss", sliding_window=9))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("bias", "sinks")):
                parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(path)
    tensors = load_file(path / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        _, columns, rows = tensors.pop(name).shape
        tensors |= {f"{name}_{part}": v for part, v in packed(EXPERTS, rows, columns).items()}
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    values = json.loads((path / "config.json").read_text()) | {"quantization_config": QUANTIZATION}
    (path / "config.json").write_text(json.dumps(values))
    return path


def convert(folder: Path, out: Path, quantization: str = "int4", **options: Any) -> Any:
    return convert_model(folder, out, quantization, allow_no_tokenizer=True, **options)


def numbers_of(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return float32 [..., K] by the words of the specification."""
    values = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = torch.cat((values, -values))
    codes = torch.stack((blocks & 15, blocks >> 4), -1).flatten(-2).int()
    return (values[codes] * torch.exp2(scales.float() - 127).unsqueeze(-1)).flatten(-2)


@pytest.mark.parametrize("quantization", ["int4", "bf16", "mxfp4"])
def test_experts_stay_what_they_are_and_gate_rows_come_first(
    folder: Path, tmp_path: Path, quantization: str
) -> None:
    report = convert(folder, tmp_path / "m.zse", quantization)
    assert report.kept_packed == 4
    source = load_file(folder / "model.safetensors")
    prefix = "model.layers.1.mlp.experts"
    with ZSEReader(tmp_path / "m.zse") as reader:
        for name in ("gate_up", "down"):
            assert reader.entry(f"layers.1.experts.{name}.weight").scheme is Scheme.MXFP4
        assert reader.entry("layers.1.o.weight").scheme is Scheme(quantization)
        up = reader.tensor("layers.1.experts.gate_up.weight").view(EXPERTS, 2, WIDTH, HIDDEN)
        down = reader.tensor("layers.1.experts.down.weight").view(EXPERTS, HIDDEN, WIDTH)
        bias = reader.tensor("layers.1.experts.gate_up.bias").view(EXPERTS, 2, WIDTH)
    wanted = numbers_of(source[f"{prefix}.gate_up_proj_blocks"], source[f"{prefix}.gate_up_proj_scales"])  # fmt: skip
    assert torch.equal(up[:, 0], wanted[:, 0::2])
    assert torch.equal(up[:, 1], wanted[:, 1::2])
    wanted = numbers_of(source[f"{prefix}.down_proj_blocks"], source[f"{prefix}.down_proj_scales"])
    assert torch.equal(down, wanted)
    assert torch.equal(bias[:, 1], source[f"{prefix}.gate_up_proj_bias"][:, 1::2].float())


def test_logits_are_those_that_transformers_dequantizes_to(folder: Path, tmp_path: Path) -> None:
    convert(folder, tmp_path / "m.zse", "bf16")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantization = transformers.Mxfp4Config(dequantize=True)
        reference = transformers.AutoModelForCausalLM.from_pretrained(
            folder, quantization_config=quantization, dtype=torch.bfloat16
        )
    with torch.no_grad():
        expected = reference.float().eval()(torch.tensor([PROMPT])).logits[0]
    for way in (
        {"device": "torch"},
        {"device": "cpu", "exact_activations": True, "kv_dtype": "fp32"},
    ):
        runner = load_runner(tmp_path / "m.zse", load_options(**way, num_blocks=16, block_size=8))
        try:
            found = as_tensor(runner.logits(PROMPT))
        finally:
            runner.close()
        assert float((found - expected).abs().max() / expected.abs().max()) < 1e-4


def test_a_stopped_conversion_goes_on_and_gives_the_same_bytes(
    folder: Path, tmp_path: Path
) -> None:
    whole = convert(folder, tmp_path / "whole.zse")

    def stop(now: Any) -> None:
        if now.stage == "convert" and now.done_bytes > 0.6 * now.total_bytes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(folder, tmp_path / "m.zse", resume=True, progress=stop)
    resumed = convert(folder, tmp_path / "m.zse", resume=True)
    assert resumed.resumed_groups
    assert resumed.sha256 == whole.sha256


@pytest.fixture
def damaged(folder: Path, tmp_path: Path) -> Any:
    """Return a function that copies the checkpoint with other tensors or values in its config."""

    def make(tensors: dict[str, torch.Tensor | None] | None = None, **values: Any) -> Path:
        copy = tmp_path / "damaged"
        copy.mkdir()
        found = load_file(folder / "model.safetensors") | (tensors or {})
        kept = {name: tensor for name, tensor in found.items() if tensor is not None}
        save_file(kept, copy / "model.safetensors", {"format": "pt"})
        config = json.loads((folder / "config.json").read_text()) | values
        (copy / "config.json").write_text(json.dumps(config))
        return copy

    return make


DOWN = "model.layers.0.mlp.experts.down_proj"


@pytest.mark.parametrize(
    ("tensors", "error", "words"),
    [
        ({f"{DOWN}_scales": None}, CheckpointError, "down_proj_scales"),
        ({f"{DOWN}_blocks": torch.zeros(5, 128, 3, 8, dtype=torch.uint8)}, CheckpointError, "shape"),
        ({f"{DOWN}_blocks": torch.zeros(5, 128, 3, 16)}, UnsupportedModelError, "dtype F32"),
        ({"model.layers.0.mlp.router.weight": None}, CheckpointError, "router"),
        ({"model.layers.0.self_attn.sinks": torch.zeros(3)}, CheckpointError, "sinks"),
        ({"model.layers.0.mlp.experts.gate_up_proj": torch.zeros(1)}, CheckpointError, "no place"),
    ],
)  # fmt: skip
def test_damaged_experts_are_refused_before_any_work(
    damaged: Any, tmp_path: Path, tensors: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        convert(damaged(tensors), tmp_path / "m.zse")
    assert not list(tmp_path.glob("m.zse*"))


def test_an_exponent_of_no_number_is_refused(damaged: Any, tmp_path: Path) -> None:
    scales = torch.full((5, 128, 3), 255, dtype=torch.uint8)
    with pytest.raises(ConversionError, match=r"layers\.0\..*down_proj_scales.*exponent 255"):
        convert(damaged({f"{DOWN}_scales": scales}), tmp_path / "m.zse")


@pytest.mark.parametrize(
    "values",
    [
        {"quantization_config": {"quant_method": "gptq"}},
        {"quantization_config": {}},
        {"quantization_config": "mxfp4"},
        {"swiglu_alpha": 1.5},
        {"layer_types": ["full_attention", "chunked_attention"]},
        {"num_experts_per_tok": 6},
    ],
)
def test_configurations_of_other_models_are_refused(
    damaged: Any, tmp_path: Path, values: dict[str, Any]
) -> None:
    with pytest.raises(UnsupportedModelError):
        convert(damaged(**values), tmp_path / "m.zse")


def test_other_families_take_no_packed_weights(damaged: Any, tmp_path: Path) -> None:
    copy = damaged(architectures=["LlamaForCausalLM"], model_type="llama")
    with pytest.raises(UnsupportedModelError, match="quantized already"):
        convert(copy, tmp_path / "m.zse")
