"""Latent attention as DeepSeek's checkpoints spell it."""

from __future__ import annotations

from typing import Any

import pytest
from family_shapes import shape_of

from zse.errors import UnsupportedModelError
from zse.models.families import read_checkpoint, read_header

V2, V3 = "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"


def config(architecture: str, **changes: Any) -> dict[str, Any]:
    family = "deepseek_v2" if architecture == V2 else "deepseek_v3"
    return shape_of(family, architectures=[architecture], **changes)


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        (V2, {"norm_topk_prob": True}),
        (V2, {"topk_method": "noaux_tc"}),
        (V2, {"scoring_func": "sigmoid"}),
        (V2, {"moe_layer_freq": 2}),
        (V2, {"mlp_bias": True}),
        (V2, {"attention_bias": True}),
        (V2, {"num_key_value_heads": 2}),
        (V3, {"scoring_func": "softmax"}),
        (V3, {"topk_method": "greedy"}),
        (V3, {"moe_layer_freq": 2}),
    ],
)
def test_what_nothing_here_computes_is_refused_by_name(
    architecture: str, changes: dict[str, Any]
) -> None:
    with pytest.raises(UnsupportedModelError, match=next(iter(changes))):
        read_checkpoint(config(architecture, **changes))


@pytest.mark.parametrize(
    "changes", [{"qk_nope_head_dim": 0}, {"qk_rope_head_dim": 7}, {"kv_lora_rank": -1}]
)
def test_heads_that_cannot_be_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(UnsupportedModelError):
        read_checkpoint(config(V3, **changes))


def test_a_null_for_the_latent_of_queries_is_kept_and_an_absent_one_is_the_default() -> None:
    null = config(V2)
    absent = {name: value for name, value in null.items() if name != "q_lora_rank"}
    assert read_checkpoint(null).layers[0].mixer.latent.query is None
    assert read_checkpoint(absent).layers[0].mixer.latent.query.weight.shape[1] == 1536
    assert read_header(read_checkpoint(null).header) == read_checkpoint(null)


def test_kept_of_a_token_are_its_latent_and_one_key_that_turns() -> None:
    attention = read_checkpoint(config(V2)).layers[0].mixer
    assert (attention.cached_rows, attention.head_dim, attention.value_dim) == (1, 56, 40)
    assert attention.output.weight.shape == (128, 4 * 20)


def test_what_layers_that_guess_further_tokens_have_besides_is_left_out() -> None:
    spec = read_checkpoint(config(V3, num_nextn_predict_layers=2))
    assert spec.left_out == ("model.layers.2.", "model.layers.3.")
