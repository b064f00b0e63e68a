"""Weights of a spec: those that the checkpoint has, in the order of execution."""

from __future__ import annotations

import pytest

from zse.models.families import all_families, read_checkpoint
from zse.models.spec import ModelSpec, weights_of

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
ARCHITECTURES = {name: family.ARCHITECTURES[0] for name, family in all_families().items()}
HEADLESS = ("granite", "qwen2", "starcoder2")
"""Families whose heads are always as wide as the stream divided by their number."""


def make_spec(family: str, **overrides: object) -> ModelSpec:
    values = {**SMALL, "architectures": [ARCHITECTURES[family]], "model_type": family}
    return read_checkpoint(values | overrides)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", sorted(ARCHITECTURES))
def test_plan_reads_exactly_the_tensors_that_transformers_has(family: str, tied: bool) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    overrides = {"head_dim": 8} if family in HEADLESS else {}
    theirs = transformers.AutoConfig.for_model(
        family, **(SMALL | overrides), tie_word_embeddings=tied
    )
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(theirs)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if tied:
        del expected["lm_head.weight"]
    spec = make_spec(family, tie_word_embeddings=tied, **overrides)
    found = {name: shape for weight in spec.weights() for name, shape in weight.sources}
    assert found == expected


def test_groups_stand_in_execution_order() -> None:
    names = [group.name for group in make_spec("llama").groups()]
    assert names == ["embed", "layers.0", "layers.1", "final"]


def test_joined_shape_is_the_sum_of_its_rows() -> None:
    for weight in make_spec("qwen2", head_dim=8).weights():
        assert weight.shape == (sum(weight.piece_rows), *weight.sources[0][1][1:])


def test_tied_embedding_is_stored_as_the_head_is() -> None:
    spec = make_spec("llama", tie_word_embeddings=True)
    first, *_, last = spec.groups()
    assert spec.is_tied
    assert first.weights[0].kind == "head"
    assert [weight.name for weight in last.weights] == ["final_norm.weight"]


def test_a_layers_weights_stand_in_the_order_in_which_they_are_read() -> None:
    names = [weight.name for weight in weights_of(make_spec("qwen2", head_dim=8).layers[1])]
    leaves = ["attn_norm.weight", "qkv.weight", "qkv.bias", "o.weight", "mlp_norm.weight",
              "gate_up.weight", "down.weight"]  # fmt: skip
    assert names == [f"layers.1.{leaf}" for leaf in leaves]


def test_matrices_are_divided_by_what_they_make_or_by_what_they_read() -> None:
    shards = {w.name: w.shard for w in make_spec("qwen2", head_dim=8).weights()}
    by_rows = {"embed.weight", "lm_head.weight"}
    by_rows |= {
        f"layers.{i}.{leaf}"
        for i in (0, 1)
        for leaf in ("qkv.weight", "qkv.bias", "gate_up.weight")
    }
    by_columns = {f"layers.{i}.{leaf}.weight" for i in (0, 1) for leaf in ("o", "down")}
    assert {name for name, shard in shards.items() if shard == "rows"} == by_rows
    assert {name for name, shard in shards.items() if shard == "columns"} == by_columns
