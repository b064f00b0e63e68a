"""Logits of adapters equal those of PEFT in float32, through the paged path, on CPU and torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from logits import as_tensor
from lora_adapters import peft_logits, save_adapter

from zse.models.lora.modules import places_at_run_time
from zse.models.lora.read import read_adapter
from zse.models.runner import ModelRunner, load_runner
from zse.options import load_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import torch

WAYS: tuple[dict[str, Any], ...] = (
    {"device": "cpu", "exact_activations": True, "kv_dtype": "fp32"},
    {"device": "torch"},
)
PROMPT = [3 + (7 * place) % 300 for place in range(23)]
SETTINGS: dict[str, dict[str, Any]] = {
    "all modules": {},
    "some modules": {"target_modules": ["k_proj", "up_proj"]},
    "rank-stabilized": {"use_rslora": True, "r": 9},
    "ranks and alphas of modules": {
        "rank_pattern": {"q_proj": 3, "layers.1.mlp.down_proj": 7},
        "alpha_pattern": {"v_proj": 40, "^model.layers.0.self_attn.o_proj": 2},
    },
}


@pytest.fixture(params=WAYS, ids=["cpu", "torch"])
def way(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


def opened(path: Path, way: dict[str, Any]) -> ModelRunner:
    return load_runner(path, load_options(**way, num_blocks=8, block_size=8))


def bound(runner: ModelRunner, folder: Path) -> Any:
    adapter = read_adapter(folder, "some", places_at_run_time(runner.spec), max_rank=64)
    return runner.bind_adapter(adapter)


def assert_close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-4) -> None:
    assert float((found - expected).abs().max() / expected.abs().max()) < tolerance


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_logits_of_an_adapter_are_those_of_peft(
    make_pair: Callable[..., Any], tmp_path: Path, family: str, way: dict[str, Any]
) -> None:
    pair = make_pair(family, "fp32")
    folder = save_adapter(tmp_path / "adapter", pair.reference)
    expected = peft_logits(pair.reference, folder, PROMPT)
    runner = opened(pair.path, way)
    try:
        adapter = bound(runner, folder)
        assert_close(as_tensor(runner.logits(PROMPT, adapter=adapter)), expected)
        alone = as_tensor(runner.logits(PROMPT, adapter=adapter, chunk_tokens=1))
        assert_close(alone, expected)
        assert_close(as_tensor(runner.logits(PROMPT)), pair.logits(PROMPT))
    finally:
        runner.close()
    assert float((expected - pair.logits(PROMPT)).abs().max()) > 0.1


@pytest.mark.parametrize("name", SETTINGS)
def test_every_scale_is_pefts(
    make_pair: Callable[..., Any], tmp_path: Path, name: str, way: dict[str, Any]
) -> None:
    pair = make_pair("llama", "fp32")
    folder = save_adapter(tmp_path / "adapter", pair.reference, **SETTINGS[name])
    runner = opened(pair.path, way)
    try:
        found = as_tensor(runner.logits(PROMPT, adapter=bound(runner, folder)))
    finally:
        runner.close()
    assert_close(found, peft_logits(pair.reference, folder, PROMPT))
