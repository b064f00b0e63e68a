"""OLMo 2: norms of what layers add, none of what they read, and one norm of all heads together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.models.layered import NormNames, dense_layer, layered_decoder
from zse.models.parts import Norms, attention, llama_mlp

if TYPE_CHECKING:
    from zse.models.config_json import ConfigJSON
    from zse.models.layer_spec import LayerSpec
    from zse.models.spec import ModelSpec

ARCHITECTURES = ("Olmo2ForCausalLM",)
MODELS = "OLMo 2"
_NORMS = NormNames(
    mixer="",
    after_mixer="post_attention_layernorm",
    mlp="",
    after_mlp="post_feedforward_layernorm",
)


def read(config: ConfigJSON) -> ModelSpec:
    hidden, width = config.integer("hidden_size"), config.integer("intermediate_size")
    bias = config.flag("attention_bias")
    heads = config.heads(qkv_bias=bias, output_bias=bias)
    norms = Norms(epsilon=config.number("rms_norm_eps", 1e-5))
    kinds = config.layer_types("full_attention", "sliding_attention") or (
        ["full_attention"] * config.num_layers()
    )
    window = config.value("sliding_window")
    activation = config.activation("silu")

    def layer(index: int, theirs: str) -> LayerSpec:
        ours, tensors, dim = f"layers.{index}", f"{theirs}.self_attn", heads.head_dim
        queries, keys = heads.num_heads * dim, heads.num_kv_heads * dim
        return dense_layer(
            index,
            theirs,
            _NORMS,
            norms,
            hidden=hidden,
            mixer=attention(
                ours,
                tensors,
                hidden=hidden,
                heads=heads,
                rope=config.rope(dim, kind=kinds[index]),
                window=window if kinds[index] == "sliding_attention" else None,
                q_norm=norms.norm(f"{ours}.q_norm", f"{tensors}.q_norm", queries),
                k_norm=norms.norm(f"{ours}.k_norm", f"{tensors}.k_norm", keys),
            ),
            mlp=llama_mlp(ours, theirs, hidden=hidden, width=width, activation=activation),
        )

    return layered_decoder(config, norms, layer)
