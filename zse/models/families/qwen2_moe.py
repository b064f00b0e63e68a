"""Qwen2's mixtures of experts: beside those chosen one that every token takes, behind a gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.models.mixture import Mixture, mixture_decoder

if TYPE_CHECKING:
    from zse.models.config_json import ConfigJSON
    from zse.models.spec import ModelSpec

ARCHITECTURES = ("Qwen2MoeForCausalLM",)
MODELS = "Qwen1.5 MoE and Qwen2 57B-A14B"


def read(config: ConfigJSON) -> ModelSpec:
    mixture = Mixture(
        num_experts=config.count_of_experts(),
        experts_per_token=config.integer("num_experts_per_tok"),
        width=config.integer("moe_intermediate_size"),
        normalizes_weights=config.flag("norm_topk_prob"),
        shared="mlp.shared_expert",
        shared_width=config.integer("shared_expert_intermediate_size"),
        shared_gate="mlp.shared_expert_gate",
    )
    return mixture_decoder(
        config,
        mixture,
        dense_layers=config.dense_by_step(),
        windows=config.window_where_switched_on(),
        qkv_bias=config.flag("qkv_bias", default=True),
    )
