"""GLM-4: norms around both halves of a layer; half of a head turns, in pairs of neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.models.layered import NormNames, dense_layer, layered_decoder
from zse.models.parts import Norms, Piece, attention, linear, mlp, neighbours_to_halves

if TYPE_CHECKING:
    from zse.models.config_json import ConfigJSON
    from zse.models.layer_spec import LayerSpec
    from zse.models.spec import ModelSpec

ARCHITECTURES = ("Glm4ForCausalLM",)
MODELS = "GLM-4 9B and 32B"
_NORMS = NormNames(after_mixer="post_self_attn_layernorm", after_mlp="post_mlp_layernorm")


def read(config: ConfigJSON) -> ModelSpec:
    hidden, width = config.integer("hidden_size"), config.integer("intermediate_size")
    heads = config.heads(qkv_bias=config.flag("attention_bias", default=True))
    norms = Norms(epsilon=config.number("rms_norm_eps", 1.5625e-07))
    rope = config.rope(heads.head_dim, partial=0.5)
    activation = config.activation("silu")

    def layer(index: int, theirs: str) -> LayerSpec:
        ours, tensors, dim = f"layers.{index}", f"{theirs}.self_attn", heads.head_dim
        turning = {"q": heads.num_heads, "k": heads.num_kv_heads}
        pieces = [
            Piece(
                name=f"{tensors}.{part}_proj",
                rows=count * dim,
                order=neighbours_to_halves(count, dim, rope.rotary_dim),
            )
            for part, count in turning.items()
        ]
        pieces.append(Piece(name=f"{tensors}.v_proj", rows=heads.num_kv_heads * dim))
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
                rope=rope,
                qkv=linear(f"{ours}.qkv", pieces, hidden, bias=heads.qkv_bias),
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
