"""Gemma 2: windows in every other layer, capped scores and logits, norms around both halves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.models.layered import NormNames, dense_layer, layered_decoder
from zse.models.parts import Norms, attention, llama_mlp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zse.models.config_json import ConfigJSON
    from zse.models.layer_spec import LayerSpec
    from zse.models.rope import RoPESpec
    from zse.models.spec import ModelSpec

ARCHITECTURES = ("Gemma2ForCausalLM",)
MODELS = "Gemma 2"
NORM_NAMES = NormNames(
    after_mixer="post_attention_layernorm",
    mlp="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)


def read(config: ConfigJSON) -> ModelSpec:
    return read_gemma(
        config,
        config.alternating_layers(every=2),
        lambda head_dim, _kind: config.rope(head_dim),
    )


def read_gemma(
    config: ConfigJSON,
    kinds: Sequence[str],
    rope_of: Callable[[int, str], RoPESpec],
    *,
    norms_heads: bool = False,
    left_out: tuple[str, ...] = (),
) -> ModelSpec:
    """Return a Gemma 2 or 3.

    Args:
        config: Of its text.
        kinds: Of each layer.
        rope_of: Returns the rotation of heads of so many columns in layers of a kind.
        norms_heads: Whether query and key heads are normed.
        left_out: How the names of tensors begin that have no part in texts.
    """
    hidden, width = config.integer("hidden_size"), config.integer("intermediate_size")
    bias = config.flag("attention_bias")
    scale = config.number("query_pre_attn_scalar", 256) ** -0.5
    heads = config.heads(scale=scale, qkv_bias=bias, output_bias=bias)
    norms = Norms(epsilon=config.number("rms_norm_eps", 1e-6), offset=1.0)
    window, softcap = config.integer("sliding_window", 4096), config.bound("attn_logit_softcapping")
    ropes = {
        kind: rope_of(heads.head_dim, kind) for kind in ("full_attention", "sliding_attention")
    }
    activation = config.activation("gelu_pytorch_tanh", "hidden_activation")

    def layer(index: int, theirs: str) -> LayerSpec:
        ours, kind = f"layers.{index}", kinds[index]
        return dense_layer(
            index,
            theirs,
            NORM_NAMES,
            norms,
            hidden=hidden,
            mixer=attention(
                ours,
                f"{theirs}.self_attn",
                hidden=hidden,
                heads=heads,
                rope=ropes[kind],
                window=window if kind == "sliding_attention" else None,
                head_norms=norms if norms_heads else None,
                softcap=softcap,
            ),
            mlp=llama_mlp(ours, theirs, hidden=hidden, width=width, activation=activation),
        )

    return layered_decoder(
        config,
        norms,
        layer,
        tied=config.flag("tie_word_embeddings", default=True),
        embedding_scale=hidden**0.5,
        logit_softcap=config.bound("final_logit_softcapping"),
        left_out=left_out,
    )
