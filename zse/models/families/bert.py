"""BERT, and the embedders made of it: every token sees its whole text, which becomes a vector."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.errors import UnsupportedModelError
from zse.models.parts import (
    Heads,
    Norms,
    Piece,
    attention,
    embedding,
    learned_positions,
    linear,
    weight,
)
from zse.models.parts import mlp as mlp_of
from zse.models.spec import HeadSpec, LayerSpec, ModelSpec
from zse.models.weights import Source

if TYPE_CHECKING:
    from zse.models.config_json import ConfigJSON
    from zse.models.spec import AttentionSpec, EmbeddingSpec

ARCHITECTURES = ("BertModel",)
MODELS = "BGE, E5, MiniLM and other embedders made of BERT"


def read(config: ConfigJSON) -> ModelSpec:
    config.expect("position_embedding_type", "absolute")
    config.expect("is_decoder", False)
    config.expect("add_cross_attention", False)
    hidden, width = config.integer("hidden_size"), config.integer("intermediate_size")
    heads = _heads(config.integer("num_attention_heads"), hidden)
    norms = Norms(epsilon=config.number("layer_norm_eps", 1e-12), kind="layer")
    activation = config.activation("gelu")
    vocab_size, longest = config.integer("vocab_size"), config.integer("max_position_embeddings")

    def layer(index: int) -> LayerSpec:
        ours, theirs = f"layers.{index}", f"encoder.layer.{index}"
        return LayerSpec(
            index=index,
            mixer_norm=None,
            mixer=_attention(ours, f"{theirs}.attention", heads, hidden),
            mixer_stream_norm=norms.norm(
                f"{ours}.attn_stream_norm", f"{theirs}.attention.output.LayerNorm", hidden
            ),
            mlp=mlp_of(
                ours,
                [f"{theirs}.intermediate.dense"],
                f"{theirs}.output.dense",
                hidden=hidden,
                width=width,
                activation=activation,
                bias=True,
            ),
            mlp_stream_norm=norms.norm(
                f"{ours}.mlp_stream_norm", f"{theirs}.output.LayerNorm", hidden
            ),
        )

    return ModelSpec(
        family=config.family,
        vocab_size=vocab_size,
        hidden_size=hidden,
        max_position=longest,
        embedding=_embedding(config, norms, vocab_size, longest, hidden),
        layers=tuple(map(layer, range(config.num_layers()))),
        head=HeadSpec(norm=None, weight=None, pooling="mean"),
        **config.ends(),
        left_out=("pooler.",),
        header=config.header(),
    )


def _heads(count: int, hidden: int) -> Heads:
    if count < 1 or hidden % count:
        raise UnsupportedModelError(f"hidden_size is {hidden}, which {count} heads do not divide")
    return Heads(num_heads=count, num_kv_heads=count, head_dim=hidden // count)


def _embedding(
    config: ConfigJSON, norms: Norms, vocab_size: int, longest: int, hidden: int
) -> EmbeddingSpec:
    table = embedding("embeddings.word_embeddings", vocab_size, hidden, tied=False)
    types = Source(
        name="embeddings.token_type_embeddings.weight",
        shape=(config.integer("type_vocab_size", 2), hidden),
    )
    return replace(
        table,
        positions=learned_positions("embeddings.position_embeddings", longest, hidden),
        token_types=weight("token_types.weight", "position", [types]),
        norm=norms.norm("embed_norm", "embeddings.LayerNorm", hidden),
    )


def _attention(ours: str, theirs: str, heads: Heads, hidden: int) -> AttentionSpec:
    parts = ("query", "key", "value")
    output = Piece(name=f"{theirs}.output.dense", rows=hidden)
    return attention(
        ours,
        theirs,
        hidden=hidden,
        heads=heads,
        rope=None,
        is_causal=False,
        qkv=linear(
            f"{ours}.qkv",
            [Piece(name=f"{theirs}.self.{part}", rows=hidden) for part in parts],
            hidden,
            bias=True,
        ),
        output=linear(f"{ours}.o", [output], hidden, shard="columns", bias=True),
    )
