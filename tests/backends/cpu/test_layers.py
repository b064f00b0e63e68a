"""Layers of every kind on the CPU answer as on torch, whatever the families make of them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from any_layers import attention, dense, experts, layer, model, write_model
from logits import as_tensor

from zse.backends.kv_dtypes import dtypes_of
from zse.backends.kv_groups import groups_of, kv_block_bytes
from zse.backends.types import SequenceChunk, StepBatch, kind_of
from zse.errors import UnsupportedModelError
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.models.rope import RoPESpec
from zse.models.runner import load_runner
from zse.options import load_options

if TYPE_CHECKING:
    from pathlib import Path

    from zse.models.spec import ModelSpec

EXACT: dict[str, Any] = {"exact_activations": True, "kv_dtype": "fp32"}
TOLERANCE = 2e-5
ROUNDED_TOLERANCE = 6e-2
OTHER_ROPE = RoPESpec(theta=1e6, rotary_dim=32)
PARTIAL = RoPESpec(theta=1e4, rotary_dim=16)
HEAD_NORMS = {"q_norm": 32, "k_norm": 32}
POST_NORMS = {"mixer_post_norm": True, "mlp_post_norm": True}


def gpt_oss() -> ModelSpec:
    windowed = partial(attention, bias=True, has_sinks=True, window=9)
    full = partial(attention, bias=True, has_sinks=True, rope=OTHER_ROPE)
    mixture = partial(
        experts, bias=True, scoring="softmax_chosen", activation="swiglu_oai", limit=1.5
    )
    return model(
        [
            layer(index, mixer, mlp=None, experts=mixture)
            for index, mixer in enumerate((windowed, full))
        ]
    )


def gemma_3() -> ModelSpec:
    activation = partial(dense, activation="gelu_tanh")
    windowed = partial(attention, window=9, softcap=5.0, norms=HEAD_NORMS)
    full = partial(attention, rope=OTHER_ROPE, softcap=5.0, norms=HEAD_NORMS)
    layers = [
        layer(index, mixer, mlp=activation, **POST_NORMS)
        for index, mixer in enumerate((windowed, full))
    ]
    return model(layers, softcap=4.0)


def gemma_4() -> ModelSpec:
    """Heads of two shapes, tied and shared keys, experts beside an MLP, per-layer embeddings."""
    windowed = partial(attention, window=9, norms=HEAD_NORMS, value_norm_epsilon=1e-6)
    full = partial(
        attention,
        heads=(2, 1, 64),
        rope=PARTIAL,
        norms={"q_norm": 64, "k_norm": 64},
        values_are_keys=True,
        value_norm_epsilon=1e-6,
    )
    shared = partial(attention, heads=(2, 1, 64), rope=PARTIAL, norms={"q_norm": 64}, kv_of_layer=1)
    mixture = partial(
        experts, activation="gelu_tanh", router_norm=True, expert_scale=True, post_norm=True
    )
    common: dict[str, Any] = {
        "mlp": partial(dense, activation="gelu_tanh"),
        "experts": mixture,
        "dense_post_norm": True,
        "told": 96,
        "stream_scale": True,
        **POST_NORMS,
    }
    return model([layer(i, one, **common) for i, one in enumerate((windowed, full, shared))])


def olmo_2() -> ModelSpec:
    wide = partial(attention, norms={"q_norm": 128, "k_norm": 64})
    bare = {"mixer_norm": None, "mlp_norm": None, **POST_NORMS}
    return model([layer(index, wide, **bare) for index in range(2)])


def qwen_next() -> ModelSpec:
    gated = partial(attention, is_gated=True, rope=PARTIAL, norms=HEAD_NORMS)
    mixture = partial(experts, has_shared=True, has_shared_gate=True)
    return model([layer(index, gated, mlp=None, experts=mixture) for index in range(2)])


def glm_4() -> ModelSpec:
    groups = {"num_groups": 4, "groups_per_token": 2, "scores_in_group": 2}
    mixture = partial(
        experts,
        scoring="sigmoid",
        selection_bias=True,
        weight_scale=1.5,
        has_shared=True,
        **groups,
    )
    return model(
        [layer(0, attention), layer(1, attention, mlp=None, experts=mixture, residual_scale=0.5)]
    )


def without_positions() -> ModelSpec:
    return model([layer(0, attention), layer(1, partial(attention, rope=None))])


MODELS = [gpt_oss, gemma_3, gemma_4, olmo_2, qwen_next, glm_4, without_positions]


def prompt(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, 320, (length,), generator=generator).tolist()


def logits(path: Path, spec: ModelSpec, *, chunk: int = 512, **options: Any) -> torch.Tensor:
    options = load_options(num_blocks=8, block_size=8, threads=2, **options)
    runner = load_runner(path, options, spec=spec)
    try:
        return as_tensor(runner.logits(prompt(40), chunk_tokens=chunk))
    finally:
        runner.close()


def apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("quantization", ["bf16", "int4"])
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_logits_are_those_of_torch_in_any_chunks(
    make: Any, quantization: str, tmp_path: Path
) -> None:
    spec, path = make(), tmp_path / "model.zse"
    write_model(path, spec, quantization)
    expected = logits(path, spec, device="torch")
    whole = logits(path, spec, device="cpu", **EXACT)
    for found in (whole, logits(path, spec, device="cpu", chunk=17, **EXACT)):
        assert apart(found, expected) < TOLERANCE
    assert apart(logits(path, spec, device="cpu", chunk=1, **EXACT), expected) < TOLERANCE


@pytest.mark.parametrize("quantization", ["int4", "int8", "nf4"])
def test_experts_of_rounded_activations_are_close(quantization: str, tmp_path: Path) -> None:
    """All experts are chosen: a choice between two that are nearly as good may go either way."""
    mixture = partial(experts, count=4, chosen=4, has_shared=True, has_shared_gate=True)
    spec = model([layer(index, attention, mlp=None, experts=mixture) for index in range(2)])
    path = tmp_path / "model.zse"
    write_model(path, spec, quantization)
    expected = logits(path, spec, device="torch")
    found = logits(path, spec, device="cpu")
    assert 0 < apart(found, expected) < ROUNDED_TOLERANCE


@pytest.mark.parametrize("make", [gpt_oss, gemma_4, qwen_next], ids=lambda make: make.__name__)
def test_a_decoded_token_has_the_same_bits_in_any_batch(make: Any, tmp_path: Path) -> None:
    spec, path = make(), tmp_path / "model.zse"
    write_model(path, spec, "int4")
    greedy = SamplingRow(temperature=0.0, logprobs=5)
    found = []
    for others in (0, 3, 7):
        runner = load_runner(path, load_options(device="cpu", num_blocks=64, threads=2), spec=spec)
        chunks = [
            SequenceChunk(slot, prompt(20 + slot), 0, [slot, slot + 8, slot + 16], "prefill")
            for slot in range(others + 1)
        ]
        for one in chunks:
            runner.execute(StepBatch(chunks=[one], sampling=[()]))
        decoded = [
            SequenceChunk(one.sequence_slot, [7], len(one.token_ids), one.block_table, kind_of(1))
            for one in chunks
        ]
        decoded.append(SequenceChunk(9, prompt(30), 0, range(40, 44), "prefill"))
        sampling = [[greedy]] + [[]] * others + [[]]
        found.append(runner.execute(StepBatch(chunks=decoded, sampling=sampling))[0])
        runner.close()
    assert found[0] == found[1] == found[2]


def test_layers_keep_the_keys_and_values_of_their_own_heads(tmp_path: Path) -> None:
    spec = gemma_4()
    write_model(tmp_path / "model.zse", spec, "bf16")
    options = load_options(device="cpu", num_blocks=3, block_size=8, threads=1, kv_dtype="fp16")
    runner = load_runner(tmp_path / "model.zse", options, spec=spec)
    windowed, full = 2 * 2 * 32, 2 * 1 * 64  # and none for the layer that reads another's
    assert runner.memory_bytes()["kv_cache"] == 3 * 8 * 2 * (windowed + full)
    groups = groups_of(spec, options)
    assert kv_block_bytes(spec, groups, 8, dtypes_of(spec, "fp16")) == [
        8 * 2 * full,
        8 * 2 * windowed,
    ]
    runner.close()


@pytest.mark.parametrize(
    ("mixer", "words"),
    [
        (partial(attention, is_causal=False), "attention that does not fit its head"),
        (partial(attention, is_causal=False, kv_of_layer=0), "over keys that are not its own"),
        (partial(attention, heads=(1, 1, 1024)), "heads of 1024 columns, more than 576"),
        (partial(attention, kv_of_layer=0, heads=(4, 1, 32)), "keys of layer 0, which has none"),
        (partial(attention, kv_of_layer=1), "keys of layer 1, which has none such"),
        (partial(attention, rope=PARTIAL), "3 kinds of rotation"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(mixer: Any, words: str, tmp_path: Path) -> None:
    first, other = layer(0, attention), layer(2, partial(attention, rope=OTHER_ROPE))
    spec = model([first, layer(1, mixer), other])
    write_model(tmp_path / "model.zse", spec, "bf16")
    with pytest.raises(UnsupportedModelError, match=words):
        load_runner(tmp_path / "model.zse", load_options(device="cpu"), spec=spec)
