"""What the operations know of one model: weights, tables and numbers."""

from __future__ import annotations

import logging
import struct
from array import array
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from zse.backends.binding import bind_classifier, bind_layer, bind_layer_inputs
from zse.backends.gpu.closing import norms_behind
from zse.backends.gpu.given_states import bind_join
from zse.backends.gpu.graphs import bucket_of
from zse.backends.gpu.heads import attentions_of, norms_all_heads, ropes_of
from zse.backends.gpu.kept_weights import KeptWeights
from zse.backends.gpu.kinds import adapter_pool_of, mixtures_of
from zse.backends.gpu.kv_pool import BLOCK_SIZE
from zse.backends.gpu.plans import StepPlans
from zse.backends.gpu.row_maxima import RowMaxima
from zse.backends.gpu.step import StepLimits
from zse.backends.gpu.turning import Turning
from zse.backends.handles import EndWeights
from zse.backends.single import can_be_single
from zse.backends.types import MAX_DRAFTS
from zse.kernels.attention.context import Context
from zse.kernels.attention.launch import (
    AttentionRules,
    DecodeWorkspace,
    PrefillTiles,
    attention_output_can_be_quantized,
)
from zse.kernels.attention.variants import PREFILL_QUERIES
from zse.kernels.attention.wide import WideWorkspace
from zse.kernels.layout import BlockTables, HeadInputs
from zse.kernels.linear.launch_8bit import turned_bytes
from zse.kernels.rope_store.launch import rope_table
from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from zse.backends.gpu.collectives import Collectives
    from zse.backends.gpu.flow import StreamFlow
    from zse.backends.gpu.forward import Query, Step
    from zse.backends.gpu.heads import AttentionKind
    from zse.backends.gpu.host_flow import HostFlow
    from zse.backends.gpu.inputs import InputShape
    from zse.backends.gpu.key_factors import DeviceFactors
    from zse.backends.gpu.kv_pool import KVPool
    from zse.backends.gpu.passes import Passes
    from zse.backends.gpu.weights import BoundNorm, DeviceWeights
    from zse.device.facts import DeviceFacts
    from zse.device.gpu import Block, Gpu, Stream
    from zse.kernels.launcher import Launcher
    from zse.kernels.linear.weight import LinearWeight
    from zse.kernels.tuning import Tuning
    from zse.models.layer_spec import AttentionSpec
    from zse.models.rope import RoPESpec
    from zse.models.spec import ModelSpec
    from zse.options import LoadOptions
    from zse.stream.placement import Placement

_LOG = logging.getLogger("zse.backends.gpu")


@record
class LayerAttention:
    """What the kernels of one layer's attention are told."""

    kind: AttentionKind
    rules: AttentionRules
    cosines_sines: int
    """Address of the table of angles; 0 where positions are not encoded."""
    rotary_dim: int
    """Columns of a head that turn."""
    value_epsilon: float
    """Of the norm of values; 0 for none."""
    key_factors: int
    """Address of what keys are divided by; 0 where they are kept as they are."""
    norms_all_heads: bool
    """Whether all queries have one norm together, and so have all keys."""
    can_quantize: bool
    """Whether a decode step can make its output in int8."""


