"""Llama 2, 3, 3.1, 3.2, 3.3: the plain decoder. RoPE scaling is in the frequencies."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zse.models.config_json import ConfigJSON
    from zse.models.uniform import UniformDecoder

ARCHITECTURES = ("LlamaForCausalLM",)
MODELS = "Llama 2 and 3"


def read(config: ConfigJSON) -> UniformDecoder:
    bias, mlp_bias = config.flag("attention_bias"), config.flag("mlp_bias")
    return config.decoder(qkv_bias=bias, output_bias=bias, mlp_bias=mlp_bias)
