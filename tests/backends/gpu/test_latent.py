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

from zse.backends.gpu.inputs import InputShape
from zse.backends.gpu.kv_pool import layout_for
from zse.backends.gpu.plans import StepPlans
from zse.backends.gpu.supported import check_supported
from zse.backends.kv_groups import groups_of
from zse.backends.types import SequenceChunk, StepBatch, kind_of
from zse.device.facts_of_gpus import H200
from zse.errors import UnsupportedModelError
from zse.kernels.linear.weight import LinearWeight
from zse.models.decoder import logits_of
from zse.models.families import read_checkpoint
from zse.models.runner import load_runner
from zse.options import load_options
from zse.units import align_up

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


@pytest.mark.parametrize(("dtype", "row_bytes"), [("bf16", 576 * 2), ("int8", 576 + 18 * 2)])
def test_one_row_is_kept_of_a_token_and_no_values(dtype: str, row_bytes: int) -> None:
    spec = latent_model("deepseek_v2", num_hidden_layers=3)
    layout = layout_for(spec, dtype, groups_of(spec, load_options(block_size=32)))
    (block_bytes,) = layout.block_bytes()
    rows = align_up(32 * 576 * (2 if dtype == "bf16" else 1), 256)
    assert block_bytes == 3 * (rows + align_up(32 * (row_bytes - rows // 32), 256))
    parts = [list(layer.pieces(layer.at(0, 4))) for layer in layout.layers.values()]
    assert [sum(length for _, length in each) for each in parts] == [32 * row_bytes] * 3


def test_wide_queries_have_room_in_steps_of_prompts_and_of_single_tokens() -> None:
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    spec = latent_model("deepseek_v3", q_lora_rank=128, **heads)
    weights = [weight for group in spec.groups() for weight in group.weights]
    linears = {
        weight.name: LinearWeight(
            scheme="bf16", rows=weight.shape[0], columns=weight.shape[1], weights=0
        )
        for weight in weights
        if len(weight.shape) == 2
    }
    plans = StepPlans(spec, linears, H200, load_options(max_context=4096, max_sequences=4))
    decode = InputShape(decode_rows=4, sequences=4, table_stride=1, wanted=4)
    prompt = InputShape(decode_rows=0, prefill_rows=900, sequences=1, table_stride=1, wanted=1)
    assert plans.scratch(decode).query == 4 * 4 * 576 * 2
    assert plans.scratch(prompt).query == 900 * 4 * 576 * 2
    assert plans.scratch(decode).attention == 4 * 4 * 33 * (512 + 2) * 4
    assert plans.scratch(prompt).sums == 900 * 4 * 192 * 4  # of queries that a latent makes
