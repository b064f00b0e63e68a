"""The share of one rank among several that compute one model together: its spec, and its cuts.

Heads, the widths of MLPs and of every expert, and the rows of the head are divided; what is left
whole (norms, routers, the embedding) every rank has. A rank computes what its spec says and knows
no more: what its layers add to the stream are partial sums, which the ranks add up. Experts are
divided in width, not dealt out, so no rank waits for the one that has a token's experts. Biases of
partial sums are added by rank 0. Where there are fewer KV heads than ranks, several ranks have the
same one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.backends.ranks import RankPart
from zse.errors import UsageError
from zse.models.layer_spec import AttentionSpec
from zse.models.spec import HeadRows
from zse.records import record
from zse.stream.shards import Cut, unit_of
from zse.units import align_up

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zse.backends.ranks import RankLink, Share
    from zse.format.spec import ZSEHeader
    from zse.models.layer_spec import (
        ExpertsSpec,
        LatentSpec,
        LayerSpec,
        LinearAttentionSpec,
        LinearSpec,
        MLPSpec,
    )
    from zse.models.spec import HeadSpec, ModelSpec
    from zse.models.weights import WeightSpec
    from zse.stream.shards import Packed

HEAD_UNIT = 32
"""Rows of the vocabulary that stay together."""
_WIDTH_UNITS = (128, 64, 32, 16, 8)
"""Columns of an MLP that stay together; the first is a group of int8 activations, whose codes are
then those of the undivided model."""


@record
class ModelShare:
    """What one rank computes, and what it has of the file."""

    spec: ModelSpec
    cuts: dict[str, Cut]


def part_of(spec: ModelSpec, header: ZSEHeader, link: RankLink) -> RankPart:
    """Return what a rank of those that are linked computes; fails as ``share_of``."""
    share = share_of(spec, header.tensors, link.share)
    return RankPart(link=link, spec=share.spec, cuts=share.cuts)


def share_of(spec: ModelSpec, tensors: Iterable[Packed], share: Share) -> ModelShare:
    """Return the share of a rank of a model that is stored as these tensors.

    Raises:
        UsageError: A size of the model cannot be divided among so many ranks, or it has what only
            one device computes; the message names it.
    """
    _check_whole(spec)
    divider = _Divider(tensors, share)
    layers = tuple(divider.layer(layer) for layer in spec.layers)
    head = divider.head(spec)
    return ModelShare(spec=replace(spec, layers=layers, head=head, guesses=()), cuts=divider.cuts)


def _check_whole(spec: ModelSpec) -> None:
    """Refuse what several ranks do not compute."""
    if spec.is_encoder:
        raise _refused("an encoder, which reads whole texts")
    if spec.embedding.layer_inputs is not None:
        raise _refused("embeddings of its own for each layer")


def _refused(what: str) -> UsageError:
    return UsageError(
        f"this model has {what}: it is not divided among devices",
        hint="Leave --tensor-parallel out.",
    )


class _Divider:
    """Makes the specs of one rank, and notes what is cut."""

    def __init__(self, tensors: Iterable[Packed], share: Share) -> None:
        self._units = {tensor.name: unit_of(tensor) for tensor in tensors}
        self._rank, self._ranks = share.rank, share.ranks
        self.cuts: dict[str, Cut] = {}

    # --- parts of the model ----------------------------------------------------------------------

    def layer(self, layer: LayerSpec) -> LayerSpec:
        where, mixer = f"layer {layer.index}", layer.mixer
        divided: AttentionSpec | LinearAttentionSpec
        if not isinstance(mixer, AttentionSpec):
            divided = self._delta(where, mixer)
        elif mixer.latent is not None:
            divided = self._latent(where, mixer, mixer.latent)
        else:
            divided = self._attention(where, mixer)
        return replace(
            layer,
            mixer=divided,
            mlp=None if layer.mlp is None else self._mlp(where, layer.mlp),
            experts=None if layer.experts is None else self._experts(where, layer.experts),
        )

    def head(self, spec: ModelSpec) -> HeadSpec:
        """Return the head of this rank's rows; tied, they are a part of the whole embedding."""
        head, weight, vocab = spec.head, spec.head.weight, spec.vocab_size
        assert weight is not None
        each = align_up(-(-vocab // self._ranks), HEAD_UNIT)
        first = min(self._rank * each, vocab)
        count = min(each, vocab - first)
        if vocab <= (self._ranks - 1) * each:
            raise self._indivisible("the head", f"{vocab} tokens in units of {HEAD_UNIT}")
        if not spec.is_tied:
            weight = self._rows(weight, [(first, count)])
        return replace(head, weight=weight, rows=HeadRows(first=first, count=count, each=each))

    def _attention(self, where: str, mixer: AttentionSpec) -> AttentionSpec:
        heads, kv, dim = mixer.num_heads, mixer.num_kv_heads, mixer.head_dim
        if mixer.q_norm is not None and mixer.q_norm.weight.shape[0] != dim:
            raise _refused(f"a norm over all heads of {where}")
        own = self._even(where, "heads", heads)
        if kv % self._ranks and self._ranks % kv:
            raise self._indivisible(where, f"{kv} KV heads")
        own_kv = max(1, kv // self._ranks)
        first_kv = self._rank * kv // self._ranks
        rows = [(heads, own, self._rank * own)] * (1 + mixer.is_gated)
        if mixer.kv_of_layer is None:
            rows += [(kv, own_kv, first_kv)] * (2 - mixer.values_are_keys)
        sinks = mixer.sinks
        return replace(
            mixer,
            num_heads=own,
            num_kv_heads=own_kv,
            qkv=self._linear_rows(mixer.qkv, _joined(rows, dim)),
            sinks=None if sinks is None else self._rows(sinks, [(self._rank * own, own)]),
            output=self._linear_columns(where, mixer.output, own * dim),
        )

    def _latent(self, where: str, mixer: AttentionSpec, latent: LatentSpec) -> AttentionSpec:
        """Divide the heads; every rank keeps the whole latent, which is one for all of them."""
        heads = mixer.num_heads
        own = self._even(where, "heads", heads)
        turning = mixer.head_dim - latent.rank
        query_rows = latent.key_dim + turning
        mine = [(heads, own, self._rank * own)]
        qkv, query = mixer.qkv, latent.query
        if query is not None:
            query = self._linear_rows(query, _joined(mine, query_rows))
        else:
            pieces = _joined(mine, query_rows)
            pieces.append((heads * query_rows, latent.rank + turning))
            qkv = self._linear_rows(qkv, pieces)
        each = latent.key_dim + latent.value_dim
        expansion = self._rows(latent.expansion, _joined(mine, each))
        return replace(
            mixer,
            num_heads=own,
            qkv=qkv,
            latent=replace(latent, query=query, expansion=expansion),
            output=self._linear_columns(where, mixer.output, own * latent.value_dim),
        )

    def _delta(self, where: str, mixer: LinearAttentionSpec) -> LinearAttentionSpec:
        keys = self._even(where, "key heads", mixer.num_key_heads)
        values = self._even(where, "value heads", mixer.num_value_heads)
        key = (mixer.num_key_heads * mixer.key_dim, keys * mixer.key_dim)
        value = (mixer.num_value_heads * mixer.value_dim, values * mixer.value_dim)
        steps = (mixer.num_value_heads, values)

        def pieces(*sizes: tuple[int, int]) -> list[tuple[int, int]]:
            return _joined([(whole, own, self._rank * own) for whole, own in sizes], 1)

        return replace(
            mixer,
            num_key_heads=keys,
            num_value_heads=values,
            inputs=self._linear_rows(mixer.inputs, pieces(key, key, value, value)),
            gates=self._linear_rows(mixer.gates, pieces(steps, steps)),
            convolution=self._rows(mixer.convolution, pieces(key, key, value)),
            decay=self._rows(mixer.decay, pieces(steps)),
            step_bias=self._rows(mixer.step_bias, pieces(steps)),
            output=self._linear_columns(where, mixer.output, value[1]),
        )

    def _mlp(self, where: str, mlp: MLPSpec, members: int = 1) -> MLPSpec:
        """Divide an MLP, or each of a stack of them."""
        width = mlp.down.weight.shape[1]
        first, count = self._width(where, mlp)
        each = [(width, count, first)] * (1 + mlp.is_gated)
        return replace(
            mlp,
            up=self._linear_rows(mlp.up, _joined(each * members, 1)),
            down=self._linear_columns(where, mlp.down, count, first),
        )

    def _experts(self, where: str, experts: ExpertsSpec) -> ExpertsSpec:
        shared = experts.shared
        return replace(
            experts,
            expert=self._mlp(where, experts.expert, experts.num_experts),
            shared=None if shared is None else self._mlp(where, shared),
        )

    # --- numbers ---------------------------------------------------------------------------------

    def _even(self, where: str, what: str, count: int) -> int:
        if count % self._ranks:
            raise self._indivisible(where, f"{count} {what}")
        return count // self._ranks

    def _width(self, where: str, mlp: MLPSpec) -> tuple[int, int]:
        """Return the first column of an MLP that this rank has, and how many it has.

        Shares differ by one unit where their number does not divide the width.
        """
        weight = mlp.down.weight
        width, least = weight.shape[1], self._units.get(weight.name, 1)
        for unit in _WIDTH_UNITS:
            if unit % least == 0 and width % unit == 0 and width // unit >= self._ranks:
                each, more = divmod(width // unit, self._ranks)
                before = self._rank * each + min(self._rank, more)
                return before * unit, (each + (self._rank < more)) * unit
        raise self._indivisible(
            where, f"an MLP of {width} columns in groups of {max(least, _WIDTH_UNITS[-1])}"
        )

    def _indivisible(self, where: str, what: str) -> UsageError:
        return UsageError(
            f"{where} has {what}, which cannot be divided among {self._ranks} ranks",
            hint="Use another --tensor-parallel, or convert the model with a smaller --group-size.",
        )

    # --- weights ---------------------------------------------------------------------------------

    def _linear_rows(self, linear: LinearSpec, pieces: list[tuple[int, int]]) -> LinearSpec:
        bias = linear.bias
        return replace(
            linear,
            weight=self._rows(linear.weight, pieces),
            bias=None if bias is None else self._rows(bias, pieces),
        )

    def _linear_columns(
        self, where: str, linear: LinearSpec, count: int, first: int | None = None
    ) -> LinearSpec:
        """Return a matrix of which this rank has columns: its result is a part of a sum."""
        weight = linear.weight
        start = self._rank * count if first is None else first
        unit = self._units.get(weight.name, 1)
        if count % unit or start % unit:
            raise self._indivisible(
                where, f"a matrix of {weight.shape[1]} columns in groups of {unit}"
            )
        self.cuts[weight.name] = Cut(axis="columns", pieces=((start, count),))
        cut = replace(weight, shape=(weight.shape[0], count))
        return replace(linear, weight=cut, bias=linear.bias if self._rank == 0 else None)

    def _rows(self, weight: WeightSpec, pieces: Iterable[tuple[int, int]]) -> WeightSpec:
        cut = Cut(axis="rows", pieces=tuple(pieces))
        self.cuts[weight.name] = cut
        return replace(weight, shape=(cut.length, *weight.shape[1:]))


def _joined(sizes: Iterable[tuple[int, int, int]], unit: int) -> list[tuple[int, int]]:
    """Return pieces of joined rows: of each (all, own, first) units, one behind the other."""
    found, start = [], 0
    for whole, own, first in sizes:
        found.append(((start + first) * unit, own * unit))
        start += whole
    return found
