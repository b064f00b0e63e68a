"""Mistral: Llama whose layers see a window of the last tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zse.models.config_json import ConfigJSON
    from zse.models.uniform import UniformDecoder

ARCHITECTURES = ("MistralForCausalLM",)
MODELS = "Mistral"


def read(config: ConfigJSON) -> UniformDecoder:
    config.expect("mlp_bias", False, None)
    return config.decoder(windows=config.window_everywhere())
