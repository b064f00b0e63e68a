"""Qwen3.5's and Qwen3.6's mixtures of experts, one of which every token takes behind a gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.models.hybrid import hybrid_decoder
from zse.models.mixture import Mixture

if TYPE_CHECKING:
    from zse.models.config_json import ConfigJSON
    from zse.models.spec import ModelSpec

ARCHITECTURES = ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration")
MODELS = "Qwen3.5 35B-A3B, 122B-A10B and 397B-A17B and Qwen3.6 35B-A3B, without their eyes"


def read(config: ConfigJSON) -> ModelSpec:
    text = config.nested("text_config")
    mixture = Mixture(
        num_experts=text.count_of_experts(),
        experts_per_token=text.integer("num_experts_per_tok"),
        width=text.integer("moe_intermediate_size"),
        shared="mlp.shared_expert",
        shared_width=text.integer("shared_expert_intermediate_size"),
        shared_gate="mlp.shared_expert_gate",
    )
    return hybrid_decoder(text, mixture=mixture)
