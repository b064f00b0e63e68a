"""What is particular about reading Gemma 4: per-layer embeddings, and layers without keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from family_shapes import shape_of

from zse.errors import UnsupportedModelError
from zse.models.families import read_checkpoint
from zse.models.memory import ModelFacts, estimate_memory
from zse.models.storage import Storage

if TYPE_CHECKING:
    from zse.models.spec import ModelSpec

TOLD: dict[str, Any] = {
    "hidden_size_per_layer_input": 48,
    "enable_moe_block": False,
    "tie_word_embeddings": True,
}


def read(**changes: Any) -> ModelSpec:
    return read_checkpoint(
        {**shape_of("gemma4", **TOLD), "architectures": ["Gemma4ForCausalLM"], **changes}
    )


def test_per_layer_embeddings_are_read() -> None:
    spec = read()
    inputs = spec.embedding.layer_inputs
    assert inputs is not None
    assert inputs.table.shape == (320, 6 * 48)
    assert inputs.projection.weight.shape == (6 * 48, 128)
    assert inputs.scale == pytest.approx(48**0.5 * 0.5**0.5)
    assert inputs.norm.epsilon == pytest.approx(128 * 1e-6)
    for layer in spec.layers:
        assert layer.own_input is not None
        assert layer.own_input.gate.weight.shape == (48, 128)
        assert layer.own_input.projection.weight.shape == (128, 48)
    assert Storage(quantization="int4").plan_tensor(inputs.table).scheme == "int8"


@pytest.mark.parametrize("width", [0, None])
def test_the_larger_models_have_none(width: int | None) -> None:
    spec = read(hidden_size_per_layer_input=width)
    assert spec.embedding.layer_inputs is None
    assert {layer.own_input for layer in spec.layers} == {None}


def test_layers_that_read_the_keys_of_others_may_have_an_mlp_twice_as_wide() -> None:
    for wide in (False, True):
        mlps = [layer.mlp for layer in read(use_double_wide_mlp=wide).layers]
        widths = [mlp.down.weight.shape[1] for mlp in mlps if mlp is not None]
        assert widths == [192] * 4 + [192 * (1 + wide)] * 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size_per_layer_input": -1}, "hidden_size_per_layer_input is -1"),
        ({"hidden_size_per_layer_input": "wide"}, "expected a whole number"),
        ({"vocab_size_per_layer_input": 319}, "vocab_size_per_layer_input is 319; expected 320"),
        ({"num_kv_shared_layers": 6}, "num_kv_shared_layers is 6 of 6 layers"),
        ({"num_kv_shared_layers": 5}, "no layer of the kind full_attention before them"),
    ],
)
def test_numbers_that_do_not_fit_together_are_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        read(**changes)


def test_a_table_that_is_gathered_from_lies_before_what_is_read_whole() -> None:
    names = [weight.name for weight in next(read().groups()).weights]
    assert names[:2] == ["layer_inputs.table.weight", "embed.weight"]


def test_a_cpu_keeps_no_table_of_which_it_gathers_rows() -> None:
    facts = ModelFacts(spec=read(vocab_size=5000, vocab_size_per_layer_input=5000))
    on_cpu, on_gpu = (estimate_memory(facts, "int8", on_gpu=each) for each in (False, True))
    table = 5000 * 6 * 48
    assert table < on_gpu.weights_bytes - on_cpu.weights_bytes < 1.1 * table
