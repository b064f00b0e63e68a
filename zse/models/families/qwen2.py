"""Qwen2 and Qwen2.5: biases on q, k and v; some layers may see only a window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.models.config_json import ConfigJSON
from zse.models.uniform import TensorNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.models.spec import ModelSpec

ARCHITECTURES = ("Qwen2ForCausalLM",)
MODELS = "Qwen2 and 2.5"
NAMES = TensorNames()


def read(
    config_json: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None
) -> ModelSpec:
    """Return the model of a ``config.json``."""
    config = ConfigJSON("qwen2", config_json, generation_config)
    config.expect("mlp_bias", False, None)
    windows = config.window_where_switched_on()
    return config.decoder(windows=windows, qkv_bias=True).spec(NAMES)
