"""Builds the spec of a decoder whose layers differ: its family describes each, ends are shared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.models.layer_spec import LayerSpec
from zse.models.parts import embedding, head_of
from zse.models.spec import HeadSpec, ModelSpec
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Callable

    from zse.models.config_json import ConfigJSON
    from zse.models.layer_spec import AttentionSpec, MLPSpec, NormSpec
    from zse.models.parts import Norms
    from zse.models.spec import GuessSpec


@record
class NormNames:
    """What checkpoints call the norms of a layer, before and after its two halves; empty: none."""

    mixer: str = "input_layernorm"
    after_mixer: str = ""
    mlp: str = "post_attention_layernorm"
    after_mlp: str = ""


def dense_layer(
    index: int,
    theirs: str,
    names: NormNames,
    norms: Norms,
    *,
    hidden: int,
    mixer: AttentionSpec,
    mlp: MLPSpec,
) -> LayerSpec:
    """Return a layer of attention and an MLP; ``theirs`` is how its tensors' names begin."""
    ours = f"layers.{index}"

    def norm(leaf: str, name: str) -> NormSpec | None:
        return norms.norm(f"{ours}.{leaf}", f"{theirs}.{name}", hidden) if name else None

    return LayerSpec(
        index=index,
        mixer_norm=norm("attn_norm", names.mixer),
        mixer=mixer,
        mixer_post_norm=norm("attn_post_norm", names.after_mixer),
        mlp_norm=norm("mlp_norm", names.mlp),
        mlp=mlp,
        mlp_post_norm=norm("mlp_post_norm", names.after_mlp),
    )


def layered_decoder(
    config: ConfigJSON,
    norms: Norms,
    layer: Callable[[int, str], LayerSpec],
    *,
    prefix: str = "model",
    tied: bool | None = None,
    embedding_scale: float = 1.0,
    logit_softcap: float | None = None,
    guesses: tuple[GuessSpec, ...] = (),
    left_out: tuple[str, ...] = (),
) -> ModelSpec:
    """Return a decoder between an embedding and a head.

    Args:
        config: Of the checkpoint.
        norms: Of the norm before the head.
        layer: Makes a layer of its number and of how its tensors' names begin.
        prefix: How the names of all tensors but the head's begin.
        tied: Whether the head is the embedding; None: as the checkpoint says, or else not.
        embedding_scale: Multiplies the rows of the embedding.
        logit_softcap: Bound of the logits.
        guesses: Heads that guess further tokens.
        left_out: How the names of tensors begin that have no part in texts.

    Raises:
        UnsupportedModelError: A value that is needed is missing or has no meaning.
    """
    vocab_size, hidden = config.integer("vocab_size"), config.integer("hidden_size")
    tied = config.flag("tie_word_embeddings") if tied is None else tied
    table = embedding(
        f"{prefix}.embed_tokens", vocab_size, hidden, tied=tied, scale=embedding_scale
    )
    count = config.num_layers()
    return ModelSpec(
        family=config.family,
        vocab_size=vocab_size,
        hidden_size=hidden,
        max_position=config.integer("max_position_embeddings", 2048),
        embedding=table,
        layers=tuple(layer(index, f"{prefix}.layers.{index}") for index in range(count)),
        head=HeadSpec(
            norm=norms.norm("final_norm", f"{prefix}.norm", hidden),
            weight=head_of(table, tied=tied),
            softcap=logit_softcap,
        ),
        guesses=guesses,
        **config.ends(),
        left_out=left_out,
        header=config.header(),
    )
