"""Rows over INT8 caches that one program a sequence reads have the logits of torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from interpreted_gpu import StreamLauncher
from interpreted_runner import open_runner
from logits import as_tensor

from zse.models.runner import load_runner
from zse.options import load_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SHAPE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 128,
    "vocab_size": 256,
    "num_hidden_layers": 1,
    "max_position_embeddings": 64,
}
TOKENS = [5, 17, 70, 33, 9, 200, 41]


def test_tokens_behind_a_prompt_have_the_logits_of_torch(make_pair: Callable[..., Any]) -> None:
    path: Path = make_pair("qwen2", "int8", **SHAPE).path
    options = load_options(device="torch", num_blocks=8, kv_dtype="int8", block_size=32)
    torch_runner = load_runner(path, options)
    expected = as_tensor(torch_runner.logits(TOKENS))
    torch_runner.close()
    launchers: list[StreamLauncher] = []

    def launches(stream: Any) -> StreamLauncher:
        launchers.append(StreamLauncher(stream))
        return launchers[-1]

    runner = open_runner(path, kv_dtype="int8", launches=launches)
    found = as_tensor(runner.logits(TOKENS, chunk_tokens=3))
    runner.close()
    assert float((found - expected).norm() / expected.norm()) < 2e-2
    wide = [key for each in launchers for key in each.launched if "decode_wide" in key]
    assert wide
