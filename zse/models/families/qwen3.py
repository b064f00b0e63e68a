"""Qwen3: every query and key head is normalized before it is rotated."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zse.models.config_json import ConfigJSON
    from zse.models.uniform import UniformDecoder

ARCHITECTURES = ("Qwen3ForCausalLM",)
MODELS = "Qwen3"


def read(config: ConfigJSON) -> UniformDecoder:
    config.expect("mlp_bias", False, None)
    windows, bias = config.window_where_switched_on(), config.flag("attention_bias")
    return config.decoder(windows=windows, qk_norm=True, qkv_bias=bias, output_bias=bias)
