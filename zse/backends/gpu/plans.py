"""How the steps of a model are computed on one kind of GPU, and the memory that this takes.

It follows from shapes alone, so it is known before there is a GPU.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from zse.backends.gpu.graphs import MAX_BUCKET, bucket_of, tile_room
from zse.backends.gpu.heads import kinds_of, lines_shapes_of, ropes_of
from zse.backends.gpu.inputs import InputShape
from zse.backends.gpu.kinds import (
    latent_plans_of,
    linear_attention_of,
    low_rank_bytes,
    mixture_plans_of,
)
from zse.backends.gpu.prompt_rows import filled_rows
from zse.backends.gpu.scratch import (
    BATCH_ROWS,
    MixtureBytes,
    ScratchSizes,
    activation_bytes,
    begun_bytes,
)
from zse.backends.gpu.turned_rows import turns_matrices
from zse.backends.key_factors import NARROW_KV_DTYPES
from zse.backends.operations import is_attention
from zse.backends.single import all_single
from zse.backends.states import states_on_gpu
from zse.backends.types import LOGITS_ROWS, MAX_DRAFTS, mask_bytes
from zse.format.names import SPARE_PREFIX
from zse.kernels.attention.context import aligned_blocks, context_bytes
from zse.kernels.attention.launch import decode_counters_bytes, decode_partials_bytes, decode_splits
from zse.kernels.attention.variants import context_queries, decode_tile
from zse.kernels.linear.closed import counters_bytes
from zse.kernels.linear.closed_forms import CLOSED_ROWS
from zse.kernels.linear.launch_8bit import splits_of_turned, takes_8bit, turned_bytes
from zse.kernels.linear.plan import ANY_ROWS, plan_any_rows, plan_linear
from zse.kernels.linear.weight import supports_quantized
from zse.kernels.lm_head_sample.workspace import workspace_bytes
from zse.option import with_values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zse.backends.gpu.forward import Rounding
    from zse.backends.gpu.heads import AttentionKind
    from zse.device.facts import DeviceFacts
    from zse.kernels.linear.plan import LinearPlan
    from zse.kernels.linear.weight import LinearWeight
    from zse.kernels.tuning import Tuning
    from zse.models.rope import RoPESpec
    from zse.models.spec import ModelSpec
    from zse.options import LoadOptions

ANY_ROWS_ATTENTION = 32
"""Rows that the splits of sequences are made for where bits may not depend on how many there are:
few take longer then, many hardly so."""
QUANTIZED_ROWS = 128
"""Most decode rows that are computed with int8 activations."""
TURNED_ROWS = 64
"""Most rows that read stored weights where turned ones are kept: more are bound by unpacking."""
MOST_CONTEXT_BYTES = 512 << 20
"""Keys and values of one layer that are copied to lines for a step at most."""
MOST_KEPT = 1 << 31
"""Numbers of a head that is kept turned: the kernels count so far."""
_OF_LAYERS = ("layers.", SPARE_PREFIX)
"""How the names of matrices begin whose products lie in scratch; a head that guesses is a layer."""
WIDENED_BYTES = 128 << 20
"""Weights that are widened at a time. More than the second-level cache holds: fewer, larger
products gain more than a stay in the cache."""


def leaves_states(spec: ModelSpec, options: LoadOptions) -> bool:
    """Whether a model on a GPU is guessed for by what reads the states of its tokens."""
    ranks = options.ranks
    is_alone = ranks.tensor_parallel == ranks.pipeline_parallel == 1
    is_whole = spec.embedding.join is None and not spec.is_encoder
    return options.speculation.speculate in ("mtp", "medusa") and is_alone and is_whole


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
        self.attention_kinds = kinds_of(spec)
        """Of each layer that keeps keys and values, by number."""
        self._kinds = tuple(dict.fromkeys(self.attention_kinds.values()))
        self.lines_shapes = lines_shapes_of(spec, facts.target)
        """Of each layer whose long prompts are read over lines, by number."""
        widths = {shape.head_dim for shape in self.lines_shapes.values()}
        self.context_queries = context_queries(widths, facts.target)
        """Queries of a tile over lines, the same in all layers."""
        self.states = states_on_gpu(spec, options)
        self.linear_attention = linear_attention_of(self.states)
        self.takes_states = spec.embedding.join is not None
        """Whether tokens come with states."""
        self.leaves_states = leaves_states(spec, options)
        """Whether steps leave the states of their tokens, for whoever guesses by them."""
        self.max_context = options.batch.max_context or spec.max_position
        self._spec = spec
        self._linears = linears
        self.facts = facts
        self._options = options
        self._rounds_cache = options.cache.kv_dtype in NARROW_KV_DTYPES
        self.deterministic = options.device.deterministic
        """Whether the bits of a row may depend on nothing else in its step."""
        self.all_single = all_single(spec, options)
        """Whether tokens of prompts, too, are computed each on its own."""
        any_rows = ANY_ROWS_ATTENTION if self.deterministic else 0
        self.latents = latent_plans_of(spec, facts, self.max_context, any_rows=any_rows)
        self._tuning = tuning
        self._turns = turns_matrices(spec, options)
        self._turns_fewer = False
        self._plans: dict[tuple[object, ...], LinearPlan] = {}
        self.mixtures = mixture_plans_of(spec, linears, self)
        self.scratch = lru_cache(maxsize=256)(self._scratch)
        self.filled_rows = lru_cache(maxsize=256)(self._filled_rows)

    @cached_property
    def alone(self) -> StepPlans:
        """How rows are computed whose bits may depend on nothing else, in steps of their own."""
        chosen = {"deterministic": True, "max_batch_tokens": self.most_single_rows}
        options = with_values(self._options, chosen)
        return StepPlans(self._spec, self._linears, self.facts, options, self._tuning)

    @property
    def rotary_bytes(self) -> int:
        """Bytes of all tables of angles."""
        return sum(map(self.rotary_table_bytes, ropes_of(self._spec)))

    def rotary_table_bytes(self, rope: RoPESpec) -> int:
        return self.max_context * rope.rotary_dim * 4

    @property
    def counters_bytes(self) -> int:
        rows = self.most_single_rows
        routing = self.mixtures.counters_bytes if self.mixtures else 0
        counted = (decode_counters_bytes(rows, kind.shape) for kind in self._kinds)
        widest = max((weight.rows for weight in self._distinct_linears()), default=0)
        closing = counters_bytes(min(rows, CLOSED_ROWS), widest)
        return max([4, routing, closing, *counted])

    @property
    def row_numbers_bytes(self) -> int:
        """Bytes of the numbers of rows, which attention of many rows over INT8 caches looks at."""
        return 4 * self.most_single_rows if self._options.cache.kv_dtype == "int8" else 0

    def decode_splits(self, rows: int, kind: AttentionKind) -> int:
        """Return along how many programs a sequence is split in a step of so many decode rows."""
        most = self.max_context
        if kind.window:  # which may begin and end within tiles
            most = min(most, kind.window + decode_tile(kind.shape.head_dim))
        rows = ANY_ROWS_ATTENTION if self.deterministic else rows
        return decode_splits(
            rows, kind.shape.kv_heads, self.facts, most, is_rounded=self._rounds_cache
        )

    def plan(
        self, weight: LinearWeight, rows: int, *, quantized: bool, max_splits: int | None = None
    ) -> LinearPlan:
        """Return how a matrix is multiplied with so many rows; looked up once for each form."""
        key = (*weight.form, rows, quantized, max_splits)
        if key not in self._plans:
            choose = plan_any_rows if self.deterministic else plan_linear
            self._plans[key] = choose(
                weight,
                rows,
                quantized=quantized,
                device=self.facts,
                max_splits=max_splits,
                tuning=self._tuning,
            )
        return self._plans[key]

    def widens(self, rows: int) -> bool:
        """Whether weights are widened for so many rows of 16 bits, which sums in another order."""
        return rows > BATCH_ROWS and not self.deterministic

    def reads_quantized(self, shape: InputShape) -> bool:
        """Whether the matrices of a step may read int8 activations of few rows."""
        return self.rounding(shape) == "groups"

    def rounding(self, shape: InputShape) -> Rounding:
        """Return how activations of a step may be rounded."""
        if self._options.device.exact_activations:
            return "none"
        if self.turns_all:
            return "tokens"
        if self.widens(shape.rows):
            return "tokens" if self._turns else "none"
        if self._turns_fewer and shape.rows > TURNED_ROWS:
            return "tokens"
        few = self.deterministic or shape.rows <= QUANTIZED_ROWS
        return "groups" if few and not shape.prefill_rows else "none"

    def keep_turned(self, are_kept: bool) -> None:
        """Note whether all turned matrices are kept: fewer rows are then multiplied with them."""
        if self._turns_fewer != (are_kept and self._turns):
            self._turns_fewer = not self._turns_fewer
            self.scratch.cache_clear()

    @property
    def turns_all(self) -> bool:
        """Whether rows whose bits depend on nothing else are all turned, however many there are."""
        return self.deterministic and self._turns_fewer

    @property
    def weights_alone(self) -> str:
        """Which weights rows read whose bits depend on nothing else; empty where theirs may."""
        return ("turned" if self.turns_all else "stored") if self.deterministic else ""

    @property
    def turned_alike(self) -> int:
        """Rows that all steps with turned ones are computed like; 0 where forms follow the rows."""
        return ANY_ROWS if self.turns_all else 0

    def turned_splits(self, weight: LinearWeight, rows: int) -> int:
        """Return how many summands a product of turned rows leaves; one of matrices not kept."""
        if not self._turns_fewer:
            return 1
        rows = self.turned_alike or rows
        return splits_of_turned(weight.rows, weight.columns, rows, self.facts)

    def _filled_rows(self, most_rows: int) -> int:
        """Return how many rows a step with prompts best has, of so many that it may have."""
        if self.mixtures or self.deterministic:  # experts share the rows, nobody knows how
            return most_rows
        shapes = [(weight.rows, weight.columns) for weight in self.turned_matrices]
        return filled_rows(shapes, self.facts, most_rows)

    @property
    def turned_matrices(self) -> Sequence[LinearWeight]:
        """The matrices of layers that such products read."""
        stacks = self.mixtures.stacks if self.mixtures else ()
        return [
            weight
            for name, weight in self._linears.items()
            if self._turns and name.startswith("layers.") and name not in stacks
            if takes_8bit(weight)
        ]

    @property
    def kept_matrices(self) -> Sequence[LinearWeight]:
        """Those that may be kept turned; the head, which steps of many answers read, is last."""
        head, layers = self._spec.head, self.turned_matrices
        if not layers or head.weight is None or head.rows is not None:
            return layers
        weight = self._linears[head.weight.name]
        is_kept = takes_8bit(weight) and weight.rows * weight.columns < MOST_KEPT
        return [*layers, weight] if is_kept else layers

    def largest_scratch_bytes(self) -> int:
        """Return the scratch memory of the largest step: prefill, or the widest decode."""
        options = self._options
        tokens = options.batch.max_batch_tokens
        single = tokens if self.all_single else 0
        prefill = InputShape(
            decode_rows=single,
            prefill_rows=tokens - single,
            context_blocks=self.most_context_blocks,
            sequences=1,
            table_stride=1,
            wanted=options.batch.max_sequences + MAX_DRAFTS,
        )
        rows = self._most_single_rows()
        decode = InputShape(decode_rows=rows, sequences=rows, table_stride=1, wanted=rows)
        shapes = (self._adapted(shape) for shape in (prefill, decode))
        return max(self.scratch(shape).offsets()[1] for shape in shapes)

    def _adapted(self, shape: InputShape) -> InputShape:
        """Return a shape with as many tiles of adapters as it may have, if there are adapters."""
        if not self._options.lora.gpu_bytes:
            return shape
        sequences = min(shape.rows, self._options.batch.max_sequences)
        tile_rows = shape.adapter_tile_rows
        tiles = sequences + (shape.rows - sequences) // tile_rows
        is_captured = shape.decode_rows and shape.rows <= MAX_BUCKET
        return replace(shape, adapter_tiles=tile_room(tiles, shape.rows) if is_captured else tiles)

    def _most_single_rows(self) -> int:
        """Return the rows of the widest step without prompts: of sequences, and of their drafts."""
        most = self._options.batch.max_sequences + MAX_DRAFTS
        return bucket_of(most) if most <= MAX_BUCKET else most

    @property
    def most_single_rows(self) -> int:
        """Rows that a step computes each on its own at most."""
        most = self._most_single_rows()
        if not self.all_single:
            return most
        return max(most, self._options.batch.max_batch_tokens, LOGITS_ROWS)

    def _scratch(self, shape: InputShape) -> ScratchSizes:
        rows, wanted = shape.rows, shape.wanted
        columns = {weight.columns for weight in self._linears.values()} | {self._told_columns}
        model = self._spec
        widened = self.widens(max(rows, wanted))
        mixtures = self.mixtures.scratch(shape) if self.mixtures else MixtureBytes()
        delta = self.linear_attention
        return ScratchSizes(
            residual=rows * model.hidden_size * 4,
            activations=max(
                [
                    *(activation_bytes(max(rows, wanted), count) for count in columns),
                    mixtures.activations,
                ]
            ),
            sums=max(
                [
                    *(self.sums_bytes(weight, shape) for weight in self._distinct_linears()),
                    mixtures.sums,
                    self._classifier_bytes(shape.runs),
                ]
            ),
            told=rows * self._told_columns * 4,
            query=self._queries_bytes(shape),
            context=self._context_bytes(shape.context_blocks),
            attention=self._attention_bytes(shape.decode_rows),
            low_rank=low_rank_bytes(model, self._options.lora, shape) if shape.adapter_tiles else 0,
            gates=self._gates_bytes(rows),
            delta=delta.workspace_bytes(shape.prefill_rows) if delta else 0,
            weights=self._weights_bytes(shape, max(columns), widened=widened),
            experts=mixtures.routing,
            beside=mixtures.beside,
            logits=wanted * model.vocab_size * 4,
            own_logits=wanted * model.head.rows.count * 4 if model.head.rows else 0,
            masks=wanted * mask_bytes(model.vocab_size),
            sampling=workspace_bytes(wanted, model.vocab_size) if wanted else 0,
            given=rows * model.hidden_size * 4 if self.takes_states else 0,
            left=rows * model.hidden_size * 2 if self.leaves_states else 0,
            begun=begun_bytes(rows, model.hidden_size) if rows <= CLOSED_ROWS else 0,
        )

    def _weights_bytes(self, shape: InputShape, columns: int, *, widened: bool) -> int:
        """Return the room for rows of a matrix, and for activations that are turned beside them."""
        is_turned = self.rounding(shape) == "tokens"
        if not widened:  # of fewer rows all matrices are kept
            return turned_bytes(shape.rows, columns) if is_turned else 0
        if not is_turned:
            return WIDENED_BYTES
        return max(WIDENED_BYTES, WIDENED_BYTES // 2 + turned_bytes(shape.rows, columns))

    @property
    def _told_columns(self) -> int:
        """Columns of what all layers are told of a row."""
        inputs = self._spec.embedding.layer_inputs
        return 0 if inputs is None else inputs.table.shape[1]

    def _queries_bytes(self, shape: InputShape) -> int:
        columns = max((kind.shape.query_columns for kind in self._kinds), default=0)
        wide = self.latents.queries_bytes(shape.rows) if self.latents else 0
        return max(shape.prefill_rows * columns * 2, wide)

    @property
    def most_context_blocks(self) -> int:
        """Blocks that are copied to lines for a step at most: those of two longest sequences."""
        one_block = self._context_bytes(1)
        if not one_block or self.all_single:
            return 0
        longest = aligned_blocks(self.max_context + self._options.batch.max_batch_tokens)
        return min(2 * longest, MOST_CONTEXT_BYTES // one_block)

    def _context_bytes(self, blocks: int) -> int:
        shapes = set(self.lines_shapes.values()) if blocks else ()
        return max((context_bytes(shape, blocks) for shape in shapes), default=0)

    def _attention_bytes(self, rows: int) -> int:
        if not rows:
            return 0
        splits = [(kind.shape, self.decode_splits(rows, kind)) for kind in self._kinds]
        latents = self.latents.partials_bytes(rows) if self.latents else 0
        return max([latents, *(decode_partials_bytes(rows, *each) for each in splits)])

    def _gates_bytes(self, rows: int) -> int:
        """Return the bytes of the steps and decays of one layer's linear attention."""
        found = 0
        for layer in self._spec.layers:
            if layer.index in self.states.shapes and not is_attention(layer.mixer):
                weight = self._linears[layer.mixer.gates.weight.name]
                found = max(found, self.product_bytes(weight, rows))
        return found

    def _classifier_bytes(self, texts: int) -> int:
        """Return the bytes of the product by which texts are scored, if they are."""
        classifier = self._spec.head.classifier
        if classifier is None:
            return 0
        return self.product_bytes(self._linears[classifier.dense.weight.name], texts)

    def product_bytes(self, weight: LinearWeight, rows: int) -> int:
        """Return the bytes of a product of 16-bit activations, in float32."""
        if self.widens(rows):
            return rows * weight.rows * 4
        return self.plan(weight, rows, quantized=False).output_bytes if rows else 0

    def sums_bytes(self, weight: LinearWeight, shape: InputShape) -> int:
        rows = shape.rows
        if self.widens(rows):
            # Gate and up are written in 16 bits; what is written in float32 is no wider than what
            # a mixer of tokens reads.
            columns = [kind.shape.qkv_columns for kind in self._kinds]
            columns += [shape.input_columns for shape in self.states.shapes.values()]
            columns += [self.latents.summed_columns] if self.latents else []
            narrow = max(self._spec.hidden_size, self._told_columns, *columns)
            splits = self.turned_splits(weight, rows) if takes_8bit(weight) else 1
            summed = splits * weight.rows if splits > 1 else 0
            return rows * max(weight.rows * 2, narrow * 4, summed * 4)
        forms = [False]
        if self.reads_quantized(shape) and supports_quantized(weight):
            forms.append(True)
        plain = max(self.plan(weight, rows, quantized=form).output_bytes for form in forms)
        if self.rounding(shape) != "tokens" or not takes_8bit(weight):
            return plain
        return max(plain, self.turned_splits(weight, rows) * rows * weight.rows * 4)

    def _distinct_linears(self) -> list[LinearWeight]:
        """Return one matrix of each form, but those that are counted apart."""
        inputs = self._spec.embedding.layer_inputs
        before = "" if inputs is None else inputs.projection.weight.name
        others = {*(self.mixtures.stacks if self.mixtures else ())}
        others.update(self.latents.expansions if self.latents else ())
        seen = {
            weight.form: weight
            for name, weight in self._linears.items()
            if name == before or (name.startswith(_OF_LAYERS) and name not in others)
        }
        return list(seen.values())
