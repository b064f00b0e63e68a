"""The Triton functions of ``linear`` and what they take."""

from __future__ import annotations

from zse.kernels.variant import Argument, Kernel, number, pointer


def _kernel(file: str, function: str, *arguments: Argument) -> Kernel:
    return Kernel(
        name=f"linear.{function}",
        module=f"zse.kernels.linear.triton.{file}",
        function=function,
        arguments=arguments,
    )


_WORDS = (pointer("codes", "i32"), pointer("scales", "fp32"))
"""Int8 activations, four a word, and their scales."""
_CODES = (pointer("codes", "i8"), pointer("x_scales", "fp32"))
"""Int8 activations and their scales."""
_RESULT = (pointer("outputs", "fp32"), number("rows"), number("N"))
_MATMUL = (
    pointer("values", "bf16"),
    pointer("weights", "bf16"),
    pointer("outputs", "fp32"),
    number("tokens"),
    number("rows"),
    number("steps"),
    number("stride"),
)

GEMV_INT4 = _kernel(
    "decode",
    "gemv_int4",
    *_WORDS,
    pointer("sums", "fp32"),
    pointer("weights", "i32"),
    pointer("scale_zeros", "i32"),
    *_RESULT,
    number("blocks"),
)
GEMV_INT3 = _kernel(
    "decode",
    "gemv_int3",
    *_WORDS,
    pointer("sums", "fp32"),
    pointer("weights", "i32"),
    pointer("scale_zeros", "i32"),
    *_RESULT,
    number("blocks"),
)
GEMV_INT2 = _kernel(
    "decode",
    "gemv_int2",
    *_WORDS,
    pointer("sums", "fp32"),
    pointer("weights", "i32"),
    pointer("scale_zeros", "i32"),
    *_RESULT,
    number("blocks"),
)
GEMV_NF4 = _kernel(
    "decode",
    "gemv_nf4",
    *_WORDS,
    pointer("weights", "i32"),
    pointer("absmaxes", "fp16"),
    *_RESULT,
    number("blocks"),
)
GEMV_MXFP4 = _kernel(
    "decode",
    "gemv_mxfp4",
    *_WORDS,
    pointer("weights", "i32"),
    pointer("exponents", "u8"),
    *_RESULT,
    number("blocks"),
)
GEMV_NL4 = _kernel(
    "decode",
    "gemv_nl4",
    *_WORDS,
    pointer("weights", "i32"),
    pointer("signed_scales", "u8"),
    *_RESULT,
    number("blocks"),
)
GEMV_NL4_PAIRS = _kernel(
    "decode",
    "gemv_nl4_pairs",
    *_WORDS,
    pointer("weights", "i32"),
    pointer("scale_pairs", "u16"),
    *_RESULT,
    number("blocks"),
)
GEMV_INT8 = _kernel(
    "decode",
    "gemv_int8",
    *_WORDS,
    pointer("weights", "i32"),
    pointer("row_scales", "fp32"),
    *_RESULT,
    number("blocks"),
)
GEMV_16 = _kernel(
    "decode",
    "gemv_16",
    pointer("values", "bf16"),
    pointer("weights", "bf16"),
    *_RESULT,
    number("eighths"),
)
DOT_FOUR_BIT = _kernel(
    "batch",
    "dot_four_bit",
    pointer("values", "bf16"),
    pointer("weights", "u8"),
    pointer("scales", "i32"),
    *_RESULT,
    number("groups"),
)
DOT_WHOLE = _kernel(
    "batch",
    "dot_whole",
    pointer("values", "bf16"),
    pointer("weights", "i8"),
    pointer("row_scales", "fp32"),
    *_RESULT,
    number("steps"),
)
IMMA_FOUR_BIT = _kernel(
    "batch",
    "imma_four_bit",
    *_CODES,
    pointer("x_sums", "fp32"),
    pointer("weights", "u8"),
    pointer("scales", "i32"),
    *_RESULT,
    number("blocks"),
)
IMMA_INT8 = _kernel(
    "batch",
    "imma_int8",
    *_CODES,
    pointer("weights", "i8"),
    pointer("row_scales", "fp32"),
    *_RESULT,
    number("blocks"),
)
IMMA_DIRECT = Kernel(
    name="linear.imma_direct",
    module="zse.kernels.linear.triton.direct",
    function="imma_direct",
    arguments=(
        pointer("codes", "i32"),
        pointer("x_scales", "fp32"),
        pointer("x_sums", "fp32"),
        pointer("weights", "i32"),
        pointer("scales", "i32"),
        *_RESULT,
        number("blocks"),
    ),
    targets=("sm_90",),
)
IMMA_INT8_APART = Kernel(
    name="linear.imma_int8_apart",
    module="zse.kernels.linear.triton.apart_groups",
    function="imma_int8_apart",
    arguments=IMMA_INT8.arguments,
    targets=("sm_90",),
)
WIDEN_FOUR_BIT = _kernel(
    "prefill",
    "widen_four_bit",
    pointer("weights", "u8"),
    pointer("scales", "i32"),
    pointer("outputs", "bf16"),
    number("rows"),
    number("groups"),
)
WIDEN_INT8 = _kernel(
    "prefill",
    "widen_int8",
    pointer("weights", "i8"),
    pointer("row_scales", "fp32"),
    pointer("outputs", "bf16"),
    number("rows"),
    number("blocks"),
)
MATMUL = _kernel("prefill", "matmul", *_MATMUL)
MATMUL_STREAM = _kernel("prefill", "matmul_stream", *_MATMUL)
_MATMUL_8BIT = (
    pointer("values", "i8"),
    pointer("token_scales", "fp32"),
    pointer("weights", "i8"),
    pointer("row_scales", "fp32"),
    pointer("outputs", "fp32"),
    number("tokens"),
    number("rows"),
    number("steps"),
    number("stride"),
)
MATMUL_8BIT = _kernel("prefill_8bit", "matmul_8bit", *_MATMUL_8BIT)
MATMUL_8BIT_SPLIT = _kernel("prefill_8bit", "matmul_8bit_split", *_MATMUL_8BIT)
MATMUL_8BIT_APART = Kernel(
    name="linear.matmul_8bit_apart",
    module="zse.kernels.linear.triton.apart",
    function="matmul_8bit_apart",
    arguments=_MATMUL_8BIT,
    targets=("sm_90",),
)
_STORED = (pointer("weights", "u8"), pointer("scales", "i32"), pointer("maxima", "fp32"))
ROW_MAXIMA = _kernel("rotate", "row_maxima", *_STORED, number("rows"), number("blocks"))
TURN_ROWS = _kernel(
    "rotate",
    "turn_rows",
    *_STORED,
    pointer("outputs", "i8"),
    pointer("row_scales", "fp32"),
    number("rows"),
    number("blocks"),
)
TURN_TOKENS = _kernel(
    "rotate",
    "turn_tokens",
    pointer("values", "bf16"),
    pointer("outputs", "i8"),
    pointer("scales", "fp32"),
    number("tokens"),
    number("row_groups"),
)
_FOLLOWING = (
    pointer("squares", "fp32"),
    number("epsilon", "fp32"),
    pointer("next_codes", "i8"),
    pointer("next_scales", "fp32"),
    pointer("next_sums", "fp32"),
    pointer("counters", "i32"),
    pointer("residual", "fp32"),
    pointer("norm", "fp32"),
    pointer("next_squares", "fp32"),
)
"""What a product takes whose programs do what follows it, beside its own operands."""
GEMV_CLOSED = _kernel(
    "closing",
    "gemv_closed",
    *_WORDS,
    pointer("sums", "fp32"),
    pointer("weights", "i32"),
    pointer("weight_scales", "i32"),
    *_RESULT,
    number("blocks"),
    *_FOLLOWING,
)
