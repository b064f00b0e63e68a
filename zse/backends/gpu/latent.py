"""Latent attention on a GPU: what its kernels are told, and the memory that a step takes for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.backends.gpu.forward import Deferred, WideQueries
from zse.backends.gpu.products import Products
from zse.errors import UnsupportedModelError
from zse.kernels.latent.launch import (
    LatentRows,
    check_latent,
    decode_partials_bytes,
    decode_splits,
    latent_decode,
    latent_prefill,
    latent_store,
    latent_values,
    query_norm,
    wide_queries,
)
from zse.kernels.latent.shape import LatentShape
from zse.kernels.latent.variants import MANY_ROWS
from zse.kernels.layout import ACTIVATION_GROUP

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from zse.backends.gpu.forward import Projected, Step
    from zse.backends.handles import LayerWeights
    from zse.device.facts import DeviceFacts
    from zse.kernels.layout import Activation, Partials
    from zse.models.layer_spec import AttentionSpec


def latent_shape(attention: AttentionSpec) -> LatentShape:
    latent, rope = attention.latent, attention.rope
    assert latent is not None
    assert rope is not None
    return LatentShape(
        num_heads=attention.num_heads,
        rank=latent.rank,
        turning=rope.rotary_dim,
        key_dim=latent.key_dim,
        value_dim=latent.value_dim,
        query_rank=0 if latent.query is None else latent.query.weight.shape[1],
    )


def latent_obstacles(attention: AttentionSpec) -> Iterator[str]:
    """Return what of a latent attention the kernels do not compute."""
    try:
        check_latent(latent_shape(attention))
    except UnsupportedModelError as error:
        yield str(error)
    extras = (attention.window, attention.softcap, attention.sinks)
    if extras != (None, None, None) or attention.is_gated:
        yield "a latent beside a window, a soft cap, sinks or gates"


class LatentPlans:
    """How latent attention is computed in each shape of a step, and the memory that this takes."""

    def __init__(
        self,
        attentions: Mapping[int, AttentionSpec],
        facts: DeviceFacts,
        max_context: int,
        *,
        any_rows: int,
    ) -> None:
        self.shapes = {index: latent_shape(each) for index, each in attentions.items()}
        """The numbers of each layer that has latent attention, by number."""
        latents = [each.latent for each in attentions.values() if each.latent is not None]
        self.expansions = frozenset(latent.expansion.name for latent in latents)
        """Names of the matrices of heads, which no other product reads."""
        self._distinct = tuple(dict.fromkeys(self.shapes.values()))
        self._facts = facts
        self._max_context = max_context
        self._any_rows = any_rows
        """Decode rows that all steps are planned for; 0: each for its own."""

    @property
    def tile_rows(self) -> int:
        """Rows that programs multiply together; 0: by how many there are."""
        return MANY_ROWS if self._any_rows else 0

    @property
    def summed_columns(self) -> int:
        """Columns of the widest product in float32."""
        widths = ((each.joined_columns, each.query_columns) for each in self._distinct)
        return max(map(max, widths))

    def queries_bytes(self, rows: int) -> int:
        """Return the bytes of queries that are as wide as what is kept."""
        return rows * max(each.wide_columns for each in self._distinct) * 2

    def splits(self, rows: int, shape: LatentShape) -> int:
        """Return along how many programs a sequence is split in a step of so many decode rows."""
        return decode_splits(self._any_rows or rows, shape, self._facts, self._max_context)

    def partials_bytes(self, rows: int) -> int:
        """Return the bytes of what splits leave in a step of so many decode rows."""
        each = self._distinct
        return max(decode_partials_bytes(rows, one, self.splits(rows, one)) for one in each)


class LatentOperations(Products):
    """``rope_store`` and ``attention`` of layers that keep a latent."""

    @property
    def _plans(self) -> LatentPlans:
        """Those of steps as they are made now."""
        assert self._model.plans.latents is not None
        return self._model.plans.latents

    def store(
        self, step: Step, joined: Projected, attention: AttentionSpec, weights: LayerWeights,
        layer: int,
    ) -> WideQueries:  # fmt: skip
        """Keep each token's latent and its key that turns; leave queries as wide as these."""
        shape, parts = self._plans.shapes[layer], weights.latent
        assert parts is not None
        groups = list(self._rows(step, attention))
        for first_row, rows in groups:
            latent_store(
                step.launcher,
                shape,
                joined.sums.part(first_row, rows.count),
                rows,
                step.cache.layers[layer],
                self._model.tables(step, layer),
                norm_address=parts.norm.weight,
                epsilon=parts.norm.epsilon,
                bias_address=joined.bias,
            )
        own, bias = joined.sums, joined.bias
        if parts.query is not None:
            own, bias = self._from_latents(step, shape, joined, weights), parts.query.bias
        for first_row, rows in groups:
            wide_queries(
                step.launcher,
                shape,
                own.part(first_row, rows.count),
                rows,
                parts.expansion,
                _line(step.scratch.query, shape, first_row),
                bias_address=bias,
                tile_rows=self._plans.tile_rows,
            )
        return WideQueries(address=step.scratch.query)

    def attention(
        self,
        step: Step,
        queries: WideQueries,
        attention: AttentionSpec,
        weights: LayerWeights,
        layer: int,
    ) -> Deferred:
        """Return attention, to be computed when its reader is known."""
        shape, parts = self._plans.shapes[layer], weights.latent
        assert parts is not None
        cache, tables = step.cache.layers[layer], self._model.tables(step, layer)
        groups = list(self._rows(step, attention))
        decode_rows = step.shape.decode_rows

        def make(output: Activation) -> None:
            if decode_rows:
                latent_decode(
                    step.launcher,
                    shape,
                    queries.address,
                    groups[0][1],
                    cache,
                    tables,
                    scale=attention.scale,
                    splits=self._plans.splits(decode_rows, shape),
                    partials_address=step.scratch.attention,
                )
            if step.shape.prefill_rows:
                latent_prefill(
                    step.launcher,
                    shape,
                    _line(queries.address, shape, decode_rows),
                    cache,
                    tables,
                    self._model.tiles(step),
                    scale=attention.scale,
                )
            latent_values(
                step.launcher,
                shape,
                queries.address,
                parts.expansion,
                output,
                tile_rows=self._plans.tile_rows,
            )

        return Deferred(
            columns=shape.value_columns,
            can_quantize=not step.shape.prefill_rows and shape.value_dim % ACTIVATION_GROUP == 0,
            write=make,
        )

    def _from_latents(
        self, step: Step, shape: LatentShape, joined: Projected, weights: LayerWeights
    ) -> Partials:
        """Return summands of queries that are made of their own latent, where ``joined`` was."""
        parts = weights.latent
        assert parts is not None
        assert parts.query is not None
        assert parts.query_norm is not None
        inputs = self._form(step, parts.query.weight, step.shape.rows, can_quantize=True)
        query_norm(
            step.launcher,
            shape,
            joined.sums,
            inputs,
            norm_address=parts.query_norm.weight,
            epsilon=parts.query_norm.epsilon,
            bias_address=joined.bias,
        )
        return self._product(step, parts.query, inputs)

    def _rows(self, step: Step, attention: AttentionSpec) -> Iterator[tuple[int, LatentRows]]:
        """Yield rows of decode and rows of prompts, each with the first one's number."""
        assert attention.rope is not None
        angles, inputs, shape = self._model.angles(attention.rope), step.inputs, step.shape
        if shape.decode_rows:
            yield (
                0,
                LatentRows(
                    count=shape.decode_rows, cosines_sines=angles, positions=inputs.positions
                ),
            )
        if shape.prefill_rows:
            yield (
                shape.decode_rows,
                LatentRows(
                    count=shape.prefill_rows,
                    cosines_sines=angles,
                    positions=inputs.prefill_positions,
                    table_rows=inputs.prefill_tables,
                ),
            )


def _line(queries_address: int, shape: LatentShape, row: int) -> int:
    """Return where the wide queries of a row lie."""
    return queries_address + row * shape.wide_columns * 2
