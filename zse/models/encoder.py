"""What encoders have in common: heads, and the classifiers that make rerankers of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import UnsupportedModelError
from zse.models.parts import Heads, Piece, linear
from zse.models.spec import ClassifierSpec, HeadSpec

if TYPE_CHECKING:
    from typing import Literal

    from zse.models.config_json import ConfigJSON
    from zse.models.layer_spec import LinearSpec, NormSpec
    from zse.models.spec import Pooling

_CLASSIFIER = "ForSequenceClassification"


def has_classifier(config: ConfigJSON) -> bool:
    """Whether a checkpoint scores texts, by the name of its architecture."""
    names = config.value("architectures", [])
    return isinstance(names, list) and any(str(name).endswith(_CLASSIFIER) for name in names)


def equal_heads(config: ConfigJSON, *, bias: bool) -> Heads:
    """Return heads that divide the width among them, each with keys of its own."""
    count, hidden = config.integer("num_attention_heads"), config.integer("hidden_size")
    if count < 1 or hidden % count:
        raise UnsupportedModelError(f"hidden_size is {hidden}, which {count} heads do not divide")
    return Heads(
        num_heads=count,
        num_kv_heads=count,
        head_dim=hidden // count,
        qkv_bias=bias,
        output_bias=bias,
    )


def vector_head(norm: NormSpec | None = None) -> HeadSpec:
    """Return the head of an embedder: the mean of its states, unless its files say otherwise."""
    return HeadSpec(norm=norm, weight=None, pooling="mean")


def score_head(
    config: ConfigJSON,
    dense: str,
    output: str,
    *,
    activation: Literal["tanh", "gelu"] = "tanh",
    bias: bool = True,
    pooling: Pooling = "first",
    norm: NormSpec | None = None,
    inner_norm: NormSpec | None = None,
) -> HeadSpec:
    """Return the head of a reranker: a dense layer, then one row that scores a text.

    Args:
        config: Of the checkpoint.
        dense: What the checkpoint calls the dense layer.
        output: What it calls the row.
        activation: Behind the dense layer.
        bias: Whether that has a bias; the row always has one.
        pooling: Which states are scored.
        norm: Of the states.
        inner_norm: Behind the activation.

    Raises:
        UnsupportedModelError: It tells several classes apart.
    """
    hidden = config.integer("hidden_size")
    if (count := _num_labels(config)) != 1:
        raise UnsupportedModelError(
            f"the checkpoint tells {count} classes of texts apart; expected one score, "
            "as rerankers have",
            hint="Choose a reranker: a cross-encoder with one label.",
        )

    def matrix(name: str, theirs: str, rows: int, *, bias: bool) -> LinearSpec:
        piece = Piece(name=theirs, rows=rows)
        return linear(name, [piece], hidden, shard="none", kind="gate", bias=bias)

    classifier = ClassifierSpec(
        dense=matrix("classifier.dense", dense, hidden, bias=bias),
        activation=activation,
        norm=inner_norm,
        output=matrix("classifier.output", output, 1, bias=True),
    )
    return HeadSpec(norm=norm, weight=None, pooling=pooling, classifier=classifier)


def _num_labels(config: ConfigJSON) -> int:
    labels = config.value("id2label")
    return len(labels) if isinstance(labels, dict) else config.integer("num_labels", 2)
