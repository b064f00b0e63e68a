"""StarCoder2: LayerNorm, a bias wherever there can be one, and an MLP that nothing gates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zse.models.config_json import ConfigJSON
from zse.models.uniform import TensorNames

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.models.spec import ModelSpec

ARCHITECTURES = ("Starcoder2ForCausalLM",)
MODELS = "StarCoder2"
NAMES = TensorNames(up=("mlp.c_fc",), down="mlp.c_proj")


def read(
    config_json: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None
) -> ModelSpec:
    """Return the model of a ``config.json``."""
    values = {"hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True, **config_json}
    config = ConfigJSON("starcoder2", values, generation_config)
    bias = config.flag("use_bias", default=True)
    numbers = config.decoder(
        windows=config.window_everywhere(),
        norm="layer",
        rms_norm_eps=config.number("norm_epsilon", 1e-5),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
    )
    return numbers.spec(NAMES)
