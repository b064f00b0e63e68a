"""What a model is, as data: layers, their weights, and the numbers that its arithmetic needs.

A family (``zse.models.families``) reads a checkpoint's ``config.json`` into a ``ModelSpec``;
``zse.models.decoder`` is the one program that runs them all; backends, placement, storage and
memory estimates read the same records. Nothing here computes, and nothing knows a device.

A spec says more than any backend can do today: a backend refuses by name what it cannot execute.
"""

from __future__ import annotations

from dataclasses import field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from zse.errors import UnsupportedModelError
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from zse.models.rope import RoPESpec

Activation: TypeAlias = Literal["silu", "gelu", "gelu_tanh", "relu2"]
"""``gelu`` is the exact form with the error function, ``gelu_tanh`` the approximation by tanh,
``relu2`` the square of the positive part."""
NormKind: TypeAlias = Literal["rms", "layer"]
WeightKind: TypeAlias = Literal["linear", "experts", "embed", "head", "norm", "bias", "state"]
"""What a weight is for; it decides how it is stored (``zse.models.storage``).

``head`` is also an embedding that the head reads too; ``state`` is what a linear attention keeps
its state by: convolutions, decays, steps.
"""
Shard: TypeAlias = Literal["rows", "columns", "none"]
"""How a weight is divided among devices: each piece of its rows, its columns (partial sums are
added up afterwards), or not at all: every device has all of it."""
Pooling: TypeAlias = Literal["none", "last", "mean", "first"]


@record
class WeightSpec:
    """One stored tensor, and the checkpoint's tensors that are stacked, by rows, to make it."""

    name: str
    """Name in the ``.zse`` file."""
    shape: tuple[int, ...]
    kind: WeightKind
    sources: tuple[tuple[str, tuple[int, ...]], ...]
    """``(checkpoint name, shape)`` in row order. Pieces that are used together are joined: q, k
    and v; gate and up."""
    shard: Shard = "none"

    @property
    def piece_rows(self) -> tuple[int, ...]:
        """Rows of each joined piece. A shard by rows takes its part of every one of them."""
        return tuple(shape[0] for _, shape in self.sources)


@record
class LinearSpec:
    """A matrix [outputs, inputs] and what is added to its product."""

    weight: WeightSpec
    bias: WeightSpec | None = None


@record
class NormSpec:
    """RMSNorm, or LayerNorm, which subtracts the mean first and may add a bias."""

    weight: WeightSpec
    epsilon: float
    kind: NormKind = "rms"
    bias: WeightSpec | None = None


@record
class AttentionSpec:
    """Softmax attention over the sequence so far, queries in groups that share a key."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    """Multiplies the scores; usually 1 / sqrt(head_dim)."""
    rope: RoPESpec | None
    """None: positions are not encoded."""
    window: int | None = None
    """Tokens that are seen, the query's own included; None: all."""
    softcap: float | None = None
    """Scores become ``softcap * tanh(score / softcap)``."""
    kv_of_layer: int | None = None
    """Layer whose keys and values are read instead of own ones."""
    qkv: LinearSpec
    q_norm: NormSpec | None = None
    """Of each head, before the rotation."""
    k_norm: NormSpec | None = None
    sinks: WeightSpec | None = None
    """One logit a head that takes its share of the softmax and has no value."""
    output: LinearSpec


@record
class LinearAttentionSpec:
    """Attention by a state of fixed size: the gated delta rule (arXiv:2412.06464)."""

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    convolution_width: int
    """Tokens of the causal convolution before it."""
    inputs: LinearSpec
    """Queries, keys, values and the output's gate."""
    gates: LinearSpec
    """Step and decay of each value head."""
    convolution: WeightSpec
    decay: WeightSpec
    step_bias: WeightSpec
    norm: NormSpec
    output: LinearSpec


@record
class MLPSpec:
    """``down(activation(gate) * up)``, or ``down(activation(up))`` where nothing gates."""

    activation: Activation
    is_gated: bool
    up: LinearSpec
    """Gate rows, then up rows, where ``is_gated``; else up rows alone."""
    down: LinearSpec


