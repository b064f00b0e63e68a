"""Gemma 3: five layers with a window to one without, which turns by another table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.models.families.gemma2 import NORM_NAMES
from zse.models.layered import dense_layer, layered_decoder
from zse.models.parts import Norms, attention, llama_mlp

if TYPE_CHECKING:
    from zse.models.config_json import ConfigJSON
    from zse.models.spec import LayerSpec, ModelSpec

ARCHITECTURES = ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")
MODELS = "Gemma 3"
OTHER_PARTS = (
    "vision_tower.",
    "multi_modal_projector.",
    "audio_tower.",
    "embed_vision.",
    "embed_audio.",
)
"""What models that see and hear have besides."""


def read(config: ConfigJSON) -> ModelSpec:
    text = config.nested("text_config")
    text.expect("use_bidirectional_attention", False, None)
    hidden, width = text.integer("hidden_size"), text.integer("intermediate_size")
    bias = text.flag("attention_bias")
    scale = text.number("query_pre_attn_scalar", 256) ** -0.5
    heads = text.heads(scale=scale, qkv_bias=bias, output_bias=bias)
    norms = Norms(epsilon=text.number("rms_norm_eps", 1e-6), offset=1.0)
    kinds = text.alternating_layers(every=text.integer("sliding_window_pattern", 6))
    window, softcap = text.integer("sliding_window", 4096), text.bound("attn_logit_softcapping")
    activation = text.activation("gelu_pytorch_tanh", "hidden_activation")
    ropes = {
        "full_attention": text.rope(heads.head_dim, kind="full_attention"),
        "sliding_attention": text.local_rope(heads.head_dim),
    }

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
                head_norms=norms,
                softcap=softcap,
            ),
            mlp=llama_mlp(ours, theirs, hidden=hidden, width=width, activation=activation),
        )

    return layered_decoder(
        text,
        norms,
        layer,
        left_out=OTHER_PARTS,
        tied=text.flag("tie_word_embeddings", default=True),
        embedding_scale=hidden**0.5,
        logit_softcap=text.bound("final_logit_softcapping"),
    )
