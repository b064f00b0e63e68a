"""The compiled forms of ``delta``."""

from __future__ import annotations

from zse.errors import UnsupportedModelError
from zse.kernels.layout import ACTIVATION_GROUP
from zse.kernels.variant import Kernel, Variant, number, pointer, variant

DECODE_MODULE = "zse.kernels.delta.triton.decode"
VERIFY_MODULE = "zse.kernels.delta.triton.verify"
PREFILL_MODULE = "zse.kernels.delta.triton.prefill"
HEAD_DIMS = (64, 128)
"""Widths of heads, the same for keys and values."""
CONVOLUTION_WIDTH = 4
CHUNK_TOKENS = 64
ROW_TOKENS = 16
"""Tokens of a program that treats each by itself."""
SCAN_COLUMNS = 32
"""Columns of a state that one program takes through a sequence."""

_HEADS = (number("key_heads"), number("value_heads"))
_INPUTS = (number("input_rows"), number("input_splits"))
_GATES = (number("gate_rows"), number("gate_splits"))
_RUNS = (pointer("first_rows", "i32"), pointer("num_rows", "i32"))
_STARTS = (pointer("first_positions", "i32"), pointer("slots", "i32"))
_STEPS = pointer("gates", "fp32", aligned=False)
"""Rows of steps and decays: two numbers a value head, of which there may be an odd number."""
_RATES = (_STEPS, pointer("decay", "fp32"), pointer("step_bias", "fp32"))
_WANTED = (pointer("wanted_keys", "bf16"), pointer("wanted_values", "bf16"))
DECODE = Kernel(
    name="delta.delta_decode",
    module=DECODE_MODULE,
    function="delta_decode",
    arguments=(
        pointer("inputs", "fp32"),
        _STEPS,
        pointer("convolution", "fp32"),
        pointer("decay", "fp32"),
        pointer("step_bias", "fp32"),
        pointer("norm", "fp32"),
        pointer("positions", "i32"),
        pointer("slots", "i32"),
        pointer("rings", "fp32"),
        pointer("states", "fp32"),
        pointer("outputs", "i8"),
        pointer("scales", "fp32"),
        pointer("sums", "fp32"),
        *_INPUTS,
        *_GATES,
        *_HEADS,
        number("epsilon", "fp32"),
    ),
)
VERIFY = Kernel(
    name="delta.delta_verify",
    module=VERIFY_MODULE,
    function="delta_verify",
    arguments=(*DECODE.arguments[:8], pointer("runs", "i32"), *DECODE.arguments[8:]),
)
CONVOLVE = Kernel(
    name="delta.delta_convolve",
    module=PREFILL_MODULE,
    function="delta_convolve",
    arguments=(
        pointer("inputs", "fp32"),
        pointer("convolution", "fp32"),
        pointer("rings", "fp32"),
        *_RUNS,
        *_STARTS,
        pointer("convolved", "bf16"),
        *_INPUTS,
        *_HEADS,
    ),
)
SOLVE = Kernel(
    name="delta.delta_solve",
    module=PREFILL_MODULE,
    function="delta_solve",
    arguments=(pointer("convolved", "bf16"), *_RATES, *_RUNS, *_WANTED, *_GATES, *_HEADS),
)
SCAN = Kernel(
    name="delta.delta_scan",
    module=PREFILL_MODULE,
    function="delta_scan",
    arguments=(
        pointer("convolved", "bf16"),
        *_RATES,
        *_RUNS,
        *_STARTS,
        *_WANTED,
        pointer("states", "fp32"),
        *_GATES,
        *_HEADS,
    ),
)
FINISH = Kernel(
    name="delta.delta_finish",
    module=PREFILL_MODULE,
    function="delta_finish",
    arguments=(
        pointer("inputs", "fp32"),
        pointer("mixed", "bf16"),
        pointer("norm", "fp32"),
        *_RUNS,
        *_STARTS,
        pointer("rings", "fp32"),
        pointer("outputs", "bf16"),
        *_INPUTS,
        *_HEADS,
        number("epsilon", "fp32"),
    ),
)


def decode_variant(head_dim: int, *, quantized: bool) -> Variant:
    return variant(
        DECODE,
        num_warps=8,
        types=None if quantized else {"outputs": "*bf16"},
        DIM=head_dim,
        TAPS=CONVOLUTION_WIDTH,
    )


def verify_variant(head_dim: int, *, quantized: bool) -> Variant:
    return variant(
        VERIFY,
        num_warps=8,
        types=None if quantized else {"outputs": "*bf16"},
        DIM=head_dim,
        TAPS=CONVOLUTION_WIDTH,
    )


def convolve_variant(head_dim: int) -> Variant:
    return variant(CONVOLVE, DIM=head_dim, TAPS=CONVOLUTION_WIDTH, TOKENS=ROW_TOKENS)


def solve_variant(head_dim: int) -> Variant:
    return variant(SOLVE, DIM=head_dim, TOKENS=CHUNK_TOKENS)


def scan_variant(head_dim: int) -> Variant:
    return variant(SCAN, DIM=head_dim, TOKENS=CHUNK_TOKENS, COLUMNS=SCAN_COLUMNS)


def finish_variant(head_dim: int) -> Variant:
    return variant(FINISH, DIM=head_dim, TAPS=CONVOLUTION_WIDTH, TOKENS=ROW_TOKENS)


def output_can_be_quantized(head_dim: int) -> bool:
    """Whether a decode program, which has one head, owns whole groups of activations."""
    return head_dim % ACTIVATION_GROUP == 0


def check_delta(key_dim: int, value_dim: int, convolution_width: int) -> None:
    """Refuse what no kernel takes.

    Raises:
        UnsupportedModelError: Heads have another width, or the convolution has.
    """
    if key_dim != value_dim or key_dim not in HEAD_DIMS:
        raise UnsupportedModelError(
            f"linear attention with keys of {key_dim} and values of {value_dim} columns; expected "
            f"the same of both, one of {', '.join(map(str, HEAD_DIMS))}"
        )
    if convolution_width != CONVOLUTION_WIDTH:
        raise UnsupportedModelError(
            f"a convolution over {convolution_width} tokens; expected {CONVOLUTION_WIDTH}"
        )


VARIANTS: tuple[Variant, ...] = tuple(
    form
    for head_dim in HEAD_DIMS
    for form in (
        *(
            single(head_dim, quantized=quantized)
            for single in (decode_variant, verify_variant)
            for quantized in (False, True)[: 1 + output_can_be_quantized(head_dim)]
        ),
        convolve_variant(head_dim),
        solve_variant(head_dim),
        scan_variant(head_dim),
        finish_variant(head_dim),
    )
)
"""The kernels of ``delta``."""
