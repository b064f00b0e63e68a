"""Reading config.json: both spellings, every refusal named."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
import transformers
from family_shapes import shape_of
from hypothesis import given
from hypothesis import strategies as st

from zse.errors import FormatError, UnsupportedModelError
from zse.models.families import all_families, family_named, read_checkpoint, read_header
from zse.models.rope import RoPEScaling

if TYPE_CHECKING:
    from zse.models.spec import ModelSpec

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


def read(**changes: Any) -> ModelSpec:
    return read_checkpoint({**BASE, **changes})


def windows_of(spec: ModelSpec) -> list[int | None]:
    return [layer.mixer.window for layer in spec.layers]


def test_plain_llama_is_read() -> None:
    spec = read(rope_theta=500000.0)
    attention = spec.layers[3].mixer
    assert (spec.family, attention.head_dim, spec.dtype) == ("llama", 16, "bf16")
    assert attention.rope.theta == 500000.0
    assert attention.rope.scaling is None
    assert attention.scale == 0.25
    assert attention.qkv.weight.shape == (128, 64)
    assert not spec.is_tied


def test_old_and_new_rope_spellings_are_the_same() -> None:
    old = read(rope_theta=500000.0, rope_scaling=LLAMA3)
    new = read(rope_parameters={**LLAMA3, "rope_theta": 500000.0})
    oldest = read(rope_theta=500000.0, rope_scaling={**LLAMA3, "type": "llama3"})
    assert old == new == oldest
    assert old.attention.rope.scaling == RoPEScaling(
        kind="llama3", factor=8.0, original_max_position=128, high_freq_factor=4.0
    )


@pytest.mark.parametrize("name", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_transformers_own_configurations_are_read(name: str) -> None:
    config = getattr(transformers, f"{name}Config")()
    values = {**config.to_dict(), "architectures": [f"{name}ForCausalLM"]}
    found = read_checkpoint(values)
    assert found.family == name.lower()
    assert len(found.layers) == config.num_hidden_layers
    assert (found.attention.qkv.bias is not None) == (name == "Qwen2")
    assert (found.attention.q_norm is not None) == (name == "Qwen3")
    assert set(windows_of(found)) == {4096 if name == "Mistral" else None}


def test_qwen_windows_need_the_switch_and_start_at_a_layer() -> None:
    qwen = {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 9, "max_window_layers": 3}
    assert windows_of(read(**qwen)) == [None] * 4
    assert windows_of(read(**qwen, use_sliding_window=True)) == [None, None, None, 9]
    beyond = read(**{**qwen, "max_window_layers": 4}, use_sliding_window=True)
    assert windows_of(beyond) == [None] * 4


def test_layer_types_choose_the_windowed_layers() -> None:
    types = ["sliding_attention", "full_attention"] * 2
    qwen = {"architectures": ["Qwen3ForCausalLM"], "sliding_window": 9, "use_sliding_window": True}
    assert windows_of(read(**qwen, layer_types=types)) == [9, None] * 2
    with pytest.raises(UnsupportedModelError, match="layer_types"):
        read(**qwen, layer_types=types[:3])
    with pytest.raises(UnsupportedModelError, match="layer_types"):
        read(**qwen, layer_types=["linear_attention"] * 4)


def test_generation_config_token_ids_win() -> None:
    values = {**BASE, "bos_token_id": 1, "eos_token_id": 2}
    found = read_checkpoint(values, {"eos_token_id": [7, 8]})
    assert (found.bos_token_id, found.eos_token_ids) == (1, (7, 8))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["BloomForCausalLM"]}, "BloomForCausalLM"),
        ({"architectures": [], "model_type": "mamba"}, "mamba"),
        ({"hidden_act": "quick_gelu"}, "hidden_act='quick_gelu'"),
        ({"architectures": ["MistralForCausalLM"], "mlp_bias": True}, "mlp_bias"),
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
    spec = read(
        architectures=["MistralForCausalLM"],
        rope_theta=theta,
        sliding_window=window,
        eos_token_id=eos,
        rope_scaling=LLAMA3 if scaled else None,
    )
    assert read_header(json.loads(json.dumps(spec.header))) == spec


@pytest.mark.parametrize(
    "change",
    [{"surprise": 1}, {"vocab_size": -5}, {"num_heads": "4"}, {"rope_scaling": {"kind": "linear"}},
     {"eos_token_ids": ["x"]}, {"family": "other"}, {"family": "../x"}, {"family": "__init__"},
     {"sliding_layers": [0]}, {"sliding_layers": [0], "sliding_window": "9"},
     {"num_layers": 10**9}, {"rope_theta": "x"}, {"activation": "sine"}, {"norm": None}],
)  # fmt: skip
def test_damaged_header_form_is_a_format_error(change: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        read_header({**read().header, **change})
    with pytest.raises(FormatError):
        read_header({"family": "llama"})


def test_a_number_that_is_the_default_is_not_written_to_the_header() -> None:
    assert set(read().header) == {
        "family", "vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads",
        "num_kv_heads", "head_dim", "rms_norm_eps", "rope_theta", "rope_scaling", "max_position",
        "sliding_window", "sliding_layers", "qkv_bias", "qk_norm", "tie_word_embeddings",
        "bos_token_id", "eos_token_ids", "dtype",
    }  # fmt: skip


def test_an_architecture_that_is_not_supported_is_told_which_are() -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        read(architectures=["BloomForCausalLM"])
    for family in all_families().values():
        assert all(name in caught.value.hint for name in family.ARCHITECTURES)


def test_every_module_of_the_folder_is_a_family_under_its_own_name() -> None:
    for name, family in all_families().items():
        assert family is family_named(name)
        architecture = {"architectures": [family.ARCHITECTURES[0]]}
        assert read(**shape_of(name), **architecture).family == name


def test_a_large_model_is_described_in_a_few_milliseconds() -> None:
    header = read(num_hidden_layers=80).header
    started = time.process_time()
    spec = read_header(header)
    sum(1 for _ in spec.weights())
    assert time.process_time() - started < 0.1


@pytest.mark.parametrize(
    ("name", "activation"),
    [("silu", "silu"), ("gelu", "gelu"), ("gelu_new", "gelu_tanh"), ("relu2", "relu2")],
)
def test_an_activation_is_read_under_each_of_its_names(name: str, activation: str) -> None:
    spec = read(hidden_act=name)
    assert spec.layers[0].mlp.activation == activation
    assert ("activation" in spec.header) == (activation != "silu")


def test_a_bias_of_llama_is_one_of_every_matrix_of_its_block() -> None:
    biased = read(attention_bias=True, mlp_bias=True)
    names = {weight.name for weight in biased.weights() if weight.kind == "bias"}
    assert names == {f"layers.{i}.{leaf}.bias" for i in range(4)
                     for leaf in ("qkv", "o", "gate_up", "down")}  # fmt: skip
    assert read_header(biased.header) == biased


def test_the_multipliers_of_granite_stand_where_they_multiply() -> None:
    spec = read(
        architectures=["GraniteForCausalLM"],
        attention_multiplier=0.1,
        embedding_multiplier=12.0,
        residual_multiplier=0.22,
        logits_scaling=8.0,
    )
    scales = (spec.attention.scale, spec.embedding.scale, spec.head.logit_scale)
    assert scales == (0.1, 12.0, 0.125)
    assert {layer.residual_scale for layer in spec.layers} == {0.22}
    assert read_header(spec.header) == spec


def test_starcoder2_has_layer_norms_and_an_mlp_that_nothing_gates() -> None:
    spec = read(architectures=["Starcoder2ForCausalLM"], norm_epsilon=3e-5, sliding_window=7)
    layer = spec.layers[0]
    assert (layer.mixer_norm.kind, layer.mixer_norm.epsilon) == ("layer", 3e-5)
    assert layer.mixer_norm.bias.name == "layers.0.attn_norm.bias"
    assert (layer.mlp.is_gated, layer.mlp.activation) == (False, "gelu_tanh")
    assert layer.mlp.up.weight.shape == (96, 64)
    assert windows_of(spec) == [7] * 4
    assert spec.is_tied
    assert read_header(spec.header) == spec
