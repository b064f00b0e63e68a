"""Reading the configurations of gpt-oss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from family_shapes import shape_of

from zse.errors import UnsupportedModelError
from zse.models.families import read_checkpoint, read_header
from zse.models.weights import MXFP4

if TYPE_CHECKING:
    from zse.models.spec import ModelSpec


def read(**changes: Any) -> ModelSpec:
    values = shape_of("gpt_oss", architectures=["GptOssForCausalLM"], num_hidden_layers=4)
    return read_checkpoint({**values, **changes})


def test_every_other_layer_has_the_window_where_nothing_says_which() -> None:
    assert [layer.mixer.window for layer in read(sliding_window=9).layers] == [9, None, 9, None]
    kinds = ["full_attention", "full_attention", "sliding_attention", "full_attention"]
    only_kinds = {"layer_types": kinds, "sliding_window": None}
    windows = [layer.mixer.window for layer in read(**only_kinds).layers]
    assert windows == [None, None, 128, None]


def test_the_published_configuration_of_20b_is_read() -> None:
    spec = read_checkpoint(
        {
            "architectures": ["GptOssForCausalLM"],
            "attention_bias": True,
            "eos_token_id": 200002,
            "experts_per_token": 4,
            "head_dim": 64,
            "hidden_act": "silu",
            "hidden_size": 2880,
            "initial_context_length": 4096,
            "intermediate_size": 2880,
            "layer_types": ["sliding_attention", "full_attention"] * 12,
            "max_position_embeddings": 131072,
            "model_type": "gpt_oss",
            "num_attention_heads": 64,
            "num_experts_per_tok": 4,
            "num_hidden_layers": 24,
            "num_key_value_heads": 8,
            "num_local_experts": 32,
            "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
            "rms_norm_eps": 1e-05,
            "rope_scaling": {
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "factor": 32.0,
                "original_max_position_embeddings": 4096,
                "rope_type": "yarn",
                "truncate": False,
            },
            "rope_theta": 150000,
            "sliding_window": 128,
            "swiglu_limit": 7.0,
            "torch_dtype": "bfloat16",
            "vocab_size": 201088,
        }
    )
    experts = spec.layers[0].experts
    assert experts is not None
    assert experts.expert.up.weight.shape == (32 * 5760, 2880)
    assert experts.expert.up.weight.packing == MXFP4
    assert experts.expert.up.weight.members == 32
    assert (experts.scoring, experts.expert.limit) == ("softmax_chosen", 7.0)
    assert read_header(spec.header) == spec
    numbers = sum(torch.Size(weight.shape).numel() for weight in spec.weights())
    assert numbers == 20_914_757_184


@pytest.mark.parametrize(
    "changes",
    [
        {"swiglu_alpha": 1.0},
        {"hidden_act": "gelu"},
        {"num_local_experts": 0},
        {"num_experts_per_tok": 9},
        {"layer_types": ["sliding_attention"]},
        {"sliding_window": 0},
        {"intermediate_size": 40, "quantization_config": {"quant_method": "mxfp4"}},
    ],
)
def test_a_configuration_without_meaning_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError):
        read(**changes)
