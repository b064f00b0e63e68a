"""What a layer is, as data: norms, a mixer of tokens, and what is done to each token.

A ``ModelSpec`` (``zse.models.spec``) is made of these; each says what a weight is for and the
numbers that its arithmetic needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from zse.records import record

if TYPE_CHECKING:
    from zse.models.rope import RoPESpec
    from zse.models.weights import WeightSpec

Activation: TypeAlias = Literal["silu", "gelu", "gelu_tanh", "relu2", "swiglu_oai"]
"""``gelu`` is the exact form with the error function, ``gelu_tanh`` the approximation by tanh,
``relu2`` the square of the positive part, ``swiglu_oai`` what ``MLPSpec.limit`` describes."""
NormKind: TypeAlias = Literal["rms", "layer"]
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