@record
class ExpertsSpec:
    """A mixture of experts: every token goes through the few that its router likes best."""

    num_experts: int
    experts_per_token: int
    router: LinearSpec
    expert: MLPSpec
    """Its matrices are stacked: [experts * rows, columns]."""
    normalizes_weights: bool = True
    """Whether the chosen experts' weights are scaled to a sum of one."""
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    shared: MLPSpec | None = None
    """Expert of every token."""
    shared_gate: LinearSpec | None = None


@record
class LayerSpec:
    """A mixer of tokens, then what is done to each token, both added to the residual stream."""

    index: int
    mixer_norm: NormSpec
    mixer: AttentionSpec | LinearAttentionSpec
    mixer_post_norm: NormSpec | None = None
    """Of what the mixer adds to the stream."""
    mlp_norm: NormSpec
    mlp: MLPSpec | None
    experts: ExpertsSpec | None = None
    """Beside a dense MLP, or instead of one."""
    mlp_post_norm: NormSpec | None = None
    residual_scale: float = 1.0
    """Multiplies what is added to the stream."""

    @property
    def name(self) -> str:
        """Name of the layer's group in the file, and how its tensors' names begin."""
        return f"layers.{self.index}"


@record
class EmbeddingSpec:
    """The table whose rows the tokens name."""

    weight: WeightSpec
    scale: float = 1.0
    """Multiplies the rows."""


@record
class HeadSpec:
    """From the residual stream to logits, or to a vector of the text."""

    norm: NormSpec
    weight: WeightSpec | None
    """The embedding's own where they are tied; None: the model gives vectors, not logits."""
    logit_scale: float = 1.0
    softcap: float | None = None
    pooling: Pooling = "none"


@record
class WeightGroup:
    """Weights that lie and are loaded together."""

    name: str
    weights: tuple[WeightSpec, ...]


@record
class ModelSpec:
    """A decoder: embedding, layers, head."""

    family: str
    vocab_size: int
    hidden_size: int
    max_position: int
    """Longest sequence in tokens."""
    embedding: EmbeddingSpec
    layers: tuple[LayerSpec, ...]
    head: HeadSpec
    extra_heads: tuple[LayerSpec, ...] = ()
    """Layers that guess further tokens from the stream (multi-token prediction)."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "bf16"
    """Type of the checkpoint's weights: fp16, bf16 or fp32."""
    header: Mapping[str, Any] = field(compare=False, repr=False)
    """The same as the file's header writes it."""

    @property
    def is_tied(self) -> bool:
        return self.head.weight is self.embedding.weight

    @property
    def attention(self) -> AttentionSpec:
        """What all layers' attention has in common: everything but its weights and its window."""
        mixer = self.layers[0].mixer
        if not isinstance(mixer, AttentionSpec):
            raise UnsupportedModelError(f"the layers of a {self.family} model are not alike")
        return mixer

    def groups(self) -> Iterator[WeightGroup]:
        """Return every stored weight once, in the order of execution."""
        yield WeightGroup(name="embed", weights=(self.embedding.weight,))
        for layer in (*self.layers, *self.extra_heads):
            yield WeightGroup(name=layer.name, weights=tuple(weights_of(layer)))
        head = [*weights_of(self.head.norm)]
        if self.head.weight is not None and not self.is_tied:
            head.append(self.head.weight)
        yield WeightGroup(name="final", weights=tuple(head))

    def weights(self) -> Iterator[WeightSpec]:
        return (weight for group in self.groups() for weight in group.weights)


def weights_of(spec: Any) -> Iterator[WeightSpec]:
    """Return the weights of a spec in the order of its fields, which is that of execution."""
    if isinstance(spec, WeightSpec):
        yield spec
    elif spec is not None:
        for name in _names_of_specs(spec.__class__):
            yield from weights_of(getattr(spec, name))


@cache
def _names_of_specs(kind: type) -> tuple[str, ...]:
    """Return the fields of a record that hold specs; there are a handful of records."""
    return tuple(entry.name for entry in fields(kind) if "Spec" in str(entry.type))
