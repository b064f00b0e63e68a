"""Granite 3: Llama with a multiplier wherever numbers meet."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zse.models.config_json import ConfigJSON
    from zse.models.uniform import UniformDecoder

ARCHITECTURES = ("GraniteForCausalLM",)
MODELS = "Granite 3"


def read(config: ConfigJSON) -> UniformDecoder:
    bias = config.flag("attention_bias")
    return config.decoder(
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=config.flag("mlp_bias"),
        attention_scale=config.number("attention_multiplier", 1.0),
        embedding_scale=config.number("embedding_multiplier", 1.0),
        residual_scale=config.number("residual_multiplier", 1.0),
        logit_scale=1.0 / config.number("logits_scaling", 1.0),
    )
