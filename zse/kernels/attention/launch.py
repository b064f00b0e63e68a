"""How to launch the attention kernels. Neither torch nor triton is needed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.errors import UnsupportedModelError
from zse.kernels.attention.variants import (
    DECODE_FORMS,
    GATE_COLUMNS,
    INT8_OUTPUT_HEAD_DIMS,
    MAX_GROUP,
    PREFILL_FORMS,
    PREFILL_HEAD_DIMS,
    DecodeForm,
    decode_tile,
    decode_variant_for,
    heads_of_form,
    output_gate_variant,
    prefill_form,
    prefill_variant,
)
from zse.kernels.layout import (
    ACTIVATION_GROUP,
    FAMILY_HEAD_DIMS,
    HEAD_DIMS,
    MOST_GATED_DIM,
    TEXT_HEAD_DIMS,
    Quantized,
    activation_addresses,
    check_head_dim,
)
from zse.records import record

if TYPE_CHECKING:
    from zse.device.facts import DeviceFacts
    from zse.kernels.launcher import Launcher
    from zse.kernels.layout import Activation, BlockTables, HeadInputs, HeadShape, PagedCache
    from zse.kernels.variant import Variant

MAX_SPLITS = 64
PROGRAMS_A_MULTIPROCESSOR, ROUNDED_PROGRAMS = 2, 4
"""Programs that splits make up for; those over rounded caches wait for their own work more than for
memory, and twice as many hide that: 147 us for 256 of eight rows of 30,000 tokens on an H200."""


@record
class AttentionRules:
    """What a layer's attention sees and how it weighs it."""

    window: int = 0
    """Positions that a query sees, its own included; 0 for all before it."""
    softcap: float = 0.0
    """Bound of scores, ``softcap * tanh(score / softcap)``; 0 for none."""
    scale: float = 0.0
    """Factor on scores; 0 for 1 / sqrt(head_dim)."""
    sinks: int = 0
    """Address of float32 [num_heads], a logit a head that takes its share of the softmax; or 0."""
    whole: bool = False
    """Whether tokens see what follows them, too, and a window reaches to both sides."""


@record
class DecodeWorkspace:
    """Device memory that one decode attention needs besides its operands.

    Launches that follow each other in one stream may share it. Counters must be zero before the
    first launch ever; each launch leaves them at zero.
    """

    partials: int
    """Address of ``decode_partials_bytes`` bytes, aligned to 16."""
    counters: int
    """Address of ``decode_counters_bytes`` bytes, aligned to 16, zero at first."""


def attention_output_can_be_quantized(shape: HeadShape) -> bool:
    """Whether the decode attention can store int8: a program must own whole groups of 128."""
    columns = shape.group * shape.head_dim
    return shape.head_dim in INT8_OUTPUT_HEAD_DIMS and columns % ACTIVATION_GROUP == 0


