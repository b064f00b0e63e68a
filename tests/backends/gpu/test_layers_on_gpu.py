"""Layers of every kind on a GPU: the logits of torch, in prompts, in pieces and token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from any_layers import write_model
from attention_models import bare, beside, capped, gates, mixed, sinks, told
from logits import as_tensor

from zse.models.runner import ModelRunner, load_runner
from zse.options import load_options
from zse.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.gpu
TOLERANCE = 4e-2
UNSCALED_TOLERANCE = 1e-1
"""Where scores are not scaled: a cache in bfloat16 alone moves torch's own logits by 0.9% then, four
times as far as those of the other models."""


def prompt(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, 320, (length,), generator=generator).tolist()


@pytest.fixture
def open_pair(tmp_path: Path) -> Iterator[Callable[..., tuple[ModelRunner, ModelRunner]]]:
    """Open a model on the GPU and on torch."""
    opened: list[ModelRunner] = []

    def open_both(make: Any, kv_dtype: str) -> tuple[ModelRunner, ModelRunner]:
        spec, path = make(), tmp_path / "model.zse"
        write_model(path, spec, "int8")
        kernels = load_settings().serve.load.device.kernels
        chosen = (("cuda", kv_dtype, kernels), ("torch", "auto", ""))
        for device, dtype, pack in chosen:
            options = load_options(
                device=device, kv_dtype=dtype, num_blocks=64, kernels=pack, prefill_precision="16"
            )
            runner = load_runner(path, options, cache_dir=load_settings().cache_dir, spec=spec)
            opened.append(runner)
        return opened[0], opened[1]

    yield open_both
    for runner in opened:
        runner.close()


@pytest.mark.parametrize("kv_dtype", ["bf16", "int8"])
@pytest.mark.parametrize("make", [sinks, gates, capped, mixed, bare, beside, told])
def test_logits_are_those_of_torch(make: Any, kv_dtype: str, open_pair: Any) -> None:
    gpu, reference = open_pair(make, kv_dtype)
    for length, chunk in ((300, 512), (300, 70), (40, 1)):
        expected = as_tensor(reference.logits(prompt(length)))
        found = as_tensor(gpu.logits(prompt(length), chunk_tokens=chunk))
        tolerance = UNSCALED_TOLERANCE if make is mixed else TOLERANCE
        errors = (found - expected).norm(dim=1) / expected.norm(dim=1)
        if make is beside:  # a router that stands between two experts chooses by a rounding
            errors = errors.sort().values[: -max(1, length // 20)]
        assert float(errors.square().mean().sqrt()) < tolerance, sorted(errors.tolist())[-8:]
