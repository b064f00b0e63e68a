"""Qwen2 and Qwen2.5: biases on q, k and v; some layers may see only a window."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zse.models.config_json import ConfigJSON
    from zse.models.uniform import UniformDecoder

ARCHITECTURES = ("Qwen2ForCausalLM",)
MODELS = "Qwen2 and 2.5"


def read(config: ConfigJSON) -> UniformDecoder:
    config.expect("mlp_bias", False, None)
    return config.decoder(windows=config.window_where_switched_on(), qkv_bias=True)
