"""Every family on a GPU: the rows of its logits are those of torch, which are transformers' own.

Random models show what 16 bits do more than trained ones. Random experts score alike, so a token
may choose another one than in float32; scores that are not scaled are sharp; a state gathers errors
over a prompt. So the middle row decides, and the bounds are as wide as a cache in bfloat16 makes
torch's own errors; what a kernel leaves out or reads wrong is far beyond them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from family_shapes import ENCODERS
from logits import as_tensor

from zse.models.families import all_families
from zse.models.runner import ModelRunner, load_runner
from zse.options import load_options
from zse.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.gpu
TOLERANCE = 6e-2
WIDE = {"granite": 0.1, "qwen3_5": 0.15, "qwen3_5_moe": 0.15, "qwen3_next": 0.15}
SHAPE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1000,
    "max_position_embeddings": 1024,
}
_EXPERTS = {"moe_intermediate_size": 128, "shared_expert_intermediate_size": 128}
_STATES = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}
_LATENTS = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_intermediate_size": 128,
}
CHANGES: dict[str, dict[str, Any]] = {
    "deepseek_v2": _LATENTS,
    "deepseek_v3": {**_LATENTS, "q_lora_rank": 128},
    "gemma2": {"head_dim": 128},
    "gemma4": {
        "head_dim": 256,
        "global_head_dim": 512,
        "moe_intermediate_size": 128,
        "hidden_size_per_layer_input": 128,
        "vocab_size_per_layer_input": 1000,
    },
    "glm4_moe": {"moe_intermediate_size": 128},
    "gpt2": {"n_embd": 256, "n_inner": 512, "n_head": 4, "n_positions": 1024},
    "mixtral": {"intermediate_size": 256},
    "qwen2_moe": _EXPERTS,
    "qwen3_5": {**_STATES, "head_dim": 256},
    "qwen3_5_moe": {**_STATES, **_EXPERTS, "head_dim": 256},
    "qwen3_moe": {"moe_intermediate_size": 128},
    "qwen3_next": {**_STATES, **_EXPERTS, "head_dim": 256},
}


def prompt(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, 1000, (length,), generator=generator).tolist()


@pytest.fixture(params=sorted(set(all_families()) - set(ENCODERS)))
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["bf16", "int8"])
def pair(request: pytest.FixtureRequest, family: str, make_pair: Callable[..., Any]) -> Any:
    return make_pair(family, request.param, **{**SHAPE, **CHANGES.get(family, {})})


@pytest.fixture
def runners(pair: Any) -> Iterator[tuple[ModelRunner, ModelRunner]]:
    settings = load_settings()
    options = load_options(
        device="cuda", num_blocks=64, max_sequences=8, prefill_precision="16",
        kernels=settings.serve.load.device.kernels,
    )  # fmt: skip
    gpu = load_runner(pair.path, options, cache_dir=settings.cache_dir)
    reference = load_runner(pair.path, load_options(device="torch", num_blocks=64))
    yield gpu, reference
    gpu.close()
    reference.close()


@pytest.mark.parametrize(("length", "chunk"), [(300, 512), (300, 70), (40, 1)])
def test_rows_of_logits_are_those_of_torch(
    runners: tuple[ModelRunner, ModelRunner], family: str, length: int, chunk: int
) -> None:
    gpu, reference = runners
    expected = as_tensor(reference.logits(prompt(length)))
    found = as_tensor(gpu.logits(prompt(length), chunk_tokens=chunk))
    errors = (found - expected).norm(dim=1) / expected.norm(dim=1)
    assert float(errors.median()) < WIDE.get(family, TOLERANCE)
