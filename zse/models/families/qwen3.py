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
    config.expect("attention_bias", False, None)
    windows = config.window_where_switched_on()
    return config.decoder(windows=windows, qk_norm=True).spec(NAMES)
