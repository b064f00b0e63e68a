"""Adapters merged at conversion: the file answers as the adapter does that stays beside it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from family_shapes import shape_of
from logits import as_tensor
from random_adapters import write_adapter

from zse.errors import LoRAError
from zse.format import ZSEReader
from zse.models.families import read_checkpoint
from zse.models.lora.modules import places_at_run_time, places_in_files
from zse.models.lora.read import read_adapter
from zse.models.runner import load_runner
from zse.options import load_options
from zse.quantize.convert import convert_model
from zse.quantize.merging import merging_of

if TYPE_CHECKING:
    from pathlib import Path

PROMPT = [3 + (7 * place) % 300 for place in range(19)]
OPTIONS = load_options(
    device="cpu", exact_activations=True, kv_dtype="fp32", num_blocks=8, block_size=8
)


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> SimpleNamespace:
    """A float32 checkpoint without a tokenizer, its spec, and the folder of an adapter."""
    folder = tmp_path_factory.mktemp("checkpoint")
    torch.manual_seed(3)
    config = transformers.AutoConfig.for_model(request.param, **shape_of(request.param))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    spec = read_checkpoint(json.loads((folder / "config.json").read_text()))
    adapter = write_adapter(folder / "adapter", spec, dtype=torch.bfloat16)
    return SimpleNamespace(folder=folder, spec=spec, adapter=adapter)


def converted(checkpoint: SimpleNamespace, out: Path, scheme: str, *adapters: Path) -> Path:
    convert_model(
        checkpoint.folder,
        out,
        scheme,
        allow_no_tokenizer=True,
        merge_lora=adapters,
    )
    return out


def logits(path: Path, adapter: Path | None = None) -> torch.Tensor:
    runner = load_runner(path, OPTIONS)
    try:
        handle: Any = None
        if adapter is not None:
            weights = read_adapter(adapter, "a", places_at_run_time(runner.spec), max_rank=64)
            handle = runner.bind_adapter(weights)
        return as_tensor(runner.logits(PROMPT, adapter=handle))
    finally:
        runner.close()


@pytest.mark.parametrize(("scheme", "tolerance"), [("fp16", 2e-3), ("bf16", 2e-2)])
def test_a_merged_file_answers_as_the_adapter_beside_it(
    checkpoint: SimpleNamespace, tmp_path: Path, scheme: str, tolerance: float
) -> None:
    plain = converted(checkpoint, tmp_path / "plain.zse", scheme)
    merged = converted(checkpoint, tmp_path / "merged.zse", scheme, checkpoint.adapter)
    expected, found = logits(plain, checkpoint.adapter), logits(merged)
    scale = float(expected.abs().max())
    assert float((found - expected).abs().max()) < tolerance * scale
    assert float((logits(plain) - expected).abs().max()) > 0.1 * scale


def test_rows_in_float32_are_those_of_the_adapter(checkpoint: SimpleNamespace) -> None:
    fake: Any = SimpleNamespace(spec=checkpoint.spec, plan=list(checkpoint.spec.groups()))
    merging = merging_of(fake, [checkpoint.adapter, checkpoint.adapter])
    assert merging is not None
    places = places_in_files(checkpoint.spec)
    adapter = read_adapter(checkpoint.adapter, "a", places, max_rank=64)
    place = places["model.layers.1.mlp.up_proj"]
    (part,) = [
        part for part in adapter.parts[place.weight.name] if part.first_row == place.first_row
    ]
    down = torch.frombuffer(bytearray(part.down.data), dtype=torch.bfloat16).view(part.rank, -1)
    up = torch.frombuffer(bytearray(part.up.data), dtype=torch.bfloat16).view(-1, part.rank)
    added = 2 * part.scale * (up.float() @ down.float())
    rows = torch.ones(7, place.source.columns, dtype=torch.float16)
    found = merging.merged(place.source.name, 5, rows)
    assert torch.allclose(found, 1 + added[5:12], rtol=1e-5, atol=1e-5)


def test_a_file_says_what_was_merged_into_it(checkpoint: SimpleNamespace, tmp_path: Path) -> None:
    merged = converted(checkpoint, tmp_path / "merged.zse", "int8", checkpoint.adapter)
    with ZSEReader(merged) as reader:
        assert len(reader.header.provenance["merged_lora"]) == 64
    plain = converted(checkpoint, tmp_path / "plain.zse", "int8")
    with ZSEReader(plain) as reader:
        assert "merged_lora" not in reader.header.provenance


def test_an_adapter_for_another_model_stops_a_conversion_before_it_writes(
    checkpoint: SimpleNamespace, tmp_path: Path
) -> None:
    other = transformers.AutoConfig.for_model("llama", **shape_of("llama", hidden_size=64))
    spec = read_checkpoint(other.to_dict() | {"architectures": ["LlamaForCausalLM"]})
    adapter = write_adapter(tmp_path / "adapter", spec)
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(LoRAError, match="has shape"):
        converted(checkpoint, out / "merged.zse", "int8", adapter)
    assert not list(out.iterdir())
