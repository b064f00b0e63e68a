"""A slice of a trained model at every scheme, beside the logits that ``transformers`` computed."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest
import torch
from logits import as_tensor

from zse.models.runner import load_runner
from zse.options import load_options
from zse.quantize.convert import convert_model

CAPTURED = Path(__file__).resolve().parents[1] / "data" / "smollm2"
# The mean divergence in nats that a scheme may cost: half as much again as was measured.
LIMITS = {"bf16": 1e-4, "fp16": 1e-4, "int8": 0.0018, "nf4": 0.068, "int4": 0.046}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slice")
    packed = (CAPTURED / "slice.safetensors.xz").read_bytes()
    (folder / "model.safetensors").write_bytes(lzma.decompress(packed))
    (folder / "config.json").write_bytes((CAPTURED / "slice_config.json").read_bytes())
    return folder


@pytest.mark.parametrize("backend", ["cpu", "torch"])
@pytest.mark.parametrize("quant", sorted(LIMITS))
def test_trained_weights_keep_their_logits_as_far_as_a_scheme_can(
    checkpoint: Path, tmp_path: Path, quant: str, backend: str
) -> None:
    captured = json.loads((CAPTURED / "logits.json").read_text())
    convert_model(checkpoint, tmp_path / "slice.zse", quant, allow_no_tokenizer=True)
    options = load_options(device=backend, max_context=64, max_sequences=1)
    runner = load_runner(tmp_path / "slice.zse", options, cache_dir=tmp_path)
    try:
        found = as_tensor(runner.logits(captured["ids"], chunk_tokens=64)).double()
    finally:
        runner.close()
    expected = torch.tensor(captured["logits"], dtype=torch.float64)
    p, q = torch.log_softmax(expected, dim=1), torch.log_softmax(found, dim=1)
    divergence = float((p.exp() * (p - q)).sum(dim=1).mean())
    assert divergence < LIMITS[quant]
