"""A file whose matrices have a scheme each, on the GPU backend in the interpreter."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING

import pytest
import torch
from family_shapes import shape_of
from interpreted_runner import open_runner
from logits import as_tensor

from zse.format import Scheme, ZSEReader, ZSEWriter
from zse.format.as_torch import bytes_from
from zse.format.layout import PlannedTensor
from zse.models.families import read_checkpoint
from zse.models.runner import load_runner
from zse.options import load_options
from zse.quantize.scheme import quantize_rows

if TYPE_CHECKING:
    from pathlib import Path

    from zse.models.spec import ModelSpec

SCHEMES = [(Scheme.INT4, 128), (Scheme.NF4, 64), (Scheme.INT8, 0), (Scheme.BF16, 0)]
TOKENS = [5, 17, 70, 33]


def write_mixed(path: Path, spec: ModelSpec) -> set[Scheme]:
    """Write random weights, each matrix in the next scheme; return the schemes."""
    generator, schemes = torch.Generator().manual_seed(4), cycle(SCHEMES)
    tensors, plan = {}, []
    for weight in spec.weights():
        scheme, size = (Scheme.FP32, 0) if len(weight.shape) == 1 else (Scheme.INT8, 0)
        if weight.is_product:
            scheme, size = next(schemes)
        values = torch.randn(weight.shape, generator=generator) * 0.08
        values = 1 + values if weight.kind == "norm" else values
        tensors[weight.name] = quantize_rows(scheme, values, size)
        plan.append(
            PlannedTensor(name=weight.name, scheme=scheme, shape=weight.shape, group_size=size)
        )
    with ZSEWriter(path, architecture="llama", model_config=spec.header, provenance={}) as writer:
        writer.plan([("all", plan)])
        for name, parts in tensors.items():
            for role, data in parts.items():
                writer.write_part(name, role, bytes_from(data))
        writer.close()
    with ZSEReader(path) as reader:
        return {entry.scheme for entry in reader.header.tensors}


@pytest.mark.slow
def test_every_matrix_is_multiplied_in_its_own_scheme(tmp_path: Path) -> None:
    shape = shape_of(
        "llama",
        num_hidden_layers=1,
        intermediate_size=128,
        vocab_size=128,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
    )
    spec = read_checkpoint({"architectures": ["LlamaForCausalLM"], **shape})
    assert write_mixed(tmp_path / "m.zse", spec) > {scheme for scheme, _ in SCHEMES}
    torch_runner = load_runner(tmp_path / "m.zse", load_options(device="torch", num_blocks=8))
    expected = as_tensor(torch_runner.logits(TOKENS))
    torch_runner.close()
    runner = open_runner(tmp_path / "m.zse")
    found = as_tensor(runner.logits(TOKENS))
    runner.close()
    assert float((found - expected).norm() / expected.norm()) < 2e-2
