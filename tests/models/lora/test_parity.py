"""Logits of adapters equal those of PEFT in float32, through the paged path, on CPU and torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from logits import as_tensor
from lora_adapters import peft_logits, save_adapter

from zse.backends.resident import ROWS_AT_ONCE
from zse.models.lora.modules import module_of, places_at_run_time
from zse.models.lora.read import read_adapter
from zse.models.runner import ModelRunner, load_runner
from zse.options import load_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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


@pytest.mark.parametrize("family", ["deepseek_v3", "gemma4", "glm4", "gpt2", "phi3", "qwen3_5"])
def test_families_whose_matrices_lie_otherwise_are_pefts(
    make_pair: Callable[..., Any], tmp_path: Path, family: str
) -> None:
    """Rows in another order, joined or turned in the checkpoint, states, latents."""
    pair = make_pair(family, "fp32")
    runner = opened(pair.path, WAYS[0])
    try:
        places = places_at_run_time(runner.spec)
        modules = {name for name, _ in pair.reference.named_modules()}
        names = [name for name in modules if module_of(name, places) in places]
        if family == "deepseek_v3":  # of its dense layers PEFT would make experts
            names = [name for name in names if "attn" in name]
        folder = save_adapter(tmp_path / "adapter", pair.reference, target_modules=names, size=0.1)
        expected = peft_logits(pair.reference, folder, PROMPT)
        assert_close(as_tensor(runner.logits(PROMPT, adapter=bound(runner, folder))), expected)
    finally:
        runner.close()
    assert float((expected - pair.logits(PROMPT)).abs().max()) > 0.1


def test_rows_beyond_those_that_are_computed_at_once_have_their_adapter(
    make_pair: Callable[..., Any], tmp_path: Path
) -> None:
    pair = make_pair("llama", "int8", max_position_embeddings=512)
    prompt = [3 + (11 * place) % 300 for place in range(300)]
    assert len(prompt) > ROWS_AT_ONCE
    folder = save_adapter(tmp_path / "adapter", pair.reference, dtype=torch.float16)
    expected = peft_logits(pair.reference, folder, prompt)
    runner = load_runner(pair.path, load_options(**WAYS[0], num_blocks=40, block_size=8))
    try:
        found = as_tensor(runner.logits(prompt, adapter=bound(runner, folder)))
    finally:
        runner.close()
    assert_close(found, expected, tolerance=1e-3)