def decode_splits(
    rows: int,
    kv_heads: int,
    device: DeviceFacts,
    max_tokens: int = 0,
    *,
    is_rounded: bool = False,
) -> int:
    """Return along how many programs a sequence is split, the same for every step of a graph.

    Args:
        rows: Tokens of the step.
        max_tokens: Most tokens that a query can see; 0 when unknown.
        is_rounded: Whether the cache has fewer than 16 bits.
    """
    programs = ROUNDED_PROGRAMS if is_rounded else PROGRAMS_A_MULTIPROCESSOR
    most = MAX_SPLITS * programs // PROGRAMS_A_MULTIPROCESSOR
    wanted = device.multiprocessors * programs // (rows * kv_heads)
    tiles = -(-max_tokens // decode_tile(128)) if max_tokens else most
    return max(1, min(wanted, tiles, most))


def decode_partials_bytes(rows: int, shape: HeadShape, splits: int) -> int:
    return rows * shape.num_heads * splits * (shape.head_dim + 2) * 4


def decode_counters_bytes(rows: int, shape: HeadShape) -> int:
    return rows * shape.kv_heads * 4


def attention_decode(
    launcher: Launcher,
    inputs: HeadInputs,
    shape: HeadShape,
    cache: PagedCache,
    tables: BlockTables,
    workspace: DecodeWorkspace,
    output: Activation,
    *,
    rules: AttentionRules,
    splits: int = 0,
    early: bool = False,
    tuned: Variant | None = None,
) -> None:
    """Attend to the paged cache with one new token a row, whose key and value are written to it.

    Row i belongs to sequence i of ``tables``.

    Args:
        inputs: Summands of the joined product of each row, and what belongs to it.
        shape: Heads; at most 16 query heads for each key-value head.
        cache: Keys and values of the positions before; the new ones are written.
        tables: Blocks of each row's sequence, the new token's block included.
        workspace: Memory for parts; sized for the same splits.
        output: [rows, num_heads * head_dim]; quantized only where
            ``attention_output_can_be_quantized`` says so.
        splits: Programs a sequence is split along; 0 for ``decode_splits``.
        early: Whether what rows see of the cache, positions and blocks are there before the kernel
            ahead has ended: no kernel since the last copy to the device writes them.
        tuned: Another compiled form to use, when forms are compared.

    Raises:
        UnsupportedModelError: No kernel takes these heads.
    """
    form = _decode_form(inputs, shape, cache, output, rules)
    rows = inputs.qkv.rows
    is_rounded = cache.dtype != "bf16"
    splits = splits or decode_splits(rows, shape.kv_heads, launcher.device, is_rounded=is_rounded)
    output_scales, output_sums, outputs = activation_addresses(output)
    stats = workspace.partials + rows * shape.num_heads * splits * shape.head_dim * 4
    flags = (int(shape.is_gated), int(rules.sinks != 0))
    family = (*inputs.numbers_of(shape), inputs.value_epsilon, *flags)
    launcher.launch(
        tuned or decode_variant_for(form, launcher.device.target, splits),
        (rows, shape.kv_heads, splits),
        *inputs.addresses,
        tables.address,
        *cache.addresses,
        outputs,
        output_scales,
        output_sums,
        workspace.partials,
        stats,
        workspace.counters,
        *((rules.sinks,) if form.family else ()),
        *inputs.numbers,
        int(inputs.key_factors != 0),
        *_numbers(tables, shape, rules),
        inputs.epsilon,
        int(early),
        *(family if form.family else ()),
    )


def _decode_form(
    inputs: HeadInputs,
    shape: HeadShape,
    cache: PagedCache,
    output: Activation,
    rules: AttentionRules,
) -> DecodeForm:
    """Return the compiled form that a launch needs; refuse what there is none for."""
    family = bool(rules.sinks) or not inputs.is_usual(shape)
    taken = FAMILY_HEAD_DIMS if family else HEAD_DIMS
    check_head_dim(shape.head_dim, cache=cache.dtype, taken=taken)
    group, rest = divmod(shape.num_heads, shape.kv_heads)
    quantized = isinstance(output, Quantized)
    if rest or group > MAX_GROUP:
        raise UnsupportedModelError(
            f"{shape.num_heads} query heads over {shape.kv_heads} key-value heads; expected a "
            f"whole number up to {MAX_GROUP} each"
        )
    if quantized and not attention_output_can_be_quantized(shape):
        raise UnsupportedModelError(
            f"{group} heads of {shape.head_dim} columns cannot be int8 activations; "
            f"expected a multiple of {ACTIVATION_GROUP} columns",
            hint="Use 16-bit activations for the output matrix.",
        )
    if shape.is_gated and shape.head_dim > MOST_GATED_DIM:
        raise UnsupportedModelError(
            f"heads of {shape.head_dim} columns are gated; expected at most {MOST_GATED_DIM}"
        )
    form = DecodeForm(
        head_dim=shape.head_dim,
        heads=heads_of_form(shape.head_dim, group, family=family),
        cache=cache.dtype,
        quantized_output=quantized,
        head_norm=inputs.q_norm != 0,
        softcap=rules.softcap > 0,
        family=family,
    )
    if form not in DECODE_FORMS:
        raise UnsupportedModelError(f"there is no decode attention for {form}")
    return form


@record
class PrefillTiles:
    """Tiles of ``prefill_tiles`` on the device: addresses of int32 arrays, one entry a tile."""

    count: int
    first_rows: int
    num_rows: int
    table_rows: int
    first_positions: int
    ends: int = 0
    """Positions behind the last token of each tile's text, for rules of whole texts."""


def attention_prefill(
    launcher: Launcher,
    queries_address: int,
    shape: HeadShape,
    cache: PagedCache,
    tables: BlockTables,
    tiles: PrefillTiles,
    output_address: int,
    *,
    rules: AttentionRules,
    tuned: Variant | None = None,
) -> None:
    """Attend to the paged cache with the rows of some chunks; their own keys are in it already.

    Args:
        queries_address: bfloat16 [rows, num_heads, head_dim], as ``rope_store`` leaves them.
        cache: Keys and values up to each chunk's last token.
        tiles: Cut for ``PREFILL_QUERIES`` tokens each.
        output_address: bfloat16 [rows, num_heads * head_dim].
        tuned: Another compiled form to use, when forms are compared.

    Raises:
        UnsupportedModelError: No kernel takes these heads.
    """
    taken = TEXT_HEAD_DIMS if rules.whole else PREFILL_HEAD_DIMS
    check_head_dim(shape.head_dim, cache=cache.dtype, taken=taken)
    form = prefill_form(
        shape.head_dim,
        launcher.device.target,
        cache=cache.dtype,
        window=rules.window > 0,
        softcap=rules.softcap > 0,
        sinks=rules.sinks != 0,
        whole=rules.whole,
    )
    if form not in PREFILL_FORMS:
        raise UnsupportedModelError(f"there is no prefill attention for {form}")
    launcher.launch(
        tuned or prefill_variant(form),
        (shape.num_heads, tiles.count, 1),
        queries_address,
        *cache.addresses,
        tables.address,
        tiles.first_rows,
        tiles.num_rows,
        tiles.table_rows,
        tiles.first_positions,
        output_address,
        *((tiles.ends,) if rules.whole else (rules.sinks,) if rules.sinks else ()),
        *_numbers(tables, shape, rules),
    )


def output_gate(
    launcher: Launcher, inputs: HeadInputs, shape: HeadShape, output_address: int
) -> None:
    """Multiply the attention of rows by the sigmoid of their gates, in place.

    The decode attention does this itself.

    Args:
        inputs: Summands of the joined product of these rows, gates among them.
        output_address: bfloat16 [rows, num_heads * head_dim].
    """
    launcher.launch(
        output_gate_variant(),
        (inputs.qkv.rows, -(-shape.query_columns // GATE_COLUMNS), 1),
        inputs.qkv.values,
        inputs.bias,
        output_address,
        *inputs.numbers,
        shape.qkv_columns,
        shape.query_columns,
    )


def _numbers(
    tables: BlockTables, shape: HeadShape, rules: AttentionRules
) -> tuple[int | float, ...]:
    scale = rules.scale or float(shape.head_dim) ** -0.5
    heads = (shape.num_heads, shape.kv_heads)
    return (tables.stride, *heads, rules.window, rules.softcap, scale)
