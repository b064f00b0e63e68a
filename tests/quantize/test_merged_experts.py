"""An adapter of whole stacks of experts, as PEFT saves it, becomes part of their numbers."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch
from lora_adapters import peft_merged, save_adapter
from safetensors.torch import load_file, save_file
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from zse.errors import LoRAError
from zse.quantize.checkpoint import Checkpoint
from zse.quantize.merging import merging_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STACKS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A checkpoint with a tensor for each expert, its model, and an adapter of all experts."""
    folder = tmp_path_factory.mktemp("merged-experts")
    torch.manual_seed(3)
    config = Qwen3MoeConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=96,
        moe_intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=128,
    )
    made = Qwen3MoeForCausalLM(config).eval()
    made.save_pretrained(folder / "checkpoint")
    adapter = save_adapter(
        folder / "adapter", made, target_modules=["q_proj"], target_parameters=STACKS
    )
    peft_merged(made, adapter).save_pretrained(folder / "merged")
    expected = load_file(folder / "merged" / "model.safetensors")
    return SimpleNamespace(checkpoint=folder / "checkpoint", adapter=adapter, expected=expected)


@pytest.mark.parametrize("first", [0, 7])
def test_rows_are_those_that_peft_makes(model: SimpleNamespace, first: int) -> None:
    before = load_file(model.checkpoint / "model.safetensors")
    with Checkpoint(model.checkpoint) as checkpoint:
        merging = merging_of(checkpoint, [model.adapter])
        assert merging is not None
        changed = 0
        for name, rows in before.items():
            if rows.dim() < 2:
                continue
            found = merging.merged(name, first, rows[first : first + 11])
            torch.testing.assert_close(found, model.expected[name][first : first + 11])
            changed += not torch.equal(found, rows[first : first + 11])
    assert changed == 2 * (4 * 3 + 1)  # of each layer all experts, and the queries


def copied(model: SimpleNamespace, folder: Path, change: Callable[[dict, dict], None]) -> Path:
    """Return an adapter whose settings and tensors were changed."""
    folder.mkdir()
    config = json.loads((model.adapter / "adapter_config.json").read_text())
    tensors = load_file(model.adapter / "adapter_model.safetensors")
    change(config, tensors)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def of_experts(tensors: dict) -> list[str]:
    return [name for name in tensors if ".experts." in name]


def cut(_config: dict, tensors: dict) -> None:
    name = next(one for one in of_experts(tensors) if "lora_A" in one)
    tensors[name] = tensors[name][:-1].clone()


def halved(_config: dict, tensors: dict) -> None:
    tensors.pop(next(one for one in of_experts(tensors) if "lora_B" in one))


def elsewhere(_config: dict, tensors: dict) -> None:
    for name in of_experts(tensors):
        tensors[name.replace("layers.1.", "layers.7.")] = tensors.pop(name)


def ranked(config: dict, _tensors: dict) -> None:
    config["r"] = 2


def as_integers(_config: dict, tensors: dict) -> None:
    for name in of_experts(tensors):
        tensors[name] = tensors[name].to(torch.int32)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (cut, "no experts of its layer"),
        (halved, "one of the two matrices"),
        (elsewhere, "no matrix of this model"),
        (ranked, "expected|no experts of its layer"),
        (as_integers, "dtype I32"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(
    model: SimpleNamespace,
    tmp_path: Path,
    change: Callable[[dict, dict], None],
    words: str,
) -> None:
    folder = copied(model, tmp_path / "changed", change)
    with Checkpoint(model.checkpoint) as checkpoint, pytest.raises(LoRAError, match=words):
        merging_of(checkpoint, [folder])
