"""Rotary frequencies equal those of transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from zse.errors import UnsupportedModelError
from zse.models.families import read_checkpoint
from zse.models.rope import RoPESpec, read_rope

SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "dynamic", "factor": 4.0},
    {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "mscale": 1.0,
        "mscale_all_dim": 0.8,
        "beta_fast": 16,
        "truncate": False,
    },
    {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 4096,
        "attention_factor": 1.25,
    },
]


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: "-".join(map(str, s.values())))
@pytest.mark.parametrize("length", [0, 200000])
def test_frequencies_equal_transformers(scaling: dict[str, Any], length: int) -> None:
    parameters = {**scaling, "rope_theta": 500000.0}
    config = transformers.LlamaConfig(
        hidden_size=512,
        num_attention_heads=4,
        max_position_embeddings=131072,
        rope_parameters=dict(parameters),
    )
    expected, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, "cpu", seq_len=length)
    theta, ours = read_rope({"rope_parameters": parameters}, 131072, 128)
    rope = RoPESpec(theta=theta, rotary_dim=128, scaling=ours)
    found = rope.inverse_frequencies(length=length)
    torch.testing.assert_close(torch.tensor(found), expected, rtol=2e-6, atol=0.0)
    assert rope.factor == pytest.approx(factor)


def test_default_rope_has_no_scaling() -> None:
    assert read_rope({"rope_scaling": None, "rope_theta": 5.0}, 10, 4) == (5.0, None)
    assert read_rope({"rope_parameters": {"rope_type": "default", "rope_theta": 7}}, 10, 4)[0] == 7
    rope = RoPESpec(theta=100.0, rotary_dim=4)
    assert (rope.inverse_frequencies(), rope.factor) == ([1.0, 0.1], 1.0)


def test_equal_ropes_are_one_key_so_that_layers_can_share_a_table() -> None:
    scaled = {"rope_parameters": {**SCALINGS[2], "rope_theta": 5.0}}
    ropes = []
    for _ in range(2):
        theta, scaling = read_rope(scaled, 10, 4)
        ropes.append(RoPESpec(theta=theta, rotary_dim=4, scaling=scaling))
    assert len({*ropes, RoPESpec(theta=5.0, rotary_dim=4)}) == 2


PHI: dict[str, Any] = {
    "architectures": ["Phi3ForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 64,
    "max_position_embeddings": 131072,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "partial_rotary_factor": 0.75,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "vocab_size": 32,
}
FACTORS = {
    "short_factor": [1.0 + index / 10 for index in range(12)],
    "long_factor": [1.5 * index + 1 for index in range(12)],
}


def longrope(**changes: Any) -> dict[str, Any]:
    return {**PHI, "rope_scaling": {"rope_type": "longrope", **FACTORS, **changes}}


@pytest.mark.parametrize("changes", [{}, {"factor": 8.0}, {"attention_factor": 1.3}])
@pytest.mark.parametrize("context", [4096, 4097, 131072])
def test_longrope_equals_transformers_by_the_context(changes: Any, context: int) -> None:
    config = transformers.Phi3Config(
        **{k: v for k, v in longrope(**changes).items() if k != "architectures"}
    )
    expected, factor = ROPE_INIT_FUNCTIONS["longrope"](config, "cpu", seq_len=context)
    rope = read_checkpoint(longrope(**changes)).within(context).layers[0].mixer.rope
    found = torch.tensor(rope.inverse_frequencies())
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=0.0)
    assert rope.factor == pytest.approx(factor)


@pytest.mark.parametrize("kind", ["su", "yarn"])
def test_older_names_of_longrope_mean_the_same(kind: str) -> None:
    older = {**PHI, "rope_scaling": {"type": kind, **FACTORS}}
    assert read_checkpoint(older).layers == read_checkpoint(longrope()).layers


@pytest.mark.parametrize(
    "changes",
    [
        {"long_factor": [1.0] * 11},
        {"short_factor": [0.0] * 12},
        {"short_factor": [float("nan")] * 12},
        {"long_factor": "text"},
        {"short_factor": None},
        {"original_max_position_embeddings": 1},
    ],
)
def test_factors_that_mean_nothing_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"longrope|original_max_position"):
        read_checkpoint(longrope(**changes))
