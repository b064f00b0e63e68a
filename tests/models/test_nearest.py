"""An architecture that nobody knows is told which family is nearest, and what that one lacks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zse.errors import UnsupportedModelError
from zse.models.families import read_checkpoint

UNKNOWN: dict[str, Any] = {
    "architectures": ["NewForCausalLM"],
    "model_type": "new",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


def refusal_of(**changes: Any) -> UnsupportedModelError:
    with pytest.raises(UnsupportedModelError, match="is not supported") as caught:
        read_checkpoint({**UNKNOWN, **changes})
    return caught.value


def nearest_of(**changes: Any) -> str:
    """Return what is said before the list of all that is supported."""
    error = refusal_of(**changes)
    assert error.hint is not None
    return error.hint.partition("Supported:")[0]


def test_a_plain_decoder_is_near_llama_and_what_llama_does_not_know_is_said() -> None:
    said = nearest_of(attention_bias=False, mlp_bias=False, residual_sponge=0.25)
    assert said.startswith("Nearest: LlamaForCausalLM (Llama 2 and 3). ")
    assert "does not know residual_sponge=0.25." in said


def test_multipliers_are_granite_s() -> None:
    said = nearest_of(
        embedding_multiplier=12.0, attention_multiplier=0.5, logits_scaling=8.0, swirl="left"
    )
    assert "GraniteForCausalLM" in said
    assert "swirl='left'" in said


def test_a_mixture_of_experts_is_near_a_family_that_has_experts() -> None:
    said = nearest_of(num_local_experts=8, num_experts_per_tok=2, router_dust=0.01)
    assert "MixtralForCausalLM" in said
    assert "does not know router_dust=0.01." in said


def test_of_families_that_read_as_much_the_one_of_the_like_name_is_nearest() -> None:
    both = {"attention_bias": False, "mlp_bias": False, "swirl": 1}
    assert "Qwen3ForCausalLM" in nearest_of(model_type="qwen3_new", **both)
    assert "LlamaForCausalLM" in nearest_of(model_type="new", **both)


def test_options_that_are_off_and_keys_of_training_are_no_difference() -> None:
    said = nearest_of(use_swirl=False, num_swirls=0, swirl=None, initializer_range=0.02)
    assert "says nothing that this family does not read" in said


def test_where_every_family_refuses_the_refusal_of_the_nearest_is_said() -> None:
    said = nearest_of(num_attention_heads="four")
    assert "It differs: num_attention_heads is 'four' in config.json" in said


def test_the_text_part_of_a_larger_model_is_what_is_compared() -> None:
    inner = {key: value for key, value in UNKNOWN.items() if key != "architectures"}
    with pytest.raises(UnsupportedModelError) as caught:
        read_checkpoint({"architectures": ["NewVision"], "text_config": {**inner, "swirl": 2}})
    assert "does not know swirl=2." in str(caught.value.hint)


def test_what_resembles_no_family_has_no_nearest() -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        read_checkpoint({"architectures": ["Nothing"], "image_size": 224})
    assert str(caught.value.hint).startswith("Supported: ")


def test_a_hostile_config_has_a_short_and_printable_answer() -> None:
    keys = {f"{'k' * 5000}{index}\x1b[31m": "v\x1b[2J" * 5000 for index in range(1000)}
    error = refusal_of(
        architectures=["\x1b" * 9000] * 9000,
        num_hidden_layers=10**12,
        layer_types=["swirl"] * 10**6,
        **keys,
    )
    assert "\x1b" not in str(error.hint)
    assert len(str(error.hint)) < 4000
    assert len(error.message) < 1000


@pytest.mark.parametrize("architectures", ["NewForCausalLM", [["New"]], [{}], {"a": 1}, 7])
def test_architectures_of_another_kind_are_refused_as_unknown(architectures: Any) -> None:
    refusal_of(architectures=architectures)


@given(name=st.sampled_from([*UNKNOWN, "layer_types", "rope_scaling", "text_config"]), value=JSON)
@settings(max_examples=15, deadline=None)
def test_values_of_any_kind_are_refused_and_break_nothing(name: str, value: Any) -> None:
    if name not in ("architectures", "model_type"):
        refusal_of(**{name: value})
