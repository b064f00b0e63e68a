"""Qwen3.5's whole configurations: their text is read, their pictures and guesses are left out."""

from __future__ import annotations

from typing import Any

import pytest
from family_shapes import shape_of

from zse.errors import UnsupportedModelError
from zse.models.families import read_checkpoint, read_header
from zse.models.layer_spec import AttentionSpec

TEXT = shape_of("qwen3_5", model_type="qwen3_5_text")
WHOLE: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "text_config": TEXT,
    "vision_config": {"depth": 27},
}


def test_the_text_of_a_model_that_sees_is_read_under_its_own_names() -> None:
    found = read_checkpoint(WHOLE)
    assert found.embedding.weight.sources[0].name == "model.language_model.embed_tokens.weight"
    assert all(
        piece.name.startswith(("model.language_model.", "lm_head."))
        for weight in found.weights()
        for piece in weight.pieces()
    )
    assert "model.visual.blocks.0.norm1.weight".startswith(found.left_out)
    assert "mtp.fc.weight".startswith(found.left_out)
    assert read_header(found.header) == found


def test_a_mixture_that_sees_has_its_experts_in_one_tensor() -> None:
    text = shape_of("qwen3_5_moe")
    names = {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "text_config": text}
    seeing = read_checkpoint(names).layers[0].experts
    blind = read_checkpoint({**text, "architectures": ["Qwen3_5MoeForCausalLM"]}).layers[0].experts
    assert seeing is not None
    assert blind is not None
    for mine, other in (
        (seeing.expert.up, blind.expert.up),
        (seeing.expert.down, blind.expert.down),
    ):
        assert mine.weight.shape == other.weight.shape
        assert mine.weight.members == other.weight.members == 6
        (source,) = mine.weight.sources
        assert source.shape[0] == 6
        assert source.name.startswith("model.language_model.layers.0.mlp.experts.")


def test_every_fourth_layer_has_full_attention_where_nothing_is_said() -> None:
    config = {**TEXT, "architectures": ["Qwen3_5ForCausalLM"], "num_hidden_layers": 8}
    del config["layer_types"]
    layers = read_checkpoint(config).layers
    full = [layer.index for layer in layers if isinstance(layer.mixer, AttentionSpec)]
    assert full == [3, 7]
    assert read_checkpoint({**config, "full_attention_interval": 8}).layers[7].index == 7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["linear_attention", "sliding_attention", "x"]}, "layer_types"),
        ({"linear_num_value_heads": 3}, "3 value heads do not divide among 2 key heads"),
        ({"layer_types": None, "full_attention_interval": 0}, "full_attention_interval"),
    ],
)
def test_numbers_of_nonsense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        read_checkpoint({**TEXT, "architectures": ["Qwen3_5ForCausalLM"], **changes})
