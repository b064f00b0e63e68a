"""A long prompt's products of 8 bits on a GPU: near to those of 16, for every scheme."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from logits import as_tensor

from zse.models.runner import load_runner
from zse.options import load_options
from zse.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import torch

pytestmark = pytest.mark.gpu

SHAPE = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1000,
    "max_position_embeddings": 1024,
    "num_hidden_layers": 3,
}
PROMPT = [3 + (7 * place) % 900 for place in range(400)]
MOST = 0.1
"""Random weights let every rounding through: 0.05 in the interpreter."""


def logits_of(
    path: Path,
    precision: str,
    weights: str = "auto",
    tokens: int = len(PROMPT),
    *,
    is_expected: bool = False,
) -> torch.Tensor:
    settings = load_settings()
    options = load_options(
        device="cuda", num_blocks=64, max_sequences=8, prefill_precision=precision,
        prefill_weights=weights, kernels=settings.serve.load.device.kernels,
    )  # fmt: skip
    with closing(load_runner(path, options, cache_dir=settings.cache_dir)) as runner:
        if is_expected:
            runner.expect_step(tokens)
            runner.settle()
        return as_tensor(runner.logits(PROMPT[:tokens]))


@pytest.mark.parametrize("family", ["llama", "gemma2"])
@pytest.mark.parametrize("scheme", ["int4", "int3", "int2", "nf4", "nl4", "mxfp4", "int8"])
def test_logits_are_near_to_those_of_16_bits(
    make_pair: Callable[..., Any], family: str, scheme: str
) -> None:
    shape = {**SHAPE, "head_dim": 128} if family == "gemma2" else SHAPE
    path = make_pair(family, scheme, **shape).path
    narrow, wide = logits_of(path, "8"), logits_of(path, "16")
    errors = (narrow - wide).norm(dim=1) / wide.norm(dim=1)
    assert not narrow.equal(wide)
    assert float(errors.median()) < MOST


def test_matrices_of_16_bits_stay_what_they_are(make_pair: Callable[..., Any]) -> None:
    path = make_pair("llama", "bf16", **SHAPE).path
    assert logits_of(path, "8").equal(logits_of(path, "16"))


@pytest.mark.parametrize("scheme", ["int4", "int8"])
def test_kept_weights_hardly_change_long_prompts_and_serve_shorter_ones_too(
    make_pair: Callable[..., Any], scheme: str
) -> None:
    path = make_pair("llama", scheme, **SHAPE).path
    kept, made = (logits_of(path, "8", weights) for weights in ("keep", "make"))
    assert float(((kept - made).norm(dim=1) / made.norm(dim=1)).median()) < MOST
    kept, made, wide = (
        logits_of(path, precision, weights, 200)
        for precision, weights in (("8", "keep"), ("8", "make"), ("16", "make"))
    )
    assert made.equal(wide)
    assert not kept.equal(wide)
    errors = (kept - wide).norm(dim=1) / wide.norm(dim=1)
    assert float(errors.median()) < MOST


@pytest.mark.parametrize("scheme", ["int4", "int8"])
def test_a_long_prompt_that_was_expected_has_the_bits_of_one_that_was_not(
    make_pair: Callable[..., Any], scheme: str
) -> None:
    path = make_pair("llama", scheme, **SHAPE).path
    expected = logits_of(path, "8", "keep", is_expected=True)
    assert expected.equal(logits_of(path, "8", "keep"))
