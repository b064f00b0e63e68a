"""What the operations know of one model: weights, tables and numbers."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from zse.backends.gpu.graphs import bucket_of
from zse.backends.gpu.kv_pool import BLOCK_SIZE
from zse.backends.gpu.plans import StepPlans
from zse.backends.gpu.step import StepLimits
from zse.backends.types import MAX_DRAFTS
from zse.kernels.attention.launch import (
    AttentionRules,
    DecodeWorkspace,
    PrefillTiles,
    attention_output_can_be_quantized,
)
from zse.kernels.attention.variants import PREFILL_QUERIES
from zse.kernels.layout import (
    BlockTables,
    HeadInputs,
)
from zse.kernels.rope_store.launch import rope_table

if TYPE_CHECKING:
    from zse.backends.gpu.forward import Pass, Query
    from zse.backends.gpu.weights import DeviceWeights
    from zse.device.facts import DeviceFacts
    from zse.device.gpu import Gpu, Stream
    from zse.kernels.launcher import Launcher
    from zse.kernels.tuning import Tuning
    from zse.models.spec import ModelSpec
    from zse.options import LoadOptions


class DeviceModel:
    """A model on a device.

    Args:
        gpu: The device.
        device: What the choice of kernels may depend on.
        weights: Where the tensors are.
        spec: The model.
        options: Where and how.
        tuning: What was measured on such a device.
    """

    def __init__(
        self,
        gpu: Gpu,
        device: DeviceFacts,
        weights: DeviceWeights,
        spec: ModelSpec,
        options: LoadOptions,
        tuning: Tuning,
    ) -> None:
        self.weights = weights
        self.spec = spec
        self.plans = StepPlans(spec, weights.linears, device, options, tuning)
        self.heads = self.plans.heads
        self.query_columns = self.plans.query_columns
        self.attention_can_be_quantized = attention_output_can_be_quantized(self.heads)
        self._gpu = gpu
        self._options = options
        self._max_context = self.plans.max_context
        self.table_stride = -(-self._max_context // BLOCK_SIZE) + 1  # a step ahead of the end
        self._rotary = gpu.allocate(self.plans.rotary_bytes)
        self._counters = gpu.allocate(self.plans.counters_bytes)

    def limits(self, num_blocks: int) -> StepLimits:
        """Return what a chunk may ask for."""
        return StepLimits(
            vocab_size=self.spec.vocab_size,
            num_blocks=num_blocks,
            max_slots=self._options.batch.max_sequences,
            max_sampled=bucket_of(self._options.batch.max_sequences) + MAX_DRAFTS,
            tile_queries=PREFILL_QUERIES,
            table_stride=self.table_stride,
        )

    def make_tables(self, launcher: Launcher, stream: Stream) -> None:
        """Fill the rotary table, and clear the counters by which attention finds its last part."""
        rope = self.spec.attention.rope
        assert rope is not None
        frequencies = rope.inverse_frequencies()
        raw = struct.pack(f"<{len(frequencies)}f", *frequencies)
        host, device = self._gpu.allocate_host(len(raw)), self._gpu.allocate(len(raw))
        try:
            host.view[: len(raw)] = raw
            self._gpu.copy_to_device(device.address, host.address, len(raw), stream)
            rope_table(
                launcher,
                inverse_frequencies_address=device.address,
                table_address=self._rotary.address,
                num_positions=self._max_context,
                head_dim=self.heads.head_dim,
                factor=rope.factor,
            )
            self._gpu.fill(self._counters.address, 0, self._counters.length_bytes, stream)
            stream.synchronize()
        finally:
            host.free()
            device.free()

    # --- what kernels are told -----------------------------------------------------------------

    def decode_workspace(self, step: Pass) -> DecodeWorkspace:
        """Return where the parts of a split sequence meet."""
        return DecodeWorkspace(partials=step.scratch.attention, counters=self._counters.address)

    def tiles(self, step: Pass) -> PrefillTiles:
        """Return where the query tiles of the prefill rows are listed."""
        return PrefillTiles(
            count=step.shape.tiles,
            first_rows=step.inputs.tile_first_rows,
            num_rows=step.inputs.tile_num_rows,
            table_rows=step.inputs.tile_table_rows,
            first_positions=step.inputs.tile_first_positions,
        )

    def rules(self, window: int | None) -> AttentionRules:
        """Return what a layer's attention sees."""
        return AttentionRules(window=window or 0)

    def decode_inputs(self, step: Pass, query: Query) -> HeadInputs:
        """Return what attention makes the heads of decode rows from."""
        return self._head_inputs(
            query, first_row=0, rows=step.shape.decode_rows, positions=step.inputs.positions
        )

    def prefill_inputs(self, step: Pass, query: Query) -> HeadInputs:
        """Return what the heads of prefill rows are made from."""
        return self._head_inputs(
            query,
            first_row=step.shape.decode_rows,
            rows=step.shape.prefill_rows,
            positions=step.inputs.prefill_positions,
        )

    def _head_inputs(
        self, query: Query, *, first_row: int, rows: int, positions: int
    ) -> HeadInputs:
        return HeadInputs(
            qkv=query.projected.sums.part(first_row, rows),
            cosines_sines=self._rotary.address,
            positions=positions,
            bias=query.projected.bias,
            q_norm=query.head_norms[0],
            k_norm=query.head_norms[1],
            epsilon=self.spec.head.norm.epsilon,
        )

    def tables(self, step: Pass) -> BlockTables:
        """Return the step's block tables."""
        return BlockTables(address=step.inputs.tables, stride=step.shape.table_stride)
