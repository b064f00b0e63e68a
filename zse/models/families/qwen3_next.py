"""Qwen3-Next: three layers of linear attention to one of full attention, and many experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.models.hybrid import hybrid_decoder
from zse.models.mixture import Mixture

if TYPE_CHECKING:
    from zse.models.config_json import ConfigJSON
    from zse.models.spec import ModelSpec

ARCHITECTURES = ("Qwen3NextForCausalLM",)
MODELS = "Qwen3-Next 80B-A3B and Qwen3-Coder-Next"


def read(config: ConfigJSON) -> ModelSpec:
    mixture = Mixture(
        num_experts=config.count_of_experts(),
        experts_per_token=config.integer("num_experts_per_tok"),
        width=config.integer("moe_intermediate_size"),
        normalizes_weights=config.flag("norm_topk_prob", default=True),
        shared="mlp.shared_expert",
        shared_width=config.integer("shared_expert_intermediate_size"),
        shared_gate="mlp.shared_expert_gate",
    )
    return hybrid_decoder(
        config, is_grouped=True, mixture=mixture, dense_layers=config.dense_by_step()
    )
