"""DeepSeek-V2: latent attention, and softmax routing among many small experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.models.latent import Latents
from zse.models.mixture import Mixture, mixed_decoder

if TYPE_CHECKING:
    from zse.models.config_json import ConfigJSON
    from zse.models.spec import ModelSpec

ARCHITECTURES = ("DeepseekV2ForCausalLM",)
MODELS = "DeepSeek-V2, V2-Lite and Coder-V2"
_GREEDY, _IN_GROUPS = "greedy", "group_limited_greedy"


def read(config: ConfigJSON) -> ModelSpec:
    config.expect("mlp_bias", False, None)
    config.expect("moe_layer_freq", 1, None)
    config.expect("scoring_func", "softmax", None)
    config.expect("norm_topk_prob", False, None)
    config.expect("topk_method", _GREEDY, _IN_GROUPS, None)
    has_groups = config.value("topk_method", _GREEDY) == _IN_GROUPS
    width = config.integer("moe_intermediate_size", 1407)
    mixture = Mixture(
        num_experts=config.count_of_experts(),
        experts_per_token=config.integer("num_experts_per_tok"),
        width=width,
        num_groups=config.integer("n_group", 1) if has_groups else 1,
        groups_per_token=config.integer("topk_group", 1) if has_groups else 1,
        normalizes_weights=False,
        weight_scale=config.number("routed_scaling_factor", 1.0),
        shared="mlp.shared_experts",
        shared_width=width * config.integer("n_shared_experts", 2),
    )
    return mixed_decoder(
        config,
        mixture,
        Latents.read(config, interleaved=True).mixer,
        dense_layers=range(config.integer("first_k_dense_replace", 0)),
    )
