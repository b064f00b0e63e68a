"""Every family on a GPU: the rows of its logits are those of transformers.

Random experts score alike, and in 16 bits a token may choose another one than in float32: its row
is another then, and so are those that read its keys or its state. So the middle row decides for
models with experts, and the worst one for all others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from logits import as_tensor

from zse.models.families import all_families
from zse.models.runner import ModelRunner, load_runner
from zse.options import load_options
from zse.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.gpu
TOLERANCE = 6e-2
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
CHANGES: dict[str, dict[str, Any]] = {
    "gemma2": {"head_dim": 128},
    "gemma4": {"head_dim": 256, "global_head_dim": 512, "enable_moe_block": False},
    "glm4_moe": {"moe_intermediate_size": 128},
    "mixtral": {"intermediate_size": 256},
    "qwen2_moe": _EXPERTS,
    "qwen3_5": {**_STATES, "head_dim": 256},
    "qwen3_5_moe": {**_STATES, **_EXPERTS, "head_dim": 256},
    "qwen3_moe": {"moe_intermediate_size": 128},
    "qwen3_next": {**_STATES, **_EXPERTS, "head_dim": 256},
}
WITHOUT_KERNELS = {"bert", "gpt2", "modernbert"}
"""Those that a GPU refuses by name."""


def prompt(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, 1000, (length,), generator=generator).tolist()


@pytest.fixture(params=sorted(set(all_families()) - WITHOUT_KERNELS))
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["bf16", "int8"])
def pair(request: pytest.FixtureRequest, family: str, make_pair: Callable[..., Any]) -> Any:
    return make_pair(family, request.param, **{**SHAPE, **CHANGES.get(family, {})})


@pytest.fixture
def runner(pair: Any) -> Iterator[ModelRunner]:
    settings = load_settings()
    options = load_options(
        device="cuda", num_blocks=64, max_sequences=8, kernels=settings.serve.load.device.kernels
    )
    opened = load_runner(pair.path, options, cache_dir=settings.cache_dir)
    yield opened
    opened.close()


@pytest.mark.parametrize(("length", "chunk"), [(300, 512), (300, 70), (40, 1)])
def test_rows_of_logits_are_those_of_transformers(
    runner: ModelRunner, pair: Any, length: int, chunk: int
) -> None:
    token_ids = prompt(length)
    expected = pair.logits(token_ids)
    found = as_tensor(runner.logits(token_ids, chunk_tokens=chunk))
    errors = (found - expected).norm(dim=1) / expected.norm(dim=1)
    has_experts = any(layer.experts is not None for layer in runner.spec.layers)
    assert float(errors.median() if has_experts else errors.max()) < TOLERANCE
