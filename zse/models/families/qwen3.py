"""Qwen3: every query and key head is normalized before it is rotated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.models.config_json import ConfigJSON
from zse.models.uniform import TensorNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.models.spec import ModelSpec

ARCHITECTURES = ("Qwen3ForCausalLM",)
MODELS = "Qwen3"
NAMES = TensorNames()


def read(
    config_json: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None
) -> ModelSpec:
    """Return the model of a ``config.json``."""
    config = ConfigJSON("qwen3", config_json, generation_config)
    config.expect("mlp_bias", False, None)
    windows, bias = config.window_where_switched_on(), config.flag("attention_bias")
    numbers = config.decoder(windows=windows, qk_norm=True, qkv_bias=bias, output_bias=bias)
    return numbers.spec(NAMES)
