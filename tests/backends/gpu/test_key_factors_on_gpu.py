"""Keys with large constants in an INT8 cache on a GPU, in prompts, in pieces and token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from key_constants import CONSTANT, with_constants
from logits import as_tensor

from zse.models.runner import load_runner
from zse.options import load_options
from zse.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.gpu
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}


@pytest.mark.parametrize(("length", "chunk"), [(200, 512), (200, 70), (40, 1)])
def test_their_rest_is_kept(
    length: int,
    chunk: int,
    make_pair: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, settings = tmp_path / "constants.zse", load_settings()
    with_constants(make_pair("qwen2", "int8", **HEADS).path, path, (0, 1))
    tokens = torch.randint(3, 320, (length,), generator=torch.Generator().manual_seed(1)).tolist()

    def logits(device: str, kv_dtype: str) -> torch.Tensor:
        kernels = settings.serve.load.device.kernels if device == "cuda" else ""
        options = load_options(device=device, kv_dtype=kv_dtype, num_blocks=64, kernels=kernels)
        runner = load_runner(path, options, cache_dir=settings.cache_dir)
        found = as_tensor(runner.logits(tokens, chunk_tokens=chunk))
        runner.close()
        return found

    expected, narrow = logits("torch", "fp32"), logits("cuda", "int8")
    monkeypatch.setattr("zse.backends.key_factors.USUAL_SIZE", 2 * CONSTANT)
    undivided = logits("torch", "int8")
    assert (narrow - expected).norm() < 0.5 * (undivided - expected).norm()
