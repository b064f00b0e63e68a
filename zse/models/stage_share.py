"""The part of a model's file that one pipeline stage loads: its layers, and the ends it needs.

A table of an end that another stage has is kept as its first rows, which nobody reads: so whoever
binds the ends of a model needs no second way.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zse.models.share import ModelShare
from zse.models.stage import layers_of
from zse.stream.shards import Cut

if TYPE_CHECKING:
    from zse.models.spec import ModelSpec
    from zse.models.weights import WeightSpec

UNREAD_ROWS = 32
"""Of a table that is not needed: as many as stay together in every scheme."""


def stage_share(share: ModelShare, first_layer: int, end_layer: int) -> ModelShare:
    """Return the part of a model's share that computes some of its layers.

    Args:
        share: Of the whole model, or of one rank's part of each layer.

    Raises:
        UsageError: The model has no such layers.
        UnsupportedModelError: They need more than the stream.
    """
    spec = layers_of(share.spec, first_layer, end_layer)
    place, table, matrix = spec.place, spec.embedding.weight, spec.head.weight
    cuts = dict(share.cuts)
    has_table = place.is_first or (place.is_last and spec.is_tied)
    if not has_table:
        table = _unread(table, cuts)
    if spec.is_tied:
        matrix = table
    elif matrix is not None and not place.is_last:
        matrix = _unread(matrix, cuts)
    own = replace(
        spec,
        embedding=replace(spec.embedding, weight=table),
        head=replace(spec.head, weight=matrix),
        guesses=(),
    )
    kept = {weight.name for weight in own.weights()}
    for weight in share.spec.weights():
        if weight.name not in kept:
            cuts[weight.name] = Cut(axis="rows", pieces=())
    return ModelShare(spec=own, cuts=cuts)


def whole_share(spec: ModelSpec) -> ModelShare:
    """Return all of a model as the share of a rank that is alone."""
    return ModelShare(spec=replace(spec, guesses=()), cuts={})


def _unread(table: WeightSpec, cuts: dict[str, Cut]) -> WeightSpec:
    rows = min(UNREAD_ROWS, table.shape[0])
    cuts[table.name] = Cut(axis="rows", pieces=((0, rows),))
    return replace(table, shape=(rows, *table.shape[1:]))
