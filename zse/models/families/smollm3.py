"""SmolLM3: Llama that turns nothing in every fourth layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.models.layered import NormNames, dense_layer, layered_decoder
from zse.models.parts import Norms, attention, llama_mlp

if TYPE_CHECKING:
    from zse.models.config_json import ConfigJSON
    from zse.models.layer_spec import LayerSpec
    from zse.models.spec import ModelSpec

ARCHITECTURES = ("SmolLM3ForCausalLM",)
MODELS = "SmolLM3"


def read(config: ConfigJSON) -> ModelSpec:
    hidden, width = config.integer("hidden_size"), config.integer("intermediate_size")
    bias = config.flag("attention_bias")
    heads = config.heads(qkv_bias=bias, output_bias=bias)
    norms = Norms(epsilon=config.number("rms_norm_eps", 1e-6))
    rope, count = config.rope(heads.head_dim), config.num_layers()
    every = max(1, config.integer("no_rope_layer_interval", 4))
    turns = config.flags("no_rope_layers", count) or [(i + 1) % every != 0 for i in range(count)]
    window, windowed = config.window_where_switched_on()
    activation, mlp_bias = config.activation("silu"), config.flag("mlp_bias")

    def layer(index: int, theirs: str) -> LayerSpec:
        ours = f"layers.{index}"
        return dense_layer(
            index,
            theirs,
            NormNames(),
            norms,
            hidden=hidden,
            mixer=attention(
                ours,
                f"{theirs}.self_attn",
                hidden=hidden,
                heads=heads,
                rope=rope if turns[index] else None,
                window=window if index in windowed else None,
            ),
            mlp=llama_mlp(
                ours, theirs, hidden=hidden, width=width, activation=activation, bias=mlp_bias
            ),
        )

    return layered_decoder(
        config, norms, layer, tied=config.flag("tie_word_embeddings", default=True)
    )
