"""What the operations know of one model: weights, tables, numbers, and the sizes that follow."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING

from zse.backends.gpu.graphs import MAX_BUCKET
from zse.backends.gpu.inputs import InputShape
from zse.backends.gpu.kv_pool import BLOCK_SIZE
from zse.backends.gpu.scratch import ScratchSizes, activation_bytes
from zse.backends.gpu.step import StepLimits
from zse.kernels.attention.launch import (
    AttentionRules,
    DecodeWorkspace,
    PrefillTiles,
    attention_output_can_be_quantized,
    decode_counters_bytes,
    decode_partials_bytes,
    decode_splits,
)
from zse.kernels.attention.variants import PREFILL_QUERIES
from zse.kernels.layout import (
    BlockTables,
    HeadInputs,
    HeadShape,
)
from zse.kernels.linear.plan import plan_linear
from zse.kernels.linear.weight import supports_quantized
from zse.kernels.lm_head_sample.arrays import SamplingArrays
from zse.kernels.lm_head_sample.workspace import workspace_bytes
from zse.kernels.rope_store.launch import rope_table
from zse.kernels.tuning import Tuning

if TYPE_CHECKING:
    from zse.backends.gpu.forward import Pass, Query
    from zse.backends.gpu.weights import DeviceWeights
    from zse.backends.options import BackendOptions
    from zse.device.facts import DeviceFacts
    from zse.device.gpu import Gpu, Stream
    from zse.kernels.launcher import Launcher
    from zse.kernels.linear.plan import LinearPlan
    from zse.kernels.linear.weight import LinearWeight
    from zse.models.spec import ModelSpec

from zse.settings import load_settings

BATCH_ROWS = 256
"""Rows above which weights are widened once and multiplied as 16-bit matrices."""
QUANTIZED_ROWS = 128
"""Most decode rows that are computed with int8 activations."""
WIDENED_BYTES = 128 << 20
"""Weights that are widened at a time. More than the second-level cache holds: fewer, larger
products gain more than a stay in the cache."""


class DeviceModel:
    """A model on a device.

    Args:
        gpu: The device.
        device: What the choice of kernels may depend on.
        weights: Where the tensors are.
        spec: The model.
        options: Sizes.
    """

    def __init__(
        self,
        gpu: Gpu,
        device: DeviceFacts,
        weights: DeviceWeights,
        spec: ModelSpec,
        options: BackendOptions,
    ) -> None:
        self.weights = weights
        self.spec = spec
        attention = spec.attention
        self.heads = HeadShape(
            num_heads=attention.num_heads,
            kv_heads=attention.num_kv_heads,
            head_dim=attention.head_dim,
        )
        self.query_columns = attention.num_heads * attention.head_dim
        self.attention_can_be_quantized = attention_output_can_be_quantized(self.heads)
        self._gpu = gpu
        self._device = device
        self._options = options
        self._exact = options.exact_activations
        self._max_context = options.max_context or spec.max_position
        self.table_stride = -(-self._max_context // BLOCK_SIZE) + 1  # a step ahead of the end
        self._rotary = gpu.allocate(self._max_context * attention.head_dim * 4)
        self._counters = gpu.allocate(decode_counters_bytes(self._most_decode_rows(), self.heads))
        self._tuning = Tuning.load(device.name, cache_dir=load_settings().cache_dir)
        self._plans: dict[tuple[object, ...], LinearPlan] = {}
        self.scratch_sizes = lru_cache(maxsize=256)(self._scratch_sizes)

    def limits(self, num_blocks: int) -> StepLimits:
        """Return what a chunk may ask for."""
        return StepLimits(
            vocab_size=self.spec.vocab_size,
            num_blocks=num_blocks,
            max_slots=self._options.max_sequences,
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

    def decode_splits(self, rows: int) -> int:
        """Return along how many programs a sequence is split in a step of so many decode rows."""
        return decode_splits(rows, self.heads.kv_heads, self._device, self._max_context)

    def tiles(self, step: Pass) -> PrefillTiles:
        """Return where the query tiles of the prefill rows are listed."""
        return PrefillTiles(
            count=step.shape.tiles,
            first_rows=step.input("tile_first_row"),
            num_rows=step.input("tile_num_rows"),
            table_rows=step.input("tile_table"),
            first_positions=step.input("tile_first_position"),
        )

    def rules(self, window: int | None) -> AttentionRules:
        """Return what a layer's attention sees."""
        return AttentionRules(window=window or 0)

    def decode_inputs(self, step: Pass, query: Query) -> HeadInputs:
        """Return what attention makes the heads of decode rows from."""
        return self._head_inputs(
            step, query, first_row=0, rows=step.shape.decode_rows, positions="positions"
        )

    def prefill_inputs(self, step: Pass, query: Query) -> HeadInputs:
        """Return what the heads of prefill rows are made from."""
        return self._head_inputs(
            step,
            query,
            first_row=step.shape.decode_rows,
            rows=step.shape.prefill_rows,
            positions="prefill_positions",
        )

    def _head_inputs(
        self, step: Pass, query: Query, *, first_row: int, rows: int, positions: str
    ) -> HeadInputs:
        return HeadInputs(
            qkv=query.projected.sums.part(first_row, rows),
            cosines_sines=self._rotary.address,
            positions=step.input(positions),
            bias=query.projected.bias,
            q_norm=query.head_norms[0],
            k_norm=query.head_norms[1],
            epsilon=self.spec.head.norm.epsilon,
        )

    def tables(self, step: Pass) -> BlockTables:
        """Return the step's block tables."""
        return BlockTables(address=step.input("tables"), stride=step.shape.table_stride)

    def sampling_arrays(self, step: Pass) -> SamplingArrays:
        """Return where the parameters of the wanted rows are."""
        return SamplingArrays(
            temperature=step.input("temperature"),
            top_k=step.input("top_k"),
            top_p=step.input("top_p"),
            min_p=step.input("min_p"),
            uniform=step.input("uniform"),
            slots=step.input("sample_slots"),
            entry_row=step.input("entry_row"),
            entry_token=step.input("entry_token"),
            entry_penalty=step.input("entry_penalty"),
            entry_add=step.input("entry_add"),
            entry_seen=step.input("entry_seen"),
            run_first=step.input("run_first"),
            run_length=step.input("run_length"),
            repetition=step.input("repetition"),
            presence=step.input("presence"),
            frequency=step.input("frequency"),
        )

    def plan(
        self, weight: LinearWeight, rows: int, *, quantized: bool, max_splits: int | None = None
    ) -> LinearPlan:
        """Return how a matrix is multiplied with so many rows; looked up once for each form."""
        form = (weight.scheme, weight.rows, weight.columns, weight.group_size)
        key = (*form, rows, quantized, max_splits)
        if key not in self._plans:
            self._plans[key] = plan_linear(
                weight,
                rows,
                quantized=quantized,
                device=self._device,
                max_splits=max_splits,
                tuning=self._tuning,
            )
        return self._plans[key]

    # --- sizes ---------------------------------------------------------------------------------

    def reads_quantized(self, shape: InputShape) -> bool:
        """Whether the matrices of a step may read int8 activations."""
        return not (shape.prefill_rows or self._exact) and shape.rows <= QUANTIZED_ROWS

    def largest_scratch_bytes(self) -> int:
        """Return the scratch memory of the largest step: prefill, or the widest decode."""
        options = self._options
        prefill = InputShape(
            decode_rows=0,
            prefill_rows=options.max_batch_tokens,
            sequences=1,
            table_stride=1,
            wanted=options.max_sequences,
        )
        rows = self._most_decode_rows()
        decode = InputShape(decode_rows=rows, sequences=rows, table_stride=1, wanted=rows)
        return max(self.scratch_sizes(shape).offsets()[1] for shape in (prefill, decode))

    def _most_decode_rows(self) -> int:
        bucket = 1 << (self._options.max_sequences - 1).bit_length()
        return bucket if bucket <= MAX_BUCKET else self._options.max_sequences

    def _scratch_sizes(self, shape: InputShape) -> ScratchSizes:
        rows, wanted = shape.rows, shape.wanted
        columns = {weight.columns for weight in self.weights.linears()}
        model = self.spec
        widened = max(rows, wanted) > BATCH_ROWS
        return ScratchSizes(
            residual=rows * model.hidden_size * 4,
            activations=max(activation_bytes(max(rows, wanted), count) for count in columns),
            sums=max(self._sums_bytes(weight, shape) for weight in self._distinct_linears()),
            query=shape.prefill_rows * self.query_columns * 2,
            attention=self._attention_bytes(shape.decode_rows),
            weights=WIDENED_BYTES if widened else 0,
            logits=wanted * model.vocab_size * 4,
            sampling=workspace_bytes(wanted, model.vocab_size) if wanted else 0,
        )

    def _attention_bytes(self, rows: int) -> int:
        return decode_partials_bytes(rows, self.heads, self.decode_splits(rows)) if rows else 0

    def _sums_bytes(self, weight: LinearWeight, shape: InputShape) -> int:
        rows = shape.rows
        if rows > BATCH_ROWS:
            # Gate and up are the widest and are written in 16 bits; what is written in float32
            # is no wider than queries, keys and values.
            narrow = max(self.heads.qkv_columns, self.spec.hidden_size)
            return rows * max(weight.rows * 2, narrow * 4)
        forms = [False]
        if self.reads_quantized(shape) and supports_quantized(weight):
            forms.append(True)
        return max(self.plan(weight, rows, quantized=form).output_bytes for form in forms)

    def _distinct_linears(self) -> list[LinearWeight]:
        """Return one matrix of each form, the head left out: its product has a place of its own."""
        seen = {
            (weight.scheme, weight.rows, weight.columns, weight.group_size): weight
            for weight in self.weights.layer_linears()
        }
        return list(seen.values())
