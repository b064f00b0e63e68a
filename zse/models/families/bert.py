"""BERT, and what is made of it: every token sees its whole text, which gets a vector or a score."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.models.encoder import equal_heads, has_classifier, score_head, vector_head
from zse.models.layer_spec import LayerSpec
from zse.models.parts import (
    Norms,
    Piece,
    attention,
    embedding,
    learned_positions,
    linear,
    weight,
)
from zse.models.parts import mlp as mlp_of
from zse.models.spec import ModelSpec
from zse.models.weights import Source

if TYPE_CHECKING:
    from zse.models.config_json import ConfigJSON
    from zse.models.layer_spec import AttentionSpec
    from zse.models.parts import Heads
    from zse.models.spec import EmbeddingSpec

ARCHITECTURES = ("BertModel", "BertForSequenceClassification")
MODELS = "BGE, E5, MiniLM and other embedders and rerankers made of BERT"


def read(config: ConfigJSON) -> ModelSpec:
    return read_bert(config, "bert", classifier=("bert.pooler.dense", "classifier"))


def read_bert(
    config: ConfigJSON, name: str, *, classifier: tuple[str, str], first_position: int = 0
) -> ModelSpec:
    """Return a model that has BERT's layers.

    Args:
        config: Of the checkpoint.
        name: How its tensors' names begin where a classifier stands beside them.
        classifier: What the two layers of that are called.
        first_position: Row of a text's first token in the table of positions.
    """
    config.expect("position_embedding_type", "absolute")
    config.expect("is_decoder", False)
    config.expect("add_cross_attention", False)
    scores = has_classifier(config)
    prefix = f"{name}." if scores else ""
    hidden = config.integer("hidden_size")
    norms = Norms(epsilon=config.number("layer_norm_eps", 1e-12), kind="layer")
    heads = equal_heads(config, bias=True)

    def layer(index: int) -> LayerSpec:
        return _layer(config, index, f"{prefix}encoder.layer.{index}", heads, norms)

    table = _embedding(config, norms, f"{prefix}embeddings", first_position)
    assert table.positions is not None
    return ModelSpec(
        family=config.family,
        vocab_size=table.weight.shape[0],
        hidden_size=hidden,
        max_position=table.positions.shape[0] - first_position,
        embedding=table,
        layers=tuple(map(layer, range(config.num_layers()))),
        head=score_head(config, *classifier) if scores else vector_head(),
        **config.ends(),
        left_out=("pooler.", f"{name}.pooler."),
        header=config.header(),
    )


def _layer(config: ConfigJSON, index: int, theirs: str, heads: Heads, norms: Norms) -> LayerSpec:
    hidden, ours = config.integer("hidden_size"), f"layers.{index}"
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
            width=config.integer("intermediate_size"),
            activation=config.activation("gelu"),
            bias=True,
        ),
        mlp_stream_norm=norms.norm(f"{ours}.mlp_stream_norm", f"{theirs}.output.LayerNorm", hidden),
    )


def _embedding(config: ConfigJSON, norms: Norms, theirs: str, first_position: int) -> EmbeddingSpec:
    hidden, longest = config.integer("hidden_size"), config.integer("max_position_embeddings")
    vocab_size = config.integer("vocab_size")
    table = embedding(f"{theirs}.word_embeddings", vocab_size, hidden, tied=False)
    types = Source(
        name=f"{theirs}.token_type_embeddings.weight",
        shape=(config.integer("type_vocab_size", 2), hidden),
    )
    return replace(
        table,
        positions=learned_positions(f"{theirs}.position_embeddings", longest, hidden),
        first_position=first_position,
        token_types=weight("token_types.weight", "position", [types]),
        norm=norms.norm("embed_norm", f"{theirs}.LayerNorm", hidden),
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
