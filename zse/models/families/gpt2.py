"""GPT-2: learned positions, and matrices that a checkpoint keeps with inputs before outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.errors import UnsupportedModelError
from zse.models.layer_spec import MLPSpec
from zse.models.layered import NormNames, dense_layer
from zse.models.parts import (
    Heads,
    Norms,
    Piece,
    attention,
    embedding,
    head_of,
    learned_positions,
    linear,
)
from zse.models.spec import HeadSpec, ModelSpec

if TYPE_CHECKING:
    from zse.models.config_json import ConfigJSON
    from zse.models.layer_spec import LayerSpec, LinearSpec
    from zse.models.weights import Shard

ARCHITECTURES = ("GPT2LMHeadModel",)
MODELS = "GPT-2"
_NORMS = NormNames(mixer="ln_1", mlp="ln_2")


def read(config: ConfigJSON) -> ModelSpec:
    config.expect("scale_attn_weights", True)
    config.expect("scale_attn_by_inverse_layer_idx", False)
    config.expect("add_cross_attention", False)
    hidden = config.integer("n_embd")
    width = config.integer("n_inner", 4 * hidden)
    heads = _heads(config.integer("n_head"), hidden)
    activation = config.activation("gelu_new", "activation_function")
    norms = Norms(epsilon=config.number("layer_norm_epsilon", 1e-5), kind="layer")
    vocab_size, longest = config.integer("vocab_size"), config.integer("n_positions", 1024)
    tied = config.flag("tie_word_embeddings", default=True)
    table = embedding("transformer.wte", vocab_size, hidden, tied=tied)

    def layer(index: int) -> LayerSpec:
        ours, theirs = f"layers.{index}", f"transformer.h.{index}"
        return dense_layer(
            index,
            theirs,
            _NORMS,
            norms,
            hidden=hidden,
            mixer=attention(
                ours,
                theirs,
                hidden=hidden,
                heads=heads,
                rope=None,
                qkv=_turned(f"{ours}.qkv", f"{theirs}.attn.c_attn", heads.qkv_rows, hidden),
                output=_turned(f"{ours}.o", f"{theirs}.attn.c_proj", hidden, hidden, "columns"),
            ),
            mlp=MLPSpec(
                activation=activation,
                is_gated=False,
                up=_turned(f"{ours}.up", f"{theirs}.mlp.c_fc", width, hidden),
                down=_turned(f"{ours}.down", f"{theirs}.mlp.c_proj", hidden, width, "columns"),
            ),
        )

    return ModelSpec(
        family=config.family,
        vocab_size=vocab_size,
        hidden_size=hidden,
        max_position=longest,
        embedding=replace(table, positions=learned_positions("transformer.wpe", longest, hidden)),
        layers=tuple(map(layer, range(config.num_layers("n_layer")))),
        head=HeadSpec(
            norm=norms.norm("final_norm", "transformer.ln_f", hidden),
            weight=head_of(table, tied=tied),
        ),
        **config.ends(),
        header=config.header(),
    )


def _heads(count: int, hidden: int) -> Heads:
    if count < 1 or hidden % count:
        raise UnsupportedModelError(f"n_embd is {hidden}, which {count} heads do not divide")
    return Heads(num_heads=count, num_kv_heads=count, head_dim=hidden // count)


def _turned(name: str, theirs: str, rows: int, columns: int, shard: Shard = "rows") -> LinearSpec:
    piece = Piece(name=theirs, rows=rows, is_transposed=True)
    return linear(name, [piece], columns, shard=shard, bias=True)
