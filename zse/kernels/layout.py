"""What kernels and those who launch them agree on: how activations and the KV cache lie in memory.

Addresses and sizes, nothing owned. The numbers are also compiled into kernels, which take them
from here.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from zse.errors import UnsupportedModelError
from zse.records import record

ACTIVATION_GROUP = 128
"""Consecutive activations that share an int8 scale."""
PIECE_CODES = 32
"""Int8 activations that the kernels for few rows take at once: rows are whole pieces."""
BLOCK_TOKENS = 32
"""Tokens of one cache block."""
CONTEXT_ENTRY = 64
"""Factor of a block's number in a list of blocks that says how many tokens each has, too."""
SCALE_CHANNELS = 32
"""Channels of an int8 key or value that share a scale."""
HEAD_DIMS = (64, 80, 96, 128, 256)
FAMILY_HEAD_DIMS = (64, 128, 256, 512)
"""Head widths of families whose heads are gated, turn in part or not at all, and the like."""
TEXT_HEAD_DIMS = (32, 64)
"""Head widths of encoders."""
MOST_GATED_DIM = 256
"""Width of the widest heads that may be gated."""
INT8_HEAD_DIMS = (64, 128, 256, 512)
"""Head widths that an int8 cache takes: their halves are whole groups of 32 channels."""
INT4_HEAD_DIMS = (64, 128, 256)
"""Head widths that a cache of four bits takes."""
NARROW_SCALE_CHANNELS = 16
"""Channels of a key or value in four bits that share a scale."""
TURNED_CHANNELS = 32
"""Channels of a key that are turned together before they are kept in four bits."""
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu2", "swiglu_oai")
"""Functions between the matrices of an MLP; kernels know them by number. The last one is always
gated: ``gate * sigmoid(1.702 * gate) * (up + 1)`` of a bounded gate and a bounded up."""
NO_LIMIT = 3e38
"""Bound of what is not bounded."""
GREEDY_BELOW = 1e-5
"""Temperatures below this mean the most likely token."""
MAX_ALTERNATIVES = 20
"""Alternatives that are reported for each row when log-probabilities are asked for."""
MASK_BITS = 32
"""Tokens in a word of a mask: bit i of word w is token 32 * w + i."""
NUM_BINS = 16
"""Bins into which a pass of the search for a threshold sorts a row's logits."""
ADAPTER_ROWS, ADAPTER_PROMPT_ROWS = 16, 64
"""Rows of a tile with one adapter: of decode steps, and of steps with prompts."""
STATE_SIZE = 4
"""Numbers of each type that kernels of the truncation hand on for a row."""


