"""The Triton functions of ``linear`` and what they take."""

from __future__ import annotations

from zse.kernels.variant import Kernel, number, pointer

DECODE = "zse.kernels.linear.triton_decode"
PLAIN = "zse.kernels.linear.triton_plain"
BATCH = "zse.kernels.linear.triton_batch"
PREFILL = "zse.kernels.linear.triton_prefill"
_SIZES = (number("rows"), number("N"))

GEMV_INT4 = Kernel(
    name="linear.gemv_int4",
    module=DECODE,
    function="gemv_int4",
    arguments=(
        pointer("codes", "i32"),
        pointer("scales", "fp32"),
        pointer("sums", "fp32"),
        pointer("weights", "i32"),
        pointer("scale_zeros", "i32"),
        pointer("outputs", "fp32"),
        *_SIZES,
        number("blocks"),
    ),
)
GEMV_NF4 = Kernel(
    name="linear.gemv_nf4",
    module=DECODE,
    function="gemv_nf4",
    arguments=(
        pointer("codes", "i32"),
        pointer("scales", "fp32"),
        pointer("weights", "i32"),
        pointer("absmaxes", "fp16"),
        pointer("outputs", "fp32"),
        *_SIZES,
        number("blocks"),
    ),
)
GEMV_INT8 = Kernel(
    name="linear.gemv_int8",
    module=DECODE,
    function="gemv_int8",
    arguments=(
        pointer("codes", "i32"),
        pointer("scales", "fp32"),
        pointer("weights", "i32"),
        pointer("row_scales", "fp32"),
        pointer("outputs", "fp32"),
        *_SIZES,
        number("blocks"),
    ),
)
GEMV_16 = Kernel(
    name="linear.gemv_16",
    module=PLAIN,
    function="gemv_16",
    arguments=(
        pointer("values", "bf16"),
        pointer("weights", "bf16"),
        pointer("outputs", "fp32"),
        *_SIZES,
        number("eighths"),
    ),
)
DOT_FOUR_BIT = Kernel(
    name="linear.dot_four_bit",
    module=BATCH,
    function="dot_four_bit",
    arguments=(
        pointer("values", "bf16"),
        pointer("weights", "u8"),
        pointer("scales", "i32"),
        pointer("outputs", "fp32"),
        *_SIZES,
        number("groups"),
    ),
)
DOT_WHOLE = Kernel(
    name="linear.dot_whole",
    module=BATCH,
    function="dot_whole",
    arguments=(
        pointer("values", "bf16"),
        pointer("weights", "i8"),
        pointer("row_scales", "fp32"),
        pointer("outputs", "fp32"),
        *_SIZES,
        number("steps"),
    ),
)
IMMA_FOUR_BIT = Kernel(
    name="linear.imma_four_bit",
    module=BATCH,
    function="imma_four_bit",
    arguments=(
        pointer("codes", "i8"),
        pointer("x_scales", "fp32"),
        pointer("x_sums", "fp32"),
        pointer("weights", "u8"),
        pointer("scales", "i32"),
        pointer("outputs", "fp32"),
        *_SIZES,
        number("blocks"),
    ),
)
IMMA_INT8 = Kernel(
    name="linear.imma_int8",
    module=BATCH,
    function="imma_int8",
    arguments=(
        pointer("codes", "i8"),
        pointer("x_scales", "fp32"),
        pointer("weights", "i8"),
        pointer("row_scales", "fp32"),
        pointer("outputs", "fp32"),
        *_SIZES,
        number("blocks"),
    ),
)
WIDEN_FOUR_BIT = Kernel(
    name="linear.widen_four_bit",
    module=PREFILL,
    function="widen_four_bit",
    arguments=(
        pointer("weights", "u8"),
        pointer("scales", "i32"),
        pointer("outputs", "bf16"),
        number("rows"),
        number("groups"),
    ),
)
WIDEN_INT8 = Kernel(
    name="linear.widen_int8",
    module=PREFILL,
    function="widen_int8",
    arguments=(
        pointer("weights", "i8"),
        pointer("row_scales", "fp32"),
        pointer("outputs", "bf16"),
        number("rows"),
        number("blocks"),
    ),
)
_MATMUL_ARGUMENTS = (
    pointer("values", "bf16"),
    pointer("weights", "bf16"),
    pointer("outputs", "fp32"),
    number("tokens"),
    number("rows"),
    number("steps"),
    number("stride"),
)
MATMUL = Kernel(
    name="linear.matmul", module=PREFILL, function="matmul", arguments=_MATMUL_ARGUMENTS
)
MATMUL_STREAM = Kernel(
    name="linear.matmul_stream",
    module=PREFILL,
    function="matmul_stream",
    arguments=_MATMUL_ARGUMENTS,
)
KERNELS = (
    GEMV_INT4,
    GEMV_NF4,
    GEMV_INT8,
    GEMV_16,
    DOT_FOUR_BIT,
    DOT_WHOLE,
    IMMA_FOUR_BIT,
    IMMA_INT8,
    WIDEN_FOUR_BIT,
    WIDEN_INT8,
    MATMUL,
    MATMUL_STREAM,
)
