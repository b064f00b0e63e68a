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
from zse.format.names import MEDUSA_PREFIX, SPARE_PREFIX
from zse.models.layer_spec import (
    AttentionSpec,
    LayerSpec,
    LinearSpec,
    NormSpec,
)
from zse.models.weights import WeightSpec
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Pooling: TypeAlias = Literal["none", "last", "mean", "first"]
Task: TypeAlias = Literal["text", "vectors", "scores"]


@record
class GuessSpec:
    """A head that guesses the token after the next one (multi-token prediction).

    Its layer reads the stream of a token beside the embedding of the next one. The embedding and
    the logits are the model's own. Files keep it; steps of the model do not compute it.
    ``zse.models.guess.model_of`` makes a model of one layer of it.
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
class MedusaSpec:
    """A head that guesses the token so many places behind the next one (arXiv:2401.10774).

    It reads the state that the next token is chosen from, behind the model's last norm: each block
    adds ``silu(linear(state))`` to it, and a matrix of its own makes logits of what comes of that.
    ``zse.models.medusa.model_of`` makes a model of all of a file's heads.
    """

    index: int
    """Places behind the next token."""
    blocks: tuple[LinearSpec, ...]
    """[hidden, hidden] each."""
    matrix: WeightSpec
    """[vocabulary, hidden]."""

    @property
    def name(self) -> str:
        """Name of its group in the file, and how its tensors' names begin."""
        return f"{MEDUSA_PREFIX}{self.index}"

    def weights(self) -> Iterator[WeightSpec]:
        for block in self.blocks:
            yield from weights_of(block)
        yield self.matrix


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
class JoinSpec:
    """How the embedding of a token is joined with the state of the token before it.

    ``linear([embedding_norm(embedding), state_norm(state)])`` is the stream then: columns of the
    embedding first. States are those of another model, or of a token before, behind its last norm.
    """

    embedding_norm: NormSpec
    state_norm: NormSpec
    linear: LinearSpec
    """[hidden, 2 * hidden]."""


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
    join: JoinSpec | None = None
    """After that norm: the tokens come with states."""


@record
class ClassifierSpec:
    """From the vector of a text to scores: ``output(norm(activation(dense(vector))))``."""

    dense: LinearSpec
    activation: Literal["tanh", "gelu"]
    norm: NormSpec | None = None
    output: LinearSpec
    """A row a score."""


@record
class HeadRows:
    """The part of the vocabulary whose logits a rank computes (``zse.models.share``)."""

    first: int
    count: int
    each: int
    """Of every rank but the last, which has what is left."""


@record
class HeadSpec:
    """From the residual stream to logits, or to a vector of the text."""

    norm: NormSpec | None
    weight: WeightSpec | None
    """The embedding's own where they are tied; None: the model gives vectors, not logits."""
    rows: HeadRows | None = None
    """The tokens that its logits are of; None: all. An own weight has these rows alone, a tied one
    is the whole embedding, of which they are a part."""
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
class StagePlace:
    """Where the layers of a spec stand in the model whose layers were shared out (a stage)."""

    is_first: bool = True
    """Whether tokens come to them; else the stream behind other layers does."""
    is_last: bool = True
    """Whether tokens are chosen behind them; else the stream goes on."""


WHOLE = StagePlace()
"""All layers are here."""


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
    medusa: tuple[MedusaSpec, ...] = ()
    """In place of layers, of what guesses by such heads alone: tokens come with states, which are
    the stream."""
    """Heads that a file may have or lack: no step computes them."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "bf16"
    """Type of the checkpoint's weights: fp16, bf16 or fp32."""
    left_out: tuple[str, ...] = ()
    """How the names of a checkpoint's tensors begin that have no part in texts."""
    place: StagePlace = WHOLE
    """Which ends of the model are here; tables of an end that is not are never looked at."""
    header: Mapping[str, Any] = field(compare=False, repr=False)
    """The same as the file's header writes it."""

    @property
    def is_tied(self) -> bool:
        return self.head.weight is self.embedding.weight

    @property
    def gathered(self) -> frozenset[str]:
        """Names of the tables of which a step reads rows of tokens alone."""
        inputs = self.embedding.layer_inputs
        tables = [] if self.is_tied and self.place.is_last else [self.embedding.weight]
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
        if head and not self.medusa:
            yield WeightGroup(name="final", weights=tuple(head))
        for one in self.medusa:
            yield WeightGroup(name=one.name, weights=tuple(one.weights()))

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
