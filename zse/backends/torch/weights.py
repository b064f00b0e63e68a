"""From a file to matrices that multiply: which form each stored tensor takes in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from zse.backends.binding import bind_layer_inputs
from zse.backends.torch.experts import StackedLinear
from zse.backends.torch.forms import UPCAST_LIMIT_BYTES, form_of, kept_bytes
from zse.backends.torch.int4_linear import Int4Linear
from zse.backends.torch.int8_linear import MAX_COLUMNS, Int8Linear, int8_is_exact
from zse.backends.torch.linear import DenseLinear, int8_tiles, plain_tiles, table_tiles
from zse.format.as_torch import dequantize, scale_of_exponent, scale_of_minifloat, stored_parts
from zse.format.mxfp4 import MXFP4_CODES
from zse.format.nf4 import NF4_CODES
from zse.format.nl4 import NL4_CODES
from zse.format.schemes import Scheme, code_bits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from zse.backends.handles import LayerInputsWeights
    from zse.backends.torch.forms import Form
    from zse.backends.torch.linear import Linear
    from zse.backends.torch.step import Step
    from zse.format.reader import ZSEReader
    from zse.format.spec import TensorEntry
    from zse.models.layer_spec import LinearSpec, NormSpec
    from zse.models.spec import EmbeddingSpec, ModelSpec
    from zse.models.weights import WeightSpec


class BoundLinear(NamedTuple):
    """A matrix and what is added to its product."""

    matrix: Linear
    bias: torch.Tensor | None
    """float32 [N]."""
    name: str = ""
    """What adapters call the matrix."""

    def multiply(self, inputs: torch.Tensor, single_rows: int) -> torch.Tensor:
        """Return float32 [M, N] of [M, K], the first ``single_rows`` each on its own."""
        matrix = self.matrix
        if single_rows == inputs.shape[0]:
            outputs = matrix.each_row(inputs)
        elif single_rows == 0:
            outputs = matrix.all_rows(inputs)
        else:
            single, joined = inputs[:single_rows], inputs[single_rows:]
            outputs = torch.cat((matrix.each_row(single), matrix.all_rows(joined)))
        return outputs if self.bias is None else outputs.add_(self.bias)


class BoundNorm(NamedTuple):
    """RMSNorm, or LayerNorm."""

    weight: torch.Tensor
    """float32, as wide as what is normalized; or a row a head."""
    epsilon: float
    subtracts_mean: bool = False
    bias: torch.Tensor | None = None

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        if self.subtracts_mean:
            values = values - values.mean(-1, keepdim=True)
        mean_square = (values * values).mean(-1, keepdim=True)
        normalized = (values * mean_square.add_(self.epsilon).rsqrt_()).mul_(self.weight)
        return normalized if self.bias is None else normalized.add_(self.bias)


class BoundJoin(NamedTuple):
    """How embeddings of tokens are joined with the states that come with them."""

    embedding_norm: BoundNorm
    state_norm: BoundNorm
    linear: BoundLinear

    def __call__(self, rows: torch.Tensor, step: Step) -> torch.Tensor:
        both = torch.cat((self.embedding_norm(rows), self.state_norm(step.given_states())), 1)
        return self.linear.multiply(both, step.single_rows)


class StoredRows:
    """Rows of a table where it is mapped: only what is touched becomes resident."""

    def __init__(self, reader: ZSEReader, name: str) -> None:
        self._entry = reader.entry(name)
        self.parts = stored_parts(reader, name)

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return float32 [tokens, columns] of int64 [tokens]."""
        rows = {role: part[token_ids] for role, part in self.parts.items()}
        if self._entry.scheme.is_plain:
            return rows["data"].float()
        shape = (token_ids.shape[0], self._entry.shape[1])
        return dequantize(replace(self._entry, shape=shape), rows)


