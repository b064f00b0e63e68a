from __future__ import annotations

import pytest

from zse.models.config import ModelConfig
from zse.models.names import tensor_plan

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
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def make_config(family: str, **overrides: object) -> ModelConfig:
    values = {**SMALL, "architectures": [ARCHITECTURES[family]], "model_type": family}
    return ModelConfig.from_huggingface(values | overrides)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", sorted(ARCHITECTURES))
def test_plan_reads_exactly_the_tensors_that_transformers_has(family: str, tied: bool) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    # The attention of qwen2 has no head_dim of its own.
    overrides = {"head_dim": 8} if family == "qwen2" else {}
    theirs = transformers.AutoConfig.for_model(
        family, **(SMALL | overrides), tie_word_embeddings=tied
    )
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(theirs)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if tied:
        del expected["lm_head.weight"]
    plan = tensor_plan(make_config(family, tie_word_embeddings=tied, **overrides))
    found = {
        name: shape for group in plan for tensor in group.tensors for name, shape in tensor.sources
    }
    assert found == expected


def test_groups_stand_in_execution_order() -> None:
    names = [group.name for group in tensor_plan(make_config("llama"))]
    assert names == ["embed", "layers.0", "layers.1", "final"]


def test_joined_shape_is_the_sum_of_its_rows() -> None:
    for group in tensor_plan(make_config("qwen2", head_dim=8)):
        for tensor in group.tensors:
            rows = sum(shape[0] for _, shape in tensor.sources)
            assert tensor.shape == (rows, *tensor.sources[0][1][1:])


def test_tied_embedding_is_stored_as_the_head_is() -> None:
    plan = tensor_plan(make_config("llama", tie_word_embeddings=True))
    assert plan[0].tensors[0].kind == "head"
    assert [tensor.name for tensor in plan[-1].tensors] == ["final_norm.weight"]
