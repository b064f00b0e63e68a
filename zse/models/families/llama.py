"""Llama 2, 3, 3.1, 3.2, 3.3: the plain decoder. RoPE scaling is in the frequencies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.models.config_json import ConfigJSON
from zse.models.uniform import TensorNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.models.spec import ModelSpec

ARCHITECTURES = ("LlamaForCausalLM",)
MODELS = "Llama 2 and 3"
NAMES = TensorNames()


def read(
    config_json: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None
) -> ModelSpec:
    """Return the model of a ``config.json``."""
    config = ConfigJSON("llama", config_json, generation_config)
    bias = config.flag("attention_bias")
    mlp_bias = config.flag("mlp_bias")
    return config.decoder(qkv_bias=bias, output_bias=bias, mlp_bias=mlp_bias).spec(NAMES)
