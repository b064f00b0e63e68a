"""Qwen3.5 and Qwen3.6: three layers of linear attention to one of full attention, dense MLPs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.models.hybrid import hybrid_decoder

if TYPE_CHECKING:
    from zse.models.config_json import ConfigJSON
    from zse.models.spec import ModelSpec

ARCHITECTURES = ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration")
MODELS = "Qwen3.5 0.8B to 27B and Qwen3.6 27B, without their eyes"


def read(config: ConfigJSON) -> ModelSpec:
    return hybrid_decoder(config.nested("text_config"))