@record
class Quantized:
    """Int8 activations: ``value = code * scale`` of its group of 128 columns."""

    rows: int
    columns: int
    codes: int
    """Address of int8 [rows, columns]."""
    scales: int
    """Address of float32 [rows, groups]."""
    sums: int
    """Address of float32 [rows, groups]: scale times the sum of the group's codes."""

    @property
    def groups(self) -> int:
        """Groups of a row; the last one may be shorter than the others."""
        return -(-self.columns // ACTIVATION_GROUP)


@record
class Plain:
    """16-bit activations."""

    rows: int
    columns: int
    values: int
    """Address of bfloat16 [rows, columns]."""


@record
class Turned:
    """Int8 activations with one scale a token, each run of 128 columns turned.

    See ``zse.kernels.linear.triton.rotate``: a matrix that is turned alike gives the same products.
    """

    rows: int
    columns: int
    codes: int
    """Address of int8 [rows, columns]."""
    scales: int
    """Address of float32 [rows]."""


@record
class Partials:
    """Float32 summands of a matrix product that was split along K; their sum is the result.

    The reader adds them in order of the first dimension, so the result does not depend on which
    program finished first.
    """

    rows: int
    columns: int
    splits: int
    values: int
    """Address of float32 [splits, rows, columns]."""
    whole_rows: int = 0
    """Rows of the product that these are a part of, if they are: the distance between splits."""

    @property
    def split_rows(self) -> int:
        """Rows from the start of one split to the start of the next."""
        return self.whole_rows or self.rows

    def part(self, first_row: int, rows: int) -> Partials:
        return Partials(
            rows=rows,
            columns=self.columns,
            splits=self.splits,
            values=self.values + first_row * self.columns * 4,
            whole_rows=self.split_rows,
        )


Activation: TypeAlias = Quantized | Plain


HeadPart: TypeAlias = Literal["query", "gate", "key", "value"]
PLAIN_PARTS: tuple[HeadPart, ...] = ("query", "key", "value")


@record
class HeadShape:
    """How many heads of which width."""

    num_heads: int
    kv_heads: int
    head_dim: int
    parts: tuple[HeadPart, ...] = PLAIN_PARTS
    """What a row of the joined product holds: all heads of one part after those of another. Without
    values, keys are the values too; without keys, another layer's are read."""

    @property
    def qkv_columns(self) -> int:
        """Columns of the joined product."""
        return self.joined_heads * self.head_dim

    @property
    def query_columns(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def group(self) -> int:
        """Query heads that share a key-value head."""
        return self.num_heads // self.kv_heads

    @property
    def joined_heads(self) -> int:
        """Heads of a row of the joined product."""
        return sum(map(self._count, self.parts))

    def first_head(self, part: HeadPart) -> int:
        """Return the head of the joined product at which a part that it has starts."""
        return sum(map(self._count, self.parts[: self.parts.index(part)]))

    @property
    def stores(self) -> bool:
        """Whether the layer has keys and values of its own."""
        return "key" in self.parts

    @property
    def is_gated(self) -> bool:
        return "gate" in self.parts

    @property
    def numbers(self) -> tuple[int, ...]:
        """Heads of a row, the first key, the first value, and whether these are stored."""
        first_key = self.first_head("key") if self.stores else 0
        first_value = self.first_head("value") if "value" in self.parts else first_key
        return self.joined_heads, first_key, first_value, int(self.stores)

    def _count(self, part: HeadPart) -> int:
        return self.num_heads if part in ("query", "gate") else self.kv_heads


@record
class HeadInputs:
    """Everything that turns the joined product into heads of q, k and v."""

    qkv: Partials
    """Summands, [rows, columns of the heads' joined product]."""
    cosines_sines: int
    """Address of the table that ``rope_table`` made; 0 where no column turns."""
    positions: int
    """Address of int32 [rows]."""
    bias: int = 0
    """Address of float32 [columns of qkv], 0 for none."""
    q_norm: int = 0
    """Address of float32 [head_dim], 0 for no head norm."""
    k_norm: int = 0
    """Address of float32 [head_dim], 0 for no head norm."""
    epsilon: float = 1e-6
    """Of the head norm."""
    rotary_dim: int | None = None
    """Columns of a head that turn, the first ones; None for all."""
    value_epsilon: float = 0.0
    """Of the norm without weight of each head's value; 0 for none."""
    key_factors: int = 0
    """Address of float32 [kv_heads, head_dim]: keys of an int8 cache are divided by them, queries
    multiplied; the same for both columns of a pair that turns. 0 for none."""

    def is_usual(self, shape: HeadShape) -> bool:
        """Whether rows are q, k and v, heads turn as a whole, and values are as they come."""
        turns = self.rotary_dim in (None, shape.head_dim)
        return shape.parts == PLAIN_PARTS and turns and not self.value_epsilon

    def family_numbers(self, shape: HeadShape) -> tuple[int, ...]:
        """Return what kernels are told of heads that are not as usual; nothing where they are."""
        return () if self.is_usual(shape) else self.numbers_of(shape)

    def numbers_of(self, shape: HeadShape) -> tuple[int, ...]:
        """Return where heads lie and how they turn, as the kernels of families take it."""
        turning = shape.head_dim if self.rotary_dim is None else self.rotary_dim
        return (*shape.numbers, turning // 2, int(self.value_epsilon > 0))

    @property
    def addresses(self) -> tuple[int, ...]:
        """Addresses as the kernels take them, from the product to the positions."""
        return (
            self.qkv.values,
            self.bias,
            self.q_norm,
            self.k_norm,
            self.key_factors,
            self.cosines_sines,
            self.positions,
        )

    @property
    def numbers(self) -> tuple[int, ...]:
        """Rows of a summand, summands, and whether there is a bias, as the kernels take them."""
        return self.qkv.split_rows, self.qkv.splits, int(self.bias != 0)


CacheDtype: TypeAlias = Literal["bf16", "int8", "int4"]
"""What kernels read keys and values as."""
CACHES_OF_WIDTHS: dict[CacheDtype, tuple[int, ...]] = {
    "bf16": tuple(sorted({*HEAD_DIMS, *FAMILY_HEAD_DIMS, *TEXT_HEAD_DIMS})),
    "int8": INT8_HEAD_DIMS,
    "int4": INT4_HEAD_DIMS,
}
"""Head widths of each type of cache."""
CACHE_POINTERS: dict[CacheDtype, dict[str, str]] = {
    "bf16": {},
    "int8": {"keys": "*i8", "values": "*i8"},
    "int4": {"keys": "*u8", "values": "*u8", "key_scales": "*u8", "value_scales": "*u8"},
}
"""Types of a cache's pointers where they are not those of bfloat16 with float16 scales; kernels
tell caches apart by them."""


@record
class PagedCache:
    """Keys and values of one layer, in blocks of 32 tokens."""

    keys: int
    """Address of [num_blocks, kv_heads, 32, head_dim], bfloat16 or int8; of uint8 [..., head_dim /
    2], where a byte has columns i and i + head_dim / 2, for int4."""
    values: int
    """Address, likewise."""
    key_scales: int = 0
    """Address of float16 [num_blocks, kv_heads, 32, head_dim / 32] for int8, of uint8 [...,
    head_dim / 16], the upper bytes of float16, for int4; 0 for bfloat16."""
    value_scales: int = 0
    """Address, likewise."""
    is_narrow: bool = False
    """Whether what has scales has four bits."""

    @property
    def quantized(self) -> bool:
        return self.key_scales != 0

    @property
    def dtype(self) -> CacheDtype:
        return "bf16" if not self.quantized else "int4" if self.is_narrow else "int8"

    @property
    def addresses(self) -> tuple[int, ...]:
        return self.keys, self.values, self.key_scales, self.value_scales


@record
class BlockTables:
    """Which block holds which 32 tokens of each sequence."""

    address: int
    """Address of int32 [sequences, stride]."""
    stride: int


def adapter_tile_rows(prefill_rows: int) -> int:
    """Return the rows of a tile with one adapter, in a step with so many rows of prompts."""
    return ADAPTER_PROMPT_ROWS if prefill_rows else ADAPTER_ROWS


def padded(size: int) -> int:
    """Return the smallest power of two that is not below ``size``."""
    return 1 << (size - 1).bit_length()


def check_head_dim(head_dim: int, *, cache: CacheDtype, taken: tuple[int, ...] = HEAD_DIMS) -> None:
    """Refuse a head width that no kernel takes.

    Raises:
        UnsupportedModelError: No kernel takes it, or none with such a cache.
    """
    allowed = [dim for dim in taken if dim in CACHES_OF_WIDTHS[cache]]
    if head_dim not in allowed:
        named = {"bf16": "a 16-bit", "int8": "an int8", "int4": "an int4"}[cache]
        raise UnsupportedModelError(
            f"head_dim {head_dim} with {named} cache; "
            f"expected one of {', '.join(map(str, allowed))}",
            hint="" if cache == "bf16" else "Use a 16-bit cache.",
        )


def summands(inputs: Partials | Plain) -> tuple[int, int]:
    """Return the rows from a summand to the next, and how many summands there are."""
    if isinstance(inputs, Partials):
        return inputs.split_rows, inputs.splits
    return inputs.rows, 1


def activation_addresses(output: Activation) -> tuple[int, int, int]:
    """Return the addresses of scales, sums (0 where there are none) and values.

    Raises:
        UnsupportedModelError: Quantized columns do not fill whole pieces of 32.
    """
    if isinstance(output, Plain):
        return 0, 0, output.values
    if output.columns % PIECE_CODES:
        raise UnsupportedModelError(
            f"{output.columns} columns cannot be int8 activations; "
            f"expected a multiple of {PIECE_CODES}",
            hint="Use 16-bit activations for this matrix.",
        )
    return output.scales, output.sums, output.codes
