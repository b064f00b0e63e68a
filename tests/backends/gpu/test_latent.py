"""Latent attention on the GPU backend, in the interpreter: the logits of torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from any_layers import write_model
from family_shapes import shape_of
from interpreted_runner import open_runner
from logits import as_tensor
from model_pairs import ARCHITECTURES, CONFIG_CLASSES

from zse.backends.gpu.supported import check_supported
from zse.backends.types import SequenceChunk, StepBatch, kind_of
from zse.errors import UnsupportedModelError
from zse.models.decoder import logits_of
from zse.models.families import read_checkpoint
from zse.models.runner import load_runner
from zse.options import load_options

if TYPE_CHECKING:
    from pathlib import Path

    from zse.models.runner import ModelRunner
    from zse.models.spec import ModelSpec

TOLERANCE = 2e-2
TOKENS = [5, 17, 70, 33, 9]
WIDTHS = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


def latent_model(family: str, **changes: Any) -> ModelSpec:
    config = CONFIG_CLASSES[family](**shape_of(family, **{**WIDTHS, **changes}))
    return read_checkpoint(config.to_dict() | {"architectures": [ARCHITECTURES[family]]})


def torch_logits(path: Path, spec: ModelSpec) -> torch.Tensor:
    runner = load_runner(path, load_options(device="torch", num_blocks=8), spec=spec)
    expected = as_tensor(runner.logits(TOKENS))
    runner.close()
    return expected


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def logits_of_step(runner: ModelRunner, *chunks: tuple[list[int], int, list[int]]) -> torch.Tensor:
    """Return the logits of a step: of each chunk tokens, the first one's position, blocks."""
    backend = runner._backend
    made = [
        SequenceChunk(slot, tokens, start, blocks, kind_of(len(tokens)), wants_logits=True)
        for slot, (tokens, start, blocks) in enumerate(chunks)
    ]
    step = backend.begin(StepBatch(chunks=made, sampling=[()] * len(made)))
    return as_tensor(backend.join_rows([logits_of(backend, runner.spec, step)]))


@pytest.mark.parametrize(
    ("family", "kv_dtype", "changes"),
    [
        ("deepseek_v2", "bf16", {"q_lora_rank": None}),
        ("deepseek_v3", "int8", {"q_lora_rank": 128, "attention_bias": True}),
    ],
)
def test_prompts_and_tokens_in_one_step_have_the_logits_of_torch(
    family: str, kv_dtype: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    spec, path = latent_model(family, **changes), tmp_path / "model.zse"
    write_model(path, spec, "int8")
    expected = torch_logits(path, spec)
    runner = open_runner(path, spec=spec, kv_dtype=kv_dtype, max_context=32)
    prompt = logits_of_step(runner, (TOKENS[:4], 0, [2]))
    mixed = logits_of_step(runner, (TOKENS[4:], 4, [2]), (TOKENS[:3], 0, [5]))
    runner.close()
    assert relative_error(torch.cat((prompt, mixed[:1])), expected) < TOLERANCE
    assert relative_error(mixed[1:], expected[:3]) < TOLERANCE


def test_widths_that_no_kernel_takes_are_refused_by_name() -> None:
    check_supported(latent_model("deepseek_v2"))
    with pytest.raises(UnsupportedModelError, match="a latent of 256 columns"):
        check_supported(latent_model("deepseek_v2", kv_lora_rank=256))
