"""How the steps of a model are computed on one kind of GPU, and the memory that this takes.

It follows from shapes alone, so it is known before there is a GPU.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from zse.backends.gpu.graphs import MAX_BUCKET, bucket_of
from zse.backends.gpu.heads import attentions_of, kind_of, ropes_of
from zse.backends.gpu.inputs import InputShape
from zse.backends.gpu.mixture import area_of, mixtures_of
from zse.backends.gpu.scratch import ScratchSizes, activation_bytes
from zse.backends.operations import is_attention
from zse.backends.states import states_of
from zse.backends.types import mask_bytes
from zse.kernels.attention.launch import decode_counters_bytes, decode_partials_bytes, decode_splits
from zse.kernels.attention.variants import decode_tile
from zse.kernels.delta.launch import prefill_workspace_bytes
from zse.kernels.experts.plan import FEW_ROWS, plan_pairs
from zse.kernels.linear.plan import plan_linear
from zse.kernels.linear.weight import supports_quantized
from zse.kernels.lm_head_sample.workspace import workspace_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.backends.gpu.heads import AttentionKind
    from zse.backends.gpu.mixture import Mixture, MixtureArea
    from zse.device.facts import DeviceFacts
    from zse.kernels.experts.plan import PairPlan
    from zse.kernels.experts.weight import StackedWeight
    from zse.kernels.linear.plan import LinearPlan
    from zse.kernels.linear.weight import LinearWeight
    from zse.kernels.tuning import Tuning
    from zse.models.rope import RoPESpec
    from zse.models.spec import ModelSpec
    from zse.options import LoadOptions

BATCH_ROWS = 256
"""Rows above which weights are widened once and multiplied as 16-bit matrices."""
QUANTIZED_ROWS = 128
"""Most decode rows that are computed with int8 activations."""
WIDENED_BYTES = 128 << 20
"""Weights that are widened at a time. More than the second-level cache holds: fewer, larger
products gain more than a stay in the cache."""


class StepPlans:
    """What is chosen for each shape of a step, by measured choices where there are some.

    Addresses of ``linears``, matrices by name, are not looked at.
    """

    def __init__(
        self,
        spec: ModelSpec,
        linears: Mapping[str, LinearWeight],
        facts: DeviceFacts,
        options: LoadOptions,
        tuning: Tuning | None = None,
    ) -> None:
        kinds = {index: kind_of(attention) for index, attention in attentions_of(spec).items()}
        self.attention_kinds = kinds
        """Of each layer that has attention, by number."""
        self._kinds = tuple(dict.fromkeys(kinds.values()))
        self.deltas = states_of(spec, options).shapes
        """The numbers of each layer that has linear attention, by number."""
        self.max_context = options.batch.max_context or spec.max_position
        self._spec = spec
        self._linears = linears
        self._facts = facts
        self._options = options
        self._tuning = tuning
        self._plans: dict[tuple[object, ...], LinearPlan] = {}
        self._pair_plans: dict[tuple[object, ...], PairPlan] = {}
        self._areas: dict[tuple[object, ...], MixtureArea] = {}
        self._stacks = {weight.name for weight in spec.weights() if weight.kind == "experts"}
        self._mixtures = tuple(dict.fromkeys(mixtures_of(spec, _unplaced(linears), {}).values()))
        self.scratch = lru_cache(maxsize=256)(self._scratch)

    @property
    def rotary_bytes(self) -> int:
        """Bytes of all tables of angles."""
        return sum(map(self.rotary_table_bytes, ropes_of(self._spec)))

    def rotary_table_bytes(self, rope: RoPESpec) -> int:
        return self.max_context * rope.rotary_dim * 4

    @property
    def counters_bytes(self) -> int:
        rows = self._most_decode_rows()
        routing = FEW_ROWS * 4 if self._mixtures else 0
        counted = (decode_counters_bytes(rows, kind.shape) for kind in self._kinds)
        return max([routing, *counted])

    def decode_splits(self, rows: int, kind: AttentionKind) -> int:
        """Return along how many programs a sequence is split in a step of so many decode rows."""
        most = self.max_context
        if kind.window:  # which may begin and end within tiles
            most = min(most, kind.window + decode_tile(kind.shape.head_dim))
        return decode_splits(rows, kind.shape.kv_heads, self._facts, most)

    def plan(
        self, weight: LinearWeight, rows: int, *, quantized: bool, max_splits: int | None = None
    ) -> LinearPlan:
        """Return how a matrix is multiplied with so many rows; looked up once for each form."""
        key = (*_form(weight), rows, quantized, max_splits)
        if key not in self._plans:
            self._plans[key] = plan_linear(
                weight,
                rows,
                quantized=quantized,
                device=self._facts,
                max_splits=max_splits,
                tuning=self._tuning,
            )
        return self._plans[key]

    def pair_plan(
        self, weight: StackedWeight, pairs: int, *, max_splits: int | None = None
    ) -> PairPlan:
        """Return how a few tokens are multiplied with experts; looked up once for each form."""
        key = (*_form(weight.stack), pairs, max_splits)
        if key not in self._pair_plans:
            self._pair_plans[key] = plan_pairs(weight, pairs, self._facts, max_splits=max_splits)
        return self._pair_plans[key]

    def mixture_area(self, mixture: Mixture, rows: int) -> MixtureArea:
        """Return where a routing lies; looked up once for each form."""
        key = (mixture.slots, mixture.groups, mixture.hidden, mixture.shared is None, rows)
        if key not in self._areas:
            shared_bytes = 0
            if mixture.shared is not None:
                shared_bytes = self._product_bytes(mixture.shared.down, rows)
            self._areas[key] = area_of(mixture, rows, shared_bytes)
        return self._areas[key]

    def reads_quantized(self, shape: InputShape) -> bool:
        """Whether the matrices of a step may read int8 activations."""
        exact = self._options.device.exact_activations
        return not (shape.prefill_rows or exact) and shape.rows <= QUANTIZED_ROWS

    def largest_scratch_bytes(self) -> int:
        """Return the scratch memory of the largest step: prefill, or the widest decode."""
        options = self._options
        prefill = InputShape(
            decode_rows=0,
            prefill_rows=options.batch.max_batch_tokens,
            sequences=1,
            table_stride=1,
            wanted=options.batch.max_sequences,
        )
        rows = self._most_decode_rows()
        decode = InputShape(decode_rows=rows, sequences=rows, table_stride=1, wanted=rows)
        return max(self.scratch(shape).offsets()[1] for shape in (prefill, decode))

    def _most_decode_rows(self) -> int:
        bucket = bucket_of(self._options.batch.max_sequences)
        return bucket if bucket <= MAX_BUCKET else self._options.batch.max_sequences

    def _scratch(self, shape: InputShape) -> ScratchSizes:
        rows, wanted = shape.rows, shape.wanted
        columns = {weight.columns for weight in self._linears.values()} | {self._told_columns}
        model = self._spec
        widened = max(rows, wanted) > BATCH_ROWS
        deltas = self.deltas.values()
        return ScratchSizes(
            residual=rows * model.hidden_size * 4,
            activations=max(
                [
                    *(activation_bytes(max(rows, wanted), count) for count in columns),
                    *(activation_bytes(rows * each.slots, each.width) for each in self._mixtures),
                ]
            ),
            sums=max(
                [
                    *(self._sums_bytes(weight, shape) for weight in self._distinct_linears()),
                    *(self._expert_sums_bytes(each, shape) for each in self._mixtures),
                ]
            ),
            told=rows * self._told_columns * 4,
            query=shape.prefill_rows * self._query_columns * 2,
            attention=self._attention_bytes(shape.decode_rows),
            gates=self._gates_bytes(rows),
            delta=max((prefill_workspace_bytes(shape.prefill_rows, d) for d in deltas), default=0),
            weights=WIDENED_BYTES if widened else 0,
            experts=max(
                (self.mixture_area(each, rows).length_bytes for each in self._mixtures), default=0
            ),
            beside=max((self._beside_bytes(each, shape) for each in self._mixtures), default=0),
            logits=wanted * model.vocab_size * 4,
            masks=wanted * mask_bytes(model.vocab_size),
            sampling=workspace_bytes(wanted, model.vocab_size) if wanted else 0,
        )

    @property
    def _told_columns(self) -> int:
        """Columns of what all layers are told of a row."""
        inputs = self._spec.embedding.layer_inputs
        return 0 if inputs is None else inputs.table.shape[1]

    @property
    def _query_columns(self) -> int:
        return max((kind.shape.query_columns for kind in self._kinds), default=0)

    def _attention_bytes(self, rows: int) -> int:
        if not rows:
            return 0
        splits = [(kind.shape, self.decode_splits(rows, kind)) for kind in self._kinds]
        return max((decode_partials_bytes(rows, *each) for each in splits), default=0)

    def _gates_bytes(self, rows: int) -> int:
        """Return the bytes of the steps and decays of one layer's linear attention."""
        found = 0
        for layer in self._spec.layers:
            if layer.index in self.deltas and not is_attention(layer.mixer):
                weight = self._linears[layer.mixer.gates.weight.name]
                found = max(found, self._product_bytes(weight, rows))
        return found

    def _product_bytes(self, weight: LinearWeight, rows: int) -> int:
        """Return the bytes of a product of 16-bit activations, in float32."""
        if rows > BATCH_ROWS:
            return rows * weight.rows * 4
        return self.plan(weight, rows, quantized=False).output_bytes if rows else 0

    def _sums_bytes(self, weight: LinearWeight, shape: InputShape) -> int:
        rows = shape.rows
        if rows > BATCH_ROWS:
            # Gate and up are written in 16 bits; what is written in float32 is no wider than what
            # a mixer of tokens reads.
            columns = [kind.shape.qkv_columns for kind in self._kinds]
            columns += [shape.input_columns for shape in self.deltas.values()]
            narrow = max(self._spec.hidden_size, self._told_columns, *columns)
            return rows * max(weight.rows * 2, narrow * 4)
        forms = [False]
        if self.reads_quantized(shape) and supports_quantized(weight):
            forms.append(True)
        return max(self.plan(weight, rows, quantized=form).output_bytes for form in forms)

    def _expert_sums_bytes(self, mixture: Mixture, shape: InputShape) -> int:
        """Return the bytes of the products of experts, whichever kernels make them."""
        pairs = shape.rows * mixture.slots
        widest = pairs * max(mixture.up.rows, mixture.down.rows) * 2
        if not mixture.takes_few(shape.rows, quantized=self.reads_quantized(shape)):
            return widest
        up = self.pair_plan(mixture.up, pairs).output_bytes
        down = self.pair_plan(mixture.down, pairs, max_splits=1).output_bytes
        return max(widest, up, down)

    def _beside_bytes(self, mixture: Mixture, shape: InputShape) -> int:
        """Return the bytes of what a dense MLP and the experts beside it add."""
        if mixture.beside is None:
            return 0
        rows = shape.rows
        experts = one = rows * mixture.hidden * 4
        if mixture.takes_few(rows, quantized=self.reads_quantized(shape)):
            pairs = rows * mixture.slots
            experts = self.pair_plan(mixture.down, pairs, max_splits=1).output_bytes
        return max(self._sums_bytes(mixture.beside, shape), one + experts)

    def _distinct_linears(self) -> list[LinearWeight]:
        """Return one matrix of each form, but the head's and experts', which are counted apart."""
        inputs = self._spec.embedding.layer_inputs
        before = "" if inputs is None else inputs.projection.weight.name
        seen = {
            _form(weight): weight
            for name, weight in self._linears.items()
            if name == before or (name.startswith("layers.") and name not in self._stacks)
        }
        return list(seen.values())


def _form(weight: LinearWeight) -> tuple[str, int, int, int]:
    return weight.scheme, weight.rows, weight.columns, weight.group_size


def _unplaced(linears: Mapping[str, LinearWeight]) -> dict[str, LinearWeight]:
    """Return matrices without their addresses, so that those of one form are equal."""
    return {name: replace(each, weights=0, scales=0) for name, each in linears.items()}
