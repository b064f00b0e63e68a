"""Reading config.json: both spellings, every refusal named."""

from __future__ import annotations

from typing import Any

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st

from zse.errors import FormatError, UnsupportedModelError
from zse.models.config import ModelConfig
from zse.models.rope import RopeScaling

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


def read(**changes: Any) -> ModelConfig:
    return ModelConfig.from_huggingface({**BASE, **changes})


def test_plain_llama_is_read() -> None:
    config = read(rope_theta=500000.0)
    assert (config.family, config.head_dim, config.dtype) == ("llama", 16, "bf16")
    assert config.rope_theta == 500000.0
    assert config.rope_scaling is None
    assert config.qkv_rows == 128
    assert not config.tie_word_embeddings


def test_old_and_new_rope_spellings_are_the_same() -> None:
    old = read(rope_theta=500000.0, rope_scaling=LLAMA3)
    new = read(rope_parameters={**LLAMA3, "rope_theta": 500000.0})
    oldest = read(rope_theta=500000.0, rope_scaling={**LLAMA3, "type": "llama3"})
    assert old == new == oldest
    assert old.rope_scaling == RopeScaling(
        kind="llama3", factor=8.0, original_max_position=128, high_freq_factor=4.0
    )


@pytest.mark.parametrize("name", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_transformers_own_configurations_are_read(name: str) -> None:
    config = getattr(transformers, f"{name}Config")()
    values = {**config.to_dict(), "architectures": [f"{name}ForCausalLM"]}
    found = ModelConfig.from_huggingface(values)
    assert found.family == name.lower()
    assert found.num_layers == config.num_hidden_layers
    assert found.qkv_bias == (name == "Qwen2")
    assert found.qk_norm == (name == "Qwen3")
    assert found.sliding_window == (4096 if name == "Mistral" else None)


def test_qwen_windows_need_the_switch_and_start_at_a_layer() -> None:
    qwen = {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 9, "max_window_layers": 3}
    assert read(**qwen).sliding_layers == ()
    config = read(**qwen, use_sliding_window=True)
    assert [config.window_of_layer(i) for i in range(4)] == [None, None, None, 9]
    beyond = read(**{**qwen, "max_window_layers": 4}, use_sliding_window=True)
    assert beyond.sliding_window is None


def test_layer_types_choose_the_windowed_layers() -> None:
    types = ["sliding_attention", "full_attention"] * 2
    qwen = {"architectures": ["Qwen3ForCausalLM"], "sliding_window": 9, "use_sliding_window": True}
    assert read(**qwen, layer_types=types).sliding_layers == (0, 2)
    with pytest.raises(UnsupportedModelError, match="layer_types"):
        read(**qwen, layer_types=types[:3])
    with pytest.raises(UnsupportedModelError, match="layer_types"):
        read(**qwen, layer_types=["linear_attention"] * 4)


def test_generation_config_token_ids_win() -> None:
    values = {**BASE, "bos_token_id": 1, "eos_token_id": 2}
    found = ModelConfig.from_huggingface(values, {"eos_token_id": [7, 8]})
    assert (found.bos_token_id, found.eos_token_ids) == (1, (7, 8))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"architectures": [], "model_type": "mamba"}, "mamba"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"attention_bias": True}, "attention_bias"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "longrope"),
        ({"rope_scaling": {"type": "linear", "factor": "x"}}, "cannot be read"),
        ({"rope_scaling": {"type": "linear", "factor": -1.0}}, "factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"torch_dtype": "float64"}, "float64"),
        ({"hidden_size": None}, "hidden_size"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"num_hidden_layers": 0}, "num_layers"),
        ({"num_key_value_heads": 3}, "divide"),
        ({"head_dim": 15}, "even"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        read(**changes)


@given(
    theta=st.floats(1.0, 1e7),
    window=st.none() | st.integers(1, 100),
    eos=st.lists(st.integers(0, 99), max_size=3),
    scaled=st.booleans(),
)
def test_header_form_round_trips(
    theta: float, window: int | None, eos: list[int], scaled: bool
) -> None:
    config = read(
        architectures=["MistralForCausalLM"],
        rope_theta=theta,
        sliding_window=window,
        eos_token_id=eos,
        rope_scaling=LLAMA3 if scaled else None,
    )
    assert ModelConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    "change",
    [{"surprise": 1}, {"vocab_size": -5}, {"num_heads": "4"}, {"rope_scaling": {"kind": "linear"}},
     {"eos_token_ids": ["x"]}, {"family": "other"}, {"sliding_layers": [0]}],
)  # fmt: skip
def test_damaged_header_form_is_a_format_error(change: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        ModelConfig.from_json({**read().to_json(), **change})
    with pytest.raises(FormatError):
        ModelConfig.from_json({"family": "llama"})
