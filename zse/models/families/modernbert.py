"""ModernBERT: a gated encoder that turns its heads; two of three layers see a window alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.models.encoder import equal_heads, has_classifier, score_head, vector_head
from zse.models.layer_spec import LayerSpec
from zse.models.parts import Norms, Piece, attention, embedding, linear
from zse.models.parts import mlp as mlp_of
from zse.models.rope import RoPESpec
from zse.models.spec import ModelSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zse.models.config_json import ConfigJSON
    from zse.models.layer_spec import AttentionSpec
    from zse.models.parts import Heads
    from zse.models.spec import HeadSpec

ARCHITECTURES = ("ModernBertModel", "ModernBertForSequenceClassification")
MODELS = "GTE ModernBERT and other embedders and rerankers made of ModernBERT"
_LOCAL, _GLOBAL = "sliding_attention", "full_attention"
_THETA = {_LOCAL: ("local_rope_theta", 10_000.0), _GLOBAL: ("global_rope_theta", 160_000.0)}
"""What older files call the base of a kind of layer, and what it usually is."""
_POOLING = {"cls": "first", "mean": "mean"}


def read(config: ConfigJSON) -> ModelSpec:
    scores = has_classifier(config)
    prefix = "model." if scores else ""
    hidden, vocab_size = config.integer("hidden_size"), config.integer("vocab_size")
    norms = Norms(
        epsilon=config.number("norm_eps", 1e-5), kind="layer", has_bias=config.flag("norm_bias")
    )
    kinds = _kinds(config)
    table = embedding(f"{prefix}embeddings.tok_embeddings", vocab_size, hidden, tied=False)
    return ModelSpec(
        family=config.family,
        vocab_size=vocab_size,
        hidden_size=hidden,
        max_position=config.integer("max_position_embeddings", 8192),
        embedding=replace(table, norm=norms.norm("embed_norm", f"{prefix}embeddings.norm", hidden)),
        layers=tuple(
            _layer(config, index, f"{prefix}layers.{index}", kind, norms)
            for index, kind in enumerate(kinds)
        ),
        head=_head(config, norms, f"{prefix}final_norm", scores=scores),
        **config.ends(),
        header=config.header(),
    )


def _kinds(config: ConfigJSON) -> Sequence[str]:
    """Return the kind of each layer: if nothing is told, the first of three has no window."""
    told = config.layer_types(_GLOBAL, _LOCAL)
    every = config.integer("global_attn_every_n_layers", 3)
    return told or [_LOCAL if index % every else _GLOBAL for index in range(config.num_layers())]


def _layer(config: ConfigJSON, index: int, theirs: str, kind: str, norms: Norms) -> LayerSpec:
    hidden, ours = config.integer("hidden_size"), f"layers.{index}"
    bias = config.flag("attention_bias")
    return LayerSpec(
        index=index,
        # The embedding's own norm stands before the first.
        mixer_norm=norms.norm(f"{ours}.attn_norm", f"{theirs}.attn_norm", hidden)
        if index
        else None,
        mixer=_attention(config, ours, f"{theirs}.attn", equal_heads(config, bias=bias), kind),
        mlp_norm=norms.norm(f"{ours}.mlp_norm", f"{theirs}.mlp_norm", hidden),
        mlp=mlp_of(
            ours,
            [f"{theirs}.mlp.Wi"],
            f"{theirs}.mlp.Wo",
            hidden=hidden,
            width=config.integer("intermediate_size"),
            activation=config.activation("gelu", "hidden_activation"),
            bias=config.flag("mlp_bias"),
            is_joined=True,
        ),
    )


def _attention(
    config: ConfigJSON, ours: str, theirs: str, heads: Heads, kind: str
) -> AttentionSpec:
    hidden, bias = config.integer("hidden_size"), heads.qkv_bias
    qkv, output = Piece(name=f"{theirs}.Wqkv", rows=heads.qkv_rows), f"{theirs}.Wo"
    # Half of the tokens that are seen stand on each side, beside the token itself.
    window = config.integer("local_attention", 128) // 2 + 1 if kind == _LOCAL else None
    return attention(
        ours,
        theirs,
        hidden=hidden,
        heads=heads,
        rope=_rope(config, heads.head_dim, kind),
        window=window,
        is_causal=False,
        qkv=linear(f"{ours}.qkv", [qkv], hidden, bias=bias),
        output=linear(
            f"{ours}.o", [Piece(name=output, rows=hidden)], hidden, shard="columns", bias=bias
        ),
    )


def _rope(config: ConfigJSON, head_dim: int, kind: str) -> RoPESpec:
    config.expect("rope_scaling", None)
    if config.value("rope_parameters") is not None:
        return config.rope(head_dim, kind=kind)
    return RoPESpec(theta=config.number(*_THETA[kind]), rotary_dim=head_dim)


def _head(config: ConfigJSON, norms: Norms, theirs: str, *, scores: bool) -> HeadSpec:
    hidden = config.integer("hidden_size")
    norm = norms.norm("final_norm", theirs, hidden)
    if not scores:
        return vector_head(norm)
    config.expect("classifier_pooling", *_POOLING)
    config.expect("classifier_activation", "gelu")
    return score_head(
        config,
        "head.dense",
        "classifier",
        activation="gelu",
        bias=config.flag("classifier_bias"),
        pooling="first" if config.value("classifier_pooling", "cls") == "cls" else "mean",
        norm=norm,
        inner_norm=norms.norm("classifier.norm", "head.norm", hidden),
    )