class BoundWeights:
    """The weights of a model by name, in the form that the operations use.

    Args:
        rows_of: Returns float32 rows of the embedding's table, [tokens, hidden] of int64 [tokens].
    """

    def __init__(self, rows_of: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._linears: dict[str, Linear] = {}
        self._stacks: dict[str, Sequence[Linear]] = {}
        """A matrix an expert."""
        self._vectors: dict[str, torch.Tensor] = {}
        """What is no matrix to multiply with."""
        self._embedding = rows_of
        self._layer_table: Callable[[torch.Tensor], torch.Tensor] | None = None
        self._positions: torch.Tensor | None = None
        self._first_position = 0
        self._token_types: torch.Tensor | None = None
        self._embed_norm: BoundNorm | None = None
        self._join: BoundJoin | None = None

    def _bind_embedding(self, spec: EmbeddingSpec) -> None:
        """Take what is added to the table's rows from the vectors, which are there by now."""
        self._positions = self._vector(spec.positions)
        self._first_position = spec.first_position
        self._token_types = self._vector(spec.token_types)
        self._embed_norm = None if spec.norm is None else self.norm(spec.norm)
        if spec.join is not None:
            linear = self.linear(spec.join.linear)
            assert isinstance(linear, BoundLinear)
            norms = self.norm(spec.join.embedding_norm), self.norm(spec.join.state_norm)
            self._join = BoundJoin(*norms, linear)

    def linear(self, spec: LinearSpec) -> BoundLinear | StackedLinear:
        bias = self._vector(spec.bias)
        if (stacked := self._stacks.get(spec.weight.name)) is not None:
            biases = None if bias is None else bias.view(len(stacked), -1)
            return StackedLinear(stacked, biases, spec.weight.name)
        return BoundLinear(self._linears[spec.weight.name], bias, spec.weight.name)

    def norm(self, spec: NormSpec) -> BoundNorm:
        weight = self._vectors[spec.weight.name]
        return BoundNorm(weight, spec.epsilon, spec.kind == "layer", self._vector(spec.bias))

    def vector(self, spec: WeightSpec) -> torch.Tensor:
        return self._vectors[spec.name]

    matrix = vector

    def linear_of(self, spec: WeightSpec) -> Linear:
        return self._linears[spec.name]

    def head(self, spec: ModelSpec) -> Linear | None:
        return None if spec.head.weight is None else self.linear_of(spec.head.weight)

    def embedding(self, step: Step, scale: float) -> torch.Tensor:
        """Return float32 [tokens, hidden] of a step's tokens, at their positions."""
        rows = self._embedding(step.token_ids)
        if scale != 1.0:
            rows = rows.mul_(scale)
        if self._positions is not None:
            rows = rows.add_(self._positions[step.positions + self._first_position])
        if self._token_types is not None:
            rows = rows.add_(self._token_types[step.types()])
        if self._embed_norm is not None:
            rows = self._embed_norm(rows)
        return rows if self._join is None else self._join(rows, step)

    def layer_inputs(self, spec: ModelSpec) -> LayerInputsWeights | None:
        """Return per-layer embeddings, whose table is a ``StoredRows``."""
        inputs = spec.embedding.layer_inputs
        return None if inputs is None else bind_layer_inputs(inputs, self._layer_table, self)

    def _vector(self, spec: WeightSpec | None) -> torch.Tensor | None:
        return None if spec is None else self._vectors[spec.name]


class Weights(BoundWeights):
    """Every tensor of one file, in the form that the operations use.

    Matrices are packed group by group; the mapped pages of a packed group are dropped at once, so
    memory never holds two copies of more than one group.
    """

    def __init__(self, reader: ZSEReader, spec: ModelSpec) -> None:
        table = StoredRows(reader, spec.embedding.weight.name)
        super().__init__(table)
        self._members = {
            weight.name: weight.members for weight in spec.weights() if weight.kind == "experts"
        }
        self._kept_whole = {
            weight.name
            for weight in spec.weights()
            if weight.kind in ("state", "position", "latent")
        }
        self._upcasts = reader.size_bytes <= UPCAST_LIMIT_BYTES
        self.kept_bytes = 0
        """Bytes of this process's own memory that weights take."""
        self._gathered = spec.gathered
        names = {weight.name for weight in spec.weights()}
        for group in reader.header.groups:
            entries = [entry for entry in reader.tensors_of(group.name) if entry.name in names]
            for entry in entries:
                self._load(reader, entry)
            if entries:
                reader.release(group.name)
        self._tables = [table]
        if (inputs := spec.embedding.layer_inputs) is not None:
            self._layer_table = StoredRows(reader, inputs.table.name)
            self._tables.append(self._layer_table)
        self._bind_embedding(spec.embedding)

    def clear(self) -> None:
        """Drop every tensor; views of the mapping must be gone before the file is closed."""
        self._linears.clear()
        self._stacks.clear()
        self._vectors.clear()
        for table in self._tables:
            table.parts.clear()
        self._positions = self._token_types = self._embed_norm = None

    def _load(self, reader: ZSEReader, entry: TensorEntry) -> None:
        if entry.name in self._gathered:
            return
        parts = stored_parts(reader, entry.name)
        packs = entry.shape[-1] < MAX_COLUMNS and int8_is_exact()
        form = form_of(entry, upcasts=self._upcasts, packs_int8=packs)
        self.kept_bytes += kept_bytes(entry, form)
        if form == "vector" or entry.name in self._kept_whole:
            self._vectors[entry.name] = dequantize(entry, parts).clone()
        elif (members := self._members.get(entry.name)) is not None:
            cut = _members_of(entry, parts, members)
            self._stacks[entry.name] = [make_linear(*member, form) for member in cut]
        else:
            self._linears[entry.name] = make_linear(entry, parts, form)


def _members_of(
    entry: TensorEntry, parts: dict[str, torch.Tensor], members: int
) -> Iterator[tuple[TensorEntry, dict[str, torch.Tensor]]]:
    """Cut a stack of matrices apart; no part is copied."""
    rows, columns = entry.shape[0] // members, entry.shape[1]
    member = replace(entry, shape=(rows, columns))
    for first in range(0, entry.shape[0], rows):
        yield member, {role: part[first : first + rows] for role, part in parts.items()}


def make_linear(entry: TensorEntry, parts: dict[str, torch.Tensor], form: Form) -> Linear:
    """Return the multiplying form of a stored matrix [N, K]; ``parts`` are its parts by role."""
    if form == "dense":
        return DenseLinear(parts["data"].float().clone())
    if form == "int8":
        return Int8Linear(parts["qweight"], parts["scale"])
    if form == "int4":
        return Int4Linear(
            parts["qweight"], parts["scale_zero"], entry.group_size, code_bits(entry.scheme)
        )
    if entry.scheme.is_plain:
        return plain_tiles(parts["data"])
    if entry.scheme is Scheme.INT8:
        return int8_tiles(parts["qweight"], parts["scale"])
    if entry.scheme is Scheme.NF4:
        return table_tiles(parts["qweight"], parts["absmax"], NF4_CODES, torch.Tensor.float)
    if entry.scheme is Scheme.NL4:
        return table_tiles(parts["qweight"], parts["signed_scale"], NL4_CODES, scale_of_minifloat)
    return table_tiles(parts["qweight"], parts["exponent"], MXFP4_CODES, scale_of_exponent)
