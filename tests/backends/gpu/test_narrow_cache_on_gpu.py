"""Keys and values in four bits on a GPU: prompts, pieces of them, and token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from logits import as_tensor

from zse.models.runner import load_runner
from zse.options import load_options
from zse.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize(("length", "chunk"), [(200, 512), (200, 70), (70, 1)])
def test_logits_are_those_of_torch(
    length: int, chunk: int, head_dim: int, make_pair: Callable[..., Any]
) -> None:
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": head_dim}
    path, settings = make_pair("qwen3", "bf16", **heads).path, load_settings()
    tokens = torch.randint(3, 320, (length,), generator=torch.Generator().manual_seed(1)).tolist()

    def logits(device: str, kv_dtype: str) -> torch.Tensor:
        kernels = settings.serve.load.device.kernels if device == "cuda" else ""
        options = load_options(
            device=device, kv_dtype=kv_dtype, num_blocks=64, kernels=kernels,
            exact_activations=True,
        )  # fmt: skip
        runner = load_runner(path, options, cache_dir=settings.cache_dir)
        found = as_tensor(runner.logits(tokens, chunk_tokens=chunk))
        runner.close()
        return found

    exact, expected, found = (
        logits("torch", "fp32"),
        logits("torch", "int4"),
        logits("cuda", "int4"),
    )
    # Codes flip where 16 bits round another way, so the two differ, but by less than both lose.
    assert (found - expected).norm() < 0.7 * (expected - exact).norm()
