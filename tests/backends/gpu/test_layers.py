"""Layers of every kind on the GPU backend, in the interpreter: the logits of torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from any_layers import write_model
from attention_models import bare, beside, capped, gates, mixed, sinks, told
from interpreted_runner import open_runner
from logits import as_tensor

from zse.models.runner import load_runner
from zse.options import load_options

if TYPE_CHECKING:
    from pathlib import Path

TOLERANCE = 2e-2
TOKENS = [5, 17, 70, 33, 9, 200]


@pytest.mark.parametrize(
    ("make", "kv_dtype"),
    [
        (sinks, "int8"),
        (gates, "int8"),
        (capped, "bf16"),
        (mixed, "bf16"),
        (bare, "bf16"),
        (beside, "bf16"),
        (told, "bf16"),
    ],
)
def test_a_prompt_and_a_token_after_it_have_the_logits_of_torch(
    make: Any, kv_dtype: str, tmp_path: Path
) -> None:
    spec, path = make(), tmp_path / "model.zse"
    write_model(path, spec, "int8")
    torch_runner = load_runner(path, load_options(device="torch", num_blocks=8), spec=spec)
    expected = as_tensor(torch_runner.logits(TOKENS))
    torch_runner.close()
    runner = open_runner(path, spec=spec, kv_dtype=kv_dtype)
    found = as_tensor(runner.logits(TOKENS, chunk_tokens=len(TOKENS) - 1))
    runner.close()
    assert float((found - expected).norm() / expected.norm()) < TOLERANCE
