"""StarCoder2: LayerNorm, a bias wherever there can be one, and an MLP that nothing gates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.models.uniform import TensorNames

if TYPE_CHECKING:
    from zse.models.config_json import ConfigJSON
    from zse.models.uniform import UniformDecoder

ARCHITECTURES = ("Starcoder2ForCausalLM",)
MODELS = "StarCoder2"
NAMES = TensorNames(up=("mlp.c_fc",), down="mlp.c_proj")


def read(config: ConfigJSON) -> UniformDecoder:
    bias = config.flag("use_bias", default=True)
    return config.decoder(
        windows=config.window_everywhere(),
        norm="layer",
        rms_norm_eps=config.number("norm_epsilon", 1e-5),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        activation=config.activation("gelu_pytorch_tanh"),
        tie_word_embeddings=config.flag("tie_word_embeddings", default=True),
    )
