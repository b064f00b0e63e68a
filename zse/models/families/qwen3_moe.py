"""Qwen3's mixtures of experts: Qwen3 whose layers choose a few of many narrow MLPs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.models.mixture import Mixture, mixture_decoder

if TYPE_CHECKING:
    from zse.models.config_json import ConfigJSON
    from zse.models.spec import ModelSpec

ARCHITECTURES = ("Qwen3MoeForCausalLM",)
MODELS = "Qwen3 30B-A3B and 235B-A22B"


def read(config: ConfigJSON) -> ModelSpec:
    bias = config.flag("attention_bias")
    mixture = Mixture(
        num_experts=config.count_of_experts(),
        experts_per_token=config.integer("num_experts_per_tok"),
        width=config.integer("moe_intermediate_size"),
        normalizes_weights=config.flag("norm_topk_prob"),
    )
    return mixture_decoder(
        config,
        mixture,
        dense_layers=config.dense_by_step(),
        windows=config.window_where_switched_on(),
        qk_norm=True,
        qkv_bias=bias,
        output_bias=bias,
    )
