"""Adapters of experts add what PEFT's do: whole stacks, experts one by one, those of every token."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from logits import as_tensor
from lora_adapters import peft_logits, save_adapter
from safetensors.torch import load_file, save_file

from zse.backends.types import SequenceChunk, StepBatch
from zse.engine.adapters import Adapters
from zse.errors import LoRAError
from zse.models.decoder import logits_of
from zse.models.runner import ModelRunner, load_runner
from zse.options import LoRAOptions, load_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WAYS: tuple[dict[str, Any], ...] = (
    {"device": "cpu", "exact_activations": True, "kv_dtype": "fp32"},
    {"device": "torch"},
)
STACKS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
SHARED = ["shared_expert.gate_proj", "shared_expert.up_proj", "shared_expert.down_proj"]
BLOCKS = [[0, 5, 2], [1, 3, 9], [4, 8, 7]]
PROMPT = [3 + (7 * place) % 300 for place in range(23)]


@pytest.fixture(params=WAYS, ids=["cpu", "torch"])
def way(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


def opened(path: Path, way: dict[str, Any]) -> ModelRunner:
    return load_runner(path, load_options(**way, num_blocks=16, block_size=8))


def bound(runner: ModelRunner, folder: Path) -> Any:
    return Adapters(runner, LoRAOptions()).load("a", folder).handle


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def one_by_one(stacked: Path, folder: Path, width: int) -> Path:
    """Return an adapter that names each expert's matrices, the same numbers as one of stacks.

    ``width`` is that of an expert.
    """
    folder.mkdir()
    tensors, found = load_file(stacked / "adapter_model.safetensors"), {}
    for name, down in tensors.items():
        if ".lora_A." not in name or ".experts." not in name:
            continue
        up = tensors[name.replace("lora_A", "lora_B")]
        layer, rank = name.partition(".mlp.")[0], 4
        count = down.shape[0] // rank
        parts = ["down_proj"] if down.shape[1] == width else ["gate_proj", "up_proj"]
        for expert in range(count):
            own = up[:, expert::count]
            rows = own.shape[0] // len(parts)
            for place, part in enumerate(parts):
                at = f"{layer}.mlp.experts.{expert}.{part}.lora"
                matrix = down[expert * rank : (expert + 1) * rank]
                found[f"{at}_A.weight"] = matrix.clone()
                found[f"{at}_B.weight"] = own[place * rows : (place + 1) * rows].clone()
    save_file(found, folder / "adapter_model.safetensors")
    config = json.loads((stacked / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "target_parameters": None}))
    return folder


def width_of(pair: Any) -> int:
    return pair.reference.config.moe_intermediate_size


def test_adapters_of_experts_are_pefts_as_stacks_and_one_by_one(
    make_pair: Callable[..., Any], tmp_path: Path, way: dict[str, Any]
) -> None:
    pair = make_pair("qwen3_moe", "fp32")
    stacked = save_adapter(
        tmp_path / "stacked", pair.reference, target_modules=[], target_parameters=STACKS
    )
    expected = peft_logits(pair.reference, stacked, PROMPT)
    runner = opened(pair.path, way)
    try:
        for folder in (stacked, one_by_one(stacked, tmp_path / "one", width_of(pair))):
            adapter = bound(runner, folder)
            assert distance(as_tensor(runner.logits(PROMPT, adapter=adapter)), expected) < 1e-4
            alone = runner.logits(PROMPT, adapter=adapter, chunk_tokens=1)
            assert distance(as_tensor(alone), expected) < 1e-4
        assert distance(as_tensor(runner.logits(PROMPT)), pair.logits(PROMPT)) < 1e-4
    finally:
        runner.close()
    assert distance(pair.logits(PROMPT), expected) > 0.01


def test_an_adapter_of_the_expert_of_every_token_is_pefts(
    make_pair: Callable[..., Any], tmp_path: Path, way: dict[str, Any]
) -> None:
    pair = make_pair("qwen2_moe", "fp32")
    names = [name for name, _ in pair.reference.named_modules() if name.endswith(tuple(SHARED))]
    folder = save_adapter(tmp_path / "adapter", pair.reference, target_modules=names)
    expected = peft_logits(pair.reference, folder, PROMPT)
    runner = opened(pair.path, way)
    try:
        found = as_tensor(runner.logits(PROMPT, adapter=bound(runner, folder)))
    finally:
        runner.close()
    assert distance(found, expected) < 1e-4
    assert distance(pair.logits(PROMPT), expected) > 0.01


def test_each_row_of_a_step_has_the_experts_of_its_own_adapter(
    make_pair: Callable[..., Any], tmp_path: Path
) -> None:
    """Two adapters and none in one step: what each has alone."""
    pair = make_pair("qwen3_moe", "fp32")
    folders = [
        save_adapter(
            tmp_path / str(seed),
            pair.reference,
            seed=seed,
            target_modules=["q_proj"],
            target_parameters=STACKS,
        )
        for seed in (1, 2)
    ]
    runner = opened(pair.path, WAYS[0])
    try:
        adapters = [*(bound(runner, folder) for folder in folders), None]
        alone = [as_tensor(runner.logits(PROMPT, adapter=one)) for one in adapters]
        chunks = [
            SequenceChunk(index, PROMPT, 0, blocks, "prefill", True, adapter=adapter)
            for index, (adapter, blocks) in enumerate(zip(adapters, BLOCKS, strict=True))
        ]
        backend = runner._backend
        step = backend.begin(StepBatch(chunks=chunks, sampling=[()] * len(chunks)))
        found = as_tensor(backend.join_rows([logits_of(backend, runner.spec, step)]))
    finally:
        runner.close()
    assert distance(found, torch.cat(alone)) < 1e-5
    assert distance(alone[0], alone[1]) > 0.01


def test_an_expert_that_is_adapted_twice_is_refused(
    make_pair: Callable[..., Any], tmp_path: Path
) -> None:
    pair = make_pair("qwen3_moe", "fp32")
    stacked = save_adapter(
        tmp_path / "stacked", pair.reference, target_modules=[], target_parameters=STACKS
    )
    single = one_by_one(stacked, tmp_path / "one", width_of(pair))
    path = stacked / "adapter_model.safetensors"
    more = load_file(single / "adapter_model.safetensors")
    save_file({**load_file(path), **more}, path)
    runner = opened(pair.path, WAYS[0])
    try:
        with pytest.raises(LoRAError, match="twice"):
            bound(runner, stacked)
    finally:
        runner.close()