class DeviceModel:
    """A model on a device, whose choice of kernels may depend on ``device`` and on ``tuning``."""

    def __init__(
        self,
        gpu: Gpu,
        device: DeviceFacts,
        weights: DeviceWeights,
        spec: ModelSpec,
        options: LoadOptions,
        tuning: Tuning,
        key_factors: DeviceFactors,
        passes: Passes,
        collectives: Collectives | None = None,
        flow: StreamFlow | HostFlow | None = None,
    ) -> None:
        self.weights = weights
        self.passes = passes
        self.spec = spec
        self.plans = self._usual_plans = StepPlans(spec, weights.linears, device, options, tuning)
        self._gpu = gpu
        self.options = options
        self.collectives = collectives
        """What this rank does together with the others; None where it is alone."""
        self.flow = flow
        """The stream's way from stage to stage; None where all layers are here."""
        self._bound_layers = [bind_layer(layer, weights) for layer in spec.layers]
        self.layers = passes.scopes(self._bound_layers)
        norm = spec.head.norm
        inputs = spec.embedding.layer_inputs
        self.ends = EndWeights(
            embedding=weights.embedding(spec.embedding),
            final_norm=None if norm is None else weights.norm(norm),
            head=weights.head(spec),
            classifier=bind_classifier(spec.head.classifier, weights),
            layer_inputs=None
            if inputs is None
            else bind_layer_inputs(inputs, weights.table(inputs.table), weights),
        )
        self.join = None if spec.embedding.join is None else bind_join(spec.embedding.join, weights)
        """How embeddings become the stream where tokens come with states."""
        self._key_factors = key_factors
        self._rotary = {
            rope: gpu.allocate(self.plans.rotary_table_bytes(rope)) for rope in ropes_of(spec)
        }
        self.attentions = {
            index: self._attention(index, attention)
            for index, attention in attentions_of(spec).items()
            if attention.latent is None
        }
        self.mixtures = mixtures_of(spec, weights.linears, weights.vectors)
        self._counters = gpu.allocate(self.plans.counters_bytes)
        self._row_numbers = gpu.allocate(max(4, self.plans.row_numbers_bytes))
        self.stayed_matrices = [
            matrix for matrix in self.plans.kept_matrices if passes.stays(matrix)
        ]
        """Those read turned that are always where they are said to be."""
        self.row_maxima = RowMaxima(gpu, self.stayed_matrices)
        self.kept_weights = KeptWeights(gpu, (), 0)
        self._has_arrived = False
        self._holds_turned = False
        """Whether rows are computed alone by kept weights, whose bits would be others without."""
        self.adapters = adapter_pool_of(gpu, spec, options.lora)

    @property
    def turned_matrices_bytes(self) -> int:
        """Bytes of all matrices that may be kept turned."""
        return sum(turned_bytes(each.rows, each.columns) for each in self.stayed_matrices)

    @property
    def computes_alone(self) -> bool:
        """Whether the bits of single rows can be kept from depending on others in their step.

        Ranks and stages take every step together.
        """
        return self.collectives is None and self.flow is None and can_be_single(self.spec)

    @contextmanager
    def computing_alone(self) -> Iterator[None]:
        """Choose kernels so that a row's bits depend on nothing else, as long as this is open."""
        self.plans = self._usual_plans.alone
        try:
            yield
        finally:
            self.plans = self._usual_plans

    def keep_turned(self, limit_bytes: int) -> None:
        """Keep weights turned for prompts, once one comes, in at most so many bytes.

        Where the bits of all rows may depend on nothing else it is decided here, once, whether they
        are multiplied with turned weights: with all of them, or with none.
        """
        self.kept_weights = KeptWeights(self._gpu, self.stayed_matrices, limit_bytes)
        self._has_arrived = False
        plans = self.plans
        if plans.deterministic:
            plans.keep_turned(self._keeps_all(plans))
            if not plans.turns_all:
                self.kept_weights = KeptWeights(self._gpu, (), 0)

    def hold_turned(self) -> None:
        """Take the memory of kept weights now, where all steps read them, and say what they read.

        Raises:
            DeviceError: It is gone.
        """
        self._holds_turned = self.plans.turns_all
        if self._holds_turned:
            self.kept_weights.hold()
        if self.plans.deterministic:
            _tell_form(self.plans)

    def begin_alone(self) -> None:
        """Decide, before the first row is computed alone beside others, what such rows read.

        Kept weights are not given back from here on if it is these: as on a server that computes
        all rows so.
        """
        alone = self._usual_plans.alone
        if self._keeps_all(alone):
            self.prepare_kept()
            alone.keep_turned(self._keeps_all(alone))
        self._holds_turned |= alone.turns_all
        _tell_form(alone)

    def _keeps_all(self, plans: StepPlans) -> bool:
        """Whether all matrices are kept that rows computed alone would be multiplied with."""
        is_whole = self.collectives is None and self.flow is None
        return is_whole and self._keeps(plans.kept_matrices)

    def _keeps(self, matrices: Sequence[LinearWeight]) -> bool:
        return bool(matrices) and self.kept_weights.keeps(matrices)

    def note_arrived(self) -> None:
        """Let steps of fewer rows read kept weights from when all weights are there."""
        if not self._has_arrived and not self.passes.is_arriving:
            self._has_arrived = True
            self._note_kept()

    def prepare_turned(self, launcher: Launcher) -> None:
        """Have ready what products of turned rows read, the first time.

        Of weights that are on their way it is made layer by layer, as they come.
        """
        self.prepare_kept()
        self.passes.turn(Turning(self.row_maxima, self.kept_weights), launcher)

    def prepare_kept(self) -> None:
        """Take the memory of kept weights, the first time."""
        if self.kept_weights.take():
            self._note_kept()

    def give_up_turned(self) -> bool:
        """Give back what is kept of turned weights, for good; whether there was some.

        They stay where rows are computed alone by them, which would have other bits without.
        """
        if self._holds_turned:
            return False
        given = self.kept_weights.give_up()
        self._note_kept()
        return given

    def _note_kept(self) -> None:
        plans = self._usual_plans
        if not plans.deterministic:  # else it was decided when the model was opened
            plans.keep_turned(self._keeps(plans.turned_matrices))

    def norms_behind(self, shape: InputShape) -> Mapping[str, BoundNorm]:
        """Return the norms that products of a captured step begin, by the name of the matrix.

        All weights are there when such a step is launched, those of the next layer as well.
        """
        if self.collectives is not None or self.flow is not None or not self.passes.looks_ahead:
            return {}
        return norms_behind(self.spec.layers, self._bound_layers, self.plans, shape)

    @cached_property
    def unlike_layers(self) -> frozenset[int]:
        """Return layers of which each launches kernels that the others may not launch.

        The first two differ in what the stream has before them.
        """
        found: dict[object, int] = {}
        linears = self.weights.linears
        weights = {group.name: group.weights for group in self.spec.groups()}
        for place, layer in enumerate(self.spec.layers):
            stored = [linears[one.name] for one in weights[layer.name] if one.name in linears]
            forms = tuple((one.scheme, one.group_size, one.rows, one.columns) for one in stored)
            attention = self.plans.attention_kinds.get(layer.index)
            found.setdefault((type(layer.mixer), attention, forms), place)
        return frozenset({0, 1, *found.values()})

    def _attention(self, index: int, attention: AttentionSpec) -> LayerAttention:
        kind, rope, sinks = self.plans.attention_kinds[index], attention.rope, attention.sinks
        return LayerAttention(
            kind=kind,
            rules=AttentionRules(
                window=kind.window,
                softcap=attention.softcap or 0.0,
                scale=attention.scale,
                sinks=self.weights.vector(sinks) if sinks is not None else 0,
                whole=not attention.is_causal,
            ),
            cosines_sines=self.angles(rope) if rope is not None else 0,
            rotary_dim=rope.rotary_dim if rope is not None else 0,
            value_epsilon=attention.value_norm_epsilon or 0.0,
            key_factors=self._key_factors.addresses.get(index, 0),
            norms_all_heads=norms_all_heads(attention),
            can_quantize=attention_output_can_be_quantized(kind.shape),
        )

    def move(self, placement: Placement, block: Block) -> None:
        """Go on with matrices that lie elsewhere; vectors and ends stay where they were."""
        self.weights.move(placement, block)
        layers = [bind_layer(layer, self.weights) for layer in self.spec.layers]
        self.layers[:] = self.passes.scopes(layers)
        self.mixtures = mixtures_of(self.spec, self.weights.linears, self.weights.vectors)

    def angles(self, rope: RoPESpec) -> int:
        """Return the address of the table of angles of one of the model's ropes."""
        return self._rotary[rope].address

    def limits(self, cache: KVPool) -> StepLimits:
        """Return what chunks of a step over a cache may ask for."""
        return StepLimits(
            vocab_size=self.spec.vocab_size,
            num_blocks=cache.num_blocks,
            windows=cache.windows,
            max_slots=self.options.batch.max_sequences,
            max_sampled=bucket_of(self.options.batch.max_sequences + MAX_DRAFTS),
            tile_queries=PREFILL_QUERIES,
            context_queries=self.plans.context_queries,
            all_single=self.plans.all_single,
            has_draft_states=bool(self.plans.states.num_drafts),
            most_context_blocks=self.plans.most_context_blocks,
            table_stride=-(-self.plans.max_context // BLOCK_SIZE) + 1,  # a step ahead of the end
        )

    def make_tables(self, launcher: Launcher, stream: Stream) -> None:
        """Fill tables and key factors, and clear the counters by which attention finds an end."""
        self._key_factors.fill(stream)
        self._gpu.fill(self._counters.address, 0, self._counters.length_bytes, stream)
        if self.adapters is not None:
            self.adapters.place_starts(stream)
        if numbers := array("i", range(self.plans.row_numbers_bytes // 4)).tobytes():
            self._copy(numbers, self._row_numbers.address, stream)
        for rope, table in self._rotary.items():
            self._fill_rotary(rope, table.address, launcher, stream)

    def _fill_rotary(
        self, rope: RoPESpec, table_address: int, launcher: Launcher, stream: Stream
    ) -> None:
        frequencies = rope.inverse_frequencies()
        raw = struct.pack(f"<{len(frequencies)}f", *frequencies)
        device = self._gpu.allocate(len(raw))
        try:
            self._copy(raw, device.address, stream)
            rope_table(
                launcher,
                inverse_frequencies_address=device.address,
                table_address=table_address,
                num_positions=self.plans.max_context,
                rotary_dim=rope.rotary_dim,
                factor=rope.factor,
            )
            stream.synchronize()
        finally:
            device.free()

    def _copy(self, raw: bytes, address: int, stream: Stream) -> None:
        """Copy bytes to the device, and wait until they are there."""
        host = self._gpu.allocate_host(len(raw))
        try:
            host.view[: len(raw)] = raw
            self._gpu.copy_to_device(address, host.address, len(raw), stream)
            stream.synchronize()
        finally:
            host.free()

    @property
    def key_factors(self) -> DeviceFactors:
        """What keys are divided by."""
        return self._key_factors

    @property
    def counters(self) -> int:
        """Address of int32 that are zero between kernels."""
        return self._counters.address

    # --- what kernels are told -----------------------------------------------------------------

    def decode_workspace(self, step: Step) -> DecodeWorkspace:
        """Return where the parts of a split sequence meet."""
        return DecodeWorkspace(partials=step.scratch.attention, counters=self._counters.address)

    def wide_workspace(self, step: Step) -> WideWorkspace:
        """Return where queries are that are read by one program a sequence."""
        return WideWorkspace(queries=step.scratch.attention, row_numbers=self._row_numbers.address)

    def tiles(self, step: Step) -> PrefillTiles:
        return PrefillTiles(
            count=step.shape.tiles,
            first_rows=step.inputs.tile_first_rows,
            num_rows=step.inputs.tile_num_rows,
            table_rows=step.inputs.tile_table_rows,
            first_positions=step.inputs.tile_first_positions,
            ends=step.inputs.tile_ends,
        )

    def context(self, step: Step, layer: int) -> Context | None:
        """Return where a layer's keys and values are copied to lines, if they are."""
        if not step.shape.context_blocks or layer not in self.plans.lines_shapes:
            return None
        return Context(
            keys=step.scratch.context,
            num_blocks=step.shape.context_blocks,
            blocks=step.inputs.context_blocks,
            tile_lines=step.inputs.context_lines,
            queries=self.plans.context_queries,
        )

    def context_tiles(self, step: Step) -> PrefillTiles:
        """Return the tiles over lines; they tell of no tables."""
        return PrefillTiles(
            count=step.shape.context_tiles,
            first_rows=step.inputs.context_first_rows,
            num_rows=step.inputs.context_num_rows,
            table_rows=0,
            first_positions=step.inputs.context_first_positions,
        )

    def head_inputs(self, step: Step, query: Query, *, prefill: bool = False) -> HeadInputs:
        """Return what the heads of decode rows, or of prefill rows, are made from."""
        attention = self.attentions[query.layer]
        decode_rows, norms = step.shape.decode_rows, query.head_norms
        first_row, rows, positions = 0, decode_rows, step.inputs.positions
        if prefill:
            first_row, rows = decode_rows, step.shape.prefill_rows
            positions = step.inputs.prefill_positions
        return HeadInputs(
            qkv=query.projected.sums.part(first_row, rows),
            cosines_sines=attention.cosines_sines,
            positions=positions,
            bias=query.projected.bias,
            q_norm=norms[0].weight if norms else 0,
            k_norm=norms[1].weight if norms else 0,
            epsilon=norms[0].epsilon if norms else 0.0,
            rotary_dim=attention.rotary_dim,
            value_epsilon=attention.value_epsilon,
            key_factors=attention.key_factors,
        )

    def tables(self, step: Step, layer: int) -> BlockTables:
        """Return the block tables that a layer reads by."""
        shape, address = step.shape, int(step.inputs.tables)
        if group := step.cache.group_of[layer]:
            address = step.inputs.window_tables + 4 * (group - 1) * shape.table_blocks
        return BlockTables(address=address, stride=shape.table_stride)


def _tell_form(plans: StepPlans) -> None:
    text = "rows that are computed alone read %s weights: their bits follow from it"
    _LOG.info(text, plans.weights_alone)
