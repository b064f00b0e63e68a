"""Mixtral: Mistral with a mixture of eight wide experts in every layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.models.mixture import Mixture, mixture_decoder

if TYPE_CHECKING:
    from zse.models.config_json import ConfigJSON
    from zse.models.spec import ModelSpec

ARCHITECTURES = ("MixtralForCausalLM",)
MODELS = "Mixtral"


def read(config: ConfigJSON) -> ModelSpec:
    mixture = Mixture(
        num_experts=config.count_of_experts(),
        experts_per_token=config.integer("num_experts_per_tok", 2),
        width=config.integer("intermediate_size"),
        router="block_sparse_moe.gate",
        experts="block_sparse_moe.experts.{index}",
        up=("w1", "w3"),
        down="w2",
    )
    return mixture_decoder(config, mixture, windows=config.window_everywhere())
