"""GLM-4.5 to 4.7: sigmoid routing in groups, a bias for the choice, dense layers first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.models.guess import count_of_guesses
from zse.models.mixture import Mixture, mixture_decoder

if TYPE_CHECKING:
    from zse.models.config_json import ConfigJSON
    from zse.models.spec import ModelSpec

ARCHITECTURES = ("Glm4MoeForCausalLM",)
MODELS = "GLM-4.5 Air and GLM-4.5 to 4.7"


def read(config: ConfigJSON) -> ModelSpec:
    width = config.integer("moe_intermediate_size")
    mixture = Mixture(
        num_experts=config.count_of_experts(),
        experts_per_token=config.integer("num_experts_per_tok"),
        width=width,
        scoring="sigmoid",
        selection_bias="mlp.gate.e_score_correction_bias",
        num_groups=config.integer("n_group", 1),
        groups_per_token=config.integer("topk_group", 1),
        scores_in_group=2,
        normalizes_weights=config.flag("norm_topk_prob", default=True),
        weight_scale=config.number("routed_scaling_factor", 1.0),
        shared="mlp.shared_experts",
        shared_width=width * config.integer("n_shared_experts", 1),
    )
    return mixture_decoder(
        config,
        mixture,
        dense_layers=range(config.integer("first_k_dense_replace", 1)),
        qk_norm=config.flag("use_qk_norm"),
        qkv_bias=config.flag("attention_bias"),
        partial_rotary=0.5,
        num_guesses=count_of_guesses(config, "num_nextn_predict_layers", "num_mtp_layers"),
    )
