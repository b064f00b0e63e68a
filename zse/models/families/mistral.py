"""Mistral: Llama whose layers see a window of the last tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.models.config_json import ConfigJSON
from zse.models.uniform import TensorNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.models.spec import ModelSpec

ARCHITECTURES = ("MistralForCausalLM",)
MODELS = "Mistral"
NAMES = TensorNames()


def read(
    config_json: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None
) -> ModelSpec:
    """Return the model of a ``config.json``."""
    config = ConfigJSON("mistral", config_json, generation_config)
    config.expect("mlp_bias", False, None)
    return config.decoder(windows=config.window_everywhere()).spec(NAMES)
