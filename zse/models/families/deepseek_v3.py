"""DeepSeek-V3: latent attention, sigmoid routing in groups, a bias for the choice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.models.guess import count_of_guesses
from zse.models.latent import Latents
from zse.models.mixture import Mixture, mixed_decoder

if TYPE_CHECKING:
    from zse.models.config_json import ConfigJSON
    from zse.models.spec import ModelSpec

ARCHITECTURES = ("DeepseekV3ForCausalLM",)
MODELS = "DeepSeek-V3 and R1, Moonlight"


def read(config: ConfigJSON) -> ModelSpec:
    config.expect("moe_layer_freq", 1, None)
    config.expect("scoring_func", "sigmoid", None)
    config.expect("topk_method", "noaux_tc", None)
    width = config.integer("moe_intermediate_size", 2048)
    mixture = Mixture(
        num_experts=config.count_of_experts(),
        experts_per_token=config.integer("num_experts_per_tok", 8),
        width=width,
        scoring="sigmoid",
        selection_bias="mlp.gate.e_score_correction_bias",
        num_groups=config.integer("n_group", 8),
        groups_per_token=config.integer("topk_group", 4),
        scores_in_group=2,
        normalizes_weights=config.flag("norm_topk_prob", default=True),
        weight_scale=config.number("routed_scaling_factor", 2.5),
        shared="mlp.shared_experts",
        shared_width=width * config.integer("n_shared_experts", 1),
    )
    return mixed_decoder(
        config,
        mixture,
        Latents.read(config, interleaved=config.flag("rope_interleave", default=True)).mixer,
        dense_layers=range(config.integer("first_k_dense_replace", 3)),
        num_guesses=count_of_guesses(
            config, "num_nextn_predict_layers", "num_mtp_layers", default=1
        ),
    )
