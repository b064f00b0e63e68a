"""Phi-3 and Phi-4: Llama whose queries, keys and values are one tensor, as gate and up are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.models.layered import NormNames, dense_layer, layered_decoder
from zse.models.parts import Norms, Piece, attention, linear, mlp

if TYPE_CHECKING:
    from zse.models.config_json import ConfigJSON
    from zse.models.layer_spec import LayerSpec
    from zse.models.spec import ModelSpec

ARCHITECTURES = ("Phi3ForCausalLM",)
MODELS = "Phi-3 and Phi-4"


def read(config: ConfigJSON) -> ModelSpec:
    hidden, width = config.integer("hidden_size"), config.integer("intermediate_size")
    heads = config.heads()
    norms = Norms(epsilon=config.number("rms_norm_eps", 1e-5))
    rope = config.rope(heads.head_dim)
    window, windowed = config.window_everywhere()
    activation = config.activation("silu")

    def layer(index: int, theirs: str) -> LayerSpec:
        ours = f"layers.{index}"
        joined = Piece(name=f"{theirs}.self_attn.qkv_proj", rows=heads.qkv_rows)
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
                rope=rope,
                window=window if index in windowed else None,
                qkv=linear(f"{ours}.qkv", [joined], hidden),
            ),
            mlp=mlp(
                ours,
                [f"{theirs}.mlp.gate_up_proj"],
                f"{theirs}.mlp.down_proj",
                hidden=hidden,
                width=width,
                activation=activation,
                is_joined=True,
            ),
        )

    return layered_decoder(config, norms, layer)
