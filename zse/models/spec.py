"""What a model is, as data: layers, their weights, and the numbers that its arithmetic needs.

A family (``zse.models.families``) reads a checkpoint's ``config.json`` into a ``ModelSpec``;
``zse.models.decoder`` is the one program that runs them all; backends, placement, storage and
memory estimates read the same records. Nothing here computes, and nothing knows a device.

A spec says more than any backend can do today: a backend refuses by name what it cannot execute.
"""

from __future__ import annotations

from dataclasses import field, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from zse.errors import UnsupportedModelError
from zse.format.names import SPARE_PREFIX
from zse.models.weights import WeightSpec
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from zse.models.rope import RoPESpec

Activation: TypeAlias = Literal["silu", "gelu", "gelu_tanh", "relu2", "swiglu_oai"]
"""``gelu`` is the exact form with the error function, ``gelu_tanh`` the approximation by tanh,
``relu2`` the square of the positive part, ``swiglu_oai`` what ``MLPSpec.limit`` describes."""
NormKind: TypeAlias = Literal["rms", "layer"]
Pooling: TypeAlias = Literal["none", "last", "mean", "first"]
Task: TypeAlias = Literal["text", "vectors", "scores"]
Scoring: TypeAlias = Literal["softmax", "softmax_chosen", "sigmoid"]
"""What becomes of a router's logits: a softmax over all experts, or over the chosen ones alone, or
a sigmoid of each."""


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
class LatentSpec:
    """Keys and values as products of a latent that all heads share (arXiv:2405.04434).

    Kept of a token are its latent, normed, and behind it one key that turns: ``head_dim`` numbers.
    No head's keys and values are ever made: a query goes through the matrix of its head's keys
    instead, and then is as wide as what is kept; the latents, summed up by the weights of its
    scores, go through that of its values.
    """

    rank: int
    """Columns of the latent."""
    key_dim: int
    """Columns of a head's query that do not turn. Those that turn follow them."""
    value_dim: int
    """Columns of a head's value."""
    query_norm: NormSpec | None = None
    """Of the queries' own latent."""
    query: LinearSpec | None = None
    """From that latent to queries; None: there is none, and ``qkv`` makes queries."""
    norm: NormSpec
    """Of the latent."""
    expansion: WeightSpec
    """[heads * (key_dim + value_dim), rank]: of each head keys, then values."""


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
    is_gated: bool = False
    """Whether each element of the result is multiplied by the sigmoid of its gate."""
    values_are_keys: bool = False
    """Whether the values are the keys, as they are before their norm and their rotation."""
    is_causal: bool = True
    """False: every token sees all of its sequence."""
    qkv: LinearSpec
    """Rows of queries, of gates where ``is_gated``, of keys and of values where it has own ones.
    With a ``latent`` of queries or their latent, of the latent, of the key that turns."""
    q_norm: NormSpec | None = None
    """Before the rotation: of each head, or of all heads together where it is as wide."""
    k_norm: NormSpec | None = None
    value_norm_epsilon: float | None = None
    """Of an RMSNorm of each value head, which has no weight; None: there is none."""
    latent: LatentSpec | None = None
    """What heads are made of where they are not kept; there is one KV head then."""
    sinks: WeightSpec | None = None
    """One logit a head that takes its share of the softmax and has no value."""
    output: LinearSpec

    @property
    def query_columns(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_columns(self) -> int:
        """Columns of the keys, and of the values."""
        return self.num_kv_heads * self.head_dim

    @property
    def cached_rows(self) -> int:
        """Rows of ``head_dim`` numbers that are kept of a token: of keys, then of values."""
        return self.num_kv_heads if self.latent is not None else 2 * self.num_kv_heads

    @property
    def value_dim(self) -> int:
        """Columns of what is summed up by the weights of attention: a value, or the latent."""
        return self.head_dim if self.latent is None else self.latent.rank


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
    """Rows of queries, of keys, of values and of the output's gates."""
    gates: LinearSpec
    """Steps of all value heads, then their decays."""
    convolution: WeightSpec
    """[rows of queries, keys and values, convolution_width], the newest token's last."""
    decay: WeightSpec
    """Logarithm of each value head's rate."""
    step_bias: WeightSpec
    """Is added to the decays before their softplus."""
    norm: NormSpec
    """Of each value head, before its gate."""
    output: LinearSpec


@record
class MLPSpec:
    """``down(activation(gate) * up)``, or ``down(activation(up))`` where nothing gates."""

    activation: Activation
    is_gated: bool
    limit: float | None = None
    """Bound of ``swiglu_oai``: with the gate at most the limit and up within it on both sides, the
    result is ``gate * sigmoid(1.702 * gate) * (up + 1)``."""
    up: LinearSpec
    """Gate rows, then up rows, where ``is_gated``; else up rows alone."""
    down: LinearSpec


@record
class ExpertsSpec:
    """A mixture of experts: every token goes through the few that its router likes best.

    A router's logits become scores (``scoring``). The experts with the highest scores are chosen,
    those of the lower number among equals; ``selection_bias`` is added to scores for the choice
    alone. With groups the best ``groups_per_token`` of them are chosen first.
    """

    num_experts: int
    experts_per_token: int
    norm: NormSpec | None
    """Of what the experts read, and the router too where it has none of its own."""
    router_norm: NormSpec | None = None
    router: LinearSpec
    scoring: Scoring = "softmax"
    selection_bias: WeightSpec | None = None
    num_groups: int = 1
    """Groups of as many experts each."""
    groups_per_token: int = 1
    scores_in_group: int = 1
    """A group's score is the sum of so many of its best."""
    normalizes_weights: bool = True
    """Whether the chosen experts' weights are scaled to a sum of one."""
    weight_scale: float = 1.0
    """Multiplies the weights then."""
    expert_scale: WeightSpec | None = None
    """Multiplies each expert's weights: [experts]."""
    expert: MLPSpec
    """Its matrices are stacked: [experts * rows, columns]."""
    shared: MLPSpec | None = None
    """Expert of every token."""
    shared_gate: LinearSpec | None = None
    """One row, whose sigmoid multiplies what the shared expert adds."""
    post_norm: NormSpec | None = None
    """Of what the experts add."""


@record
class LayerInputSpec:
    """How a layer takes what its tokens are told besides the stream (``LayerInputsSpec``).

    ``post_norm(projection(activation(gate(stream)) * told))`` is added to the stream.
    """

    activation: Activation
    gate: LinearSpec
    """[width, hidden]."""
    projection: LinearSpec
    """[hidden, width]."""
    post_norm: NormSpec | None


@record
class LayerSpec:
    """A mixer of tokens, then what is done to each token, both added to the residual stream."""

    index: int
    mixer_norm: NormSpec | None
    mixer: AttentionSpec | LinearAttentionSpec
    mixer_post_norm: NormSpec | None = None
    """Of what the mixer adds to the stream."""
    mixer_stream_norm: NormSpec | None = None
    """Of the stream itself, after that has been added."""
    mlp_norm: NormSpec | None = None
    mlp: MLPSpec | None
    dense_post_norm: NormSpec | None = None
    """Of what a dense MLP adds beside experts."""
    experts: ExpertsSpec | None = None
    """Beside a dense MLP, or instead of one."""
    mlp_post_norm: NormSpec | None = None
    """Of all that is added after the mixer."""
    mlp_stream_norm: NormSpec | None = None
    """Of the stream itself, after that has been added."""
    residual_scale: float = 1.0
    """Multiplies what is added to the stream."""
    own_input: LayerInputSpec | None = None
    """Added after all that; the model has the ``EmbeddingSpec.layer_inputs`` that it reads."""
    stream_scale: WeightSpec | None = None
    """One number that multiplies the stream at the end of the layer."""

    @property
    def name(self) -> str:
        """Name of the layer's group in the file, and how its tensors' names begin."""
        return f"layers.{self.index}"


@record
class GuessSpec:
    """A head that guesses the token after the next one (multi-token prediction).

    Its layer reads the stream of a token beside the embedding of the next one. The embedding and
    the logits are the model's own. Files keep it; no step computes it.
    """

    index: int
    embedding_norm: NormSpec
    stream_norm: NormSpec
    join: LinearSpec
    """[hidden, 2 * hidden]: columns of the embedding, then of the stream."""
    layer: LayerSpec
    norm: NormSpec
    """Before the head."""

    @property
    def name(self) -> str:
        """Name of its group in the file, and how its tensors' names begin."""
        return f"{SPARE_PREFIX}{self.index}"


@record
class LayerInputsSpec:
    """Per-layer embeddings: what every layer is told of each token besides the stream.

    ``norm(projection(embedding)) + scale * table[token]``, ``width`` columns for each layer, one
    layer's behind the other's. The embedding is the stream before the first layer.
    """

    width: int
    table: WeightSpec
    """[tokens, layers * width], as many tokens as there are, at least."""
    scale: float
    """Multiplies its rows."""
    projection: LinearSpec
    """[layers * width, hidden]."""
    norm: NormSpec
    """Of the columns of each layer: as wide as one layer's."""


@record
class EmbeddingSpec:
    """The table whose rows the tokens name, and what is done to them before the first layer."""

    weight: WeightSpec
    scale: float = 1.0
    """Multiplies the rows."""
    positions: WeightSpec | None = None
    """[positions, hidden]: the row of each token's position is added."""
    first_position: int = 0
    """Row of a text's first token in it."""
    token_types: WeightSpec | None = None
    """[kinds of tokens, hidden]: the first row is added to all, but to the second text of a pair
    the second, where there is one."""
    norm: NormSpec | None = None
    """Of the stream itself, after all that is added."""
    layer_inputs: LayerInputsSpec | None = None


@record
class ClassifierSpec:
    """From the vector of a text to scores: ``output(norm(activation(dense(vector))))``."""

    dense: LinearSpec
    activation: Literal["tanh", "gelu"]
    norm: NormSpec | None = None
    output: LinearSpec
    """A row a score."""


@record
class HeadSpec:
    """From the residual stream to logits, or to a vector of the text."""

    norm: NormSpec | None
    weight: WeightSpec | None
    """The embedding's own where they are tied; None: the model gives vectors, not logits."""
    logit_scale: float = 1.0
    softcap: float | None = None
    pooling: Pooling = "none"
    classifier: ClassifierSpec | None = None
    """Makes scores of that vector, which are then what the model gives."""


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
    guesses: tuple[GuessSpec, ...] = ()
    """Heads that a file may have or lack: no step computes them."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "bf16"
    """Type of the checkpoint's weights: fp16, bf16 or fp32."""
    left_out: tuple[str, ...] = ()
    """How the names of a checkpoint's tensors begin that have no part in texts."""
    header: Mapping[str, Any] = field(compare=False, repr=False)
    """The same as the file's header writes it."""

    @property
    def is_tied(self) -> bool:
        return self.head.weight is self.embedding.weight

    @property
    def gathered(self) -> frozenset[str]:
        """Names of the tables of which a step reads rows of tokens alone."""
        inputs = self.embedding.layer_inputs
        tables = [] if self.is_tied else [self.embedding.weight]
        tables += [] if inputs is None else [inputs.table]
        return frozenset(table.name for table in tables)

    @property
    def is_encoder(self) -> bool:
        """Whether it makes vectors of whole texts, and no text of its own."""
        return self.head.weight is None

    @property
    def task(self) -> Task:
        """What it makes of texts: further text, vectors, or scores."""
        if not self.is_encoder:
            return "text"
        return "vectors" if self.head.classifier is None else "scores"

    @property
    def attention(self) -> AttentionSpec:
        """What all layers' attention has in common: everything but its weights and its window."""
        mixer = self.layers[0].mixer
        if not isinstance(mixer, AttentionSpec):
            raise UnsupportedModelError(f"the layers of a {self.family} model are not alike")
        return mixer

    def within(self, tokens: int) -> ModelSpec:
        """Return the model as it is where no sequence has more than so many tokens."""
        return replace(self, layers=tuple(_within(layer, tokens) for layer in self.layers))

    def groups(self) -> Iterator[WeightGroup]:
        """Return every weight that steps read once, in the order of execution."""
        # Tables that are gathered from come first: what is read whole lies together then.
        tables = sorted(weights_of(self.embedding), key=lambda one: one.name not in self.gathered)
        yield WeightGroup(name="embed", weights=tuple(tables))
        for layer in self.layers:
            yield WeightGroup(name=layer.name, weights=tuple(weights_of(layer)))
        head = [*weights_of(self.head.norm)]
        if self.head.weight is not None and not self.is_tied:
            head.append(self.head.weight)
        head += weights_of(self.head.classifier)
        if head:
            yield WeightGroup(name="final", weights=tuple(head))

    def spare_groups(self) -> Iterator[WeightGroup]:
        """Return what may lie behind these in a file, and is not loaded."""
        for guess in self.guesses:
            yield WeightGroup(name=guess.name, weights=tuple(weights_of(guess)))

    def weights(self) -> Iterator[WeightSpec]:
        return (weight for group in self.groups() for weight in group.weights)


def _within(layer: LayerSpec, tokens: int) -> LayerSpec:
    mixer = layer.mixer
    if not isinstance(mixer, AttentionSpec) or mixer.rope is None or mixer.rope.by_length is None:
        return layer
    rope = replace(mixer.rope, longest=tokens)
    return replace(layer, mixer=replace(mixer, rope=rope))


def weights_of(spec: Any) -> Iterator[WeightSpec]:
    """Return the weights of a spec in the order of its fields, which is that of execution."""
    if isinstance(spec, WeightSpec):
        yield spec
    elif spec is not None:
        for name in _names_of_specs(spec.__class__):
            part = getattr(spec, name)
            if part is not None:  # most are: a start goes through the weights several times
                yield from weights_of(part)


@cache
def _names_of_specs(kind: type) -> tuple[str, ...]:
    """Return the fields of a record that hold specs; there are a handful of records."""
    return tuple(entry.name for entry in fields(kind) if "Spec" in str(entry.type))
