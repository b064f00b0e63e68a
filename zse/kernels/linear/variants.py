"""The compiled forms of ``linear``, and which of them suit a matrix."""

from __future__ import annotations

from typing import TypeAlias

from zse.kernels.linear.closed_forms import closed_forms
from zse.kernels.linear.definitions import (
    DOT_FOUR_BIT,
    DOT_WHOLE,
    GEMV_16,
    GEMV_INT2,
    GEMV_INT3,
    GEMV_INT4,
    GEMV_INT8,
    GEMV_MXFP4,
    GEMV_NF4,
    GEMV_NL4,
    GEMV_NL4_PAIRS,
    IMMA_FOUR_BIT,
    IMMA_INT8,
    IMMA_INT8_APART,
    MATMUL,
    MATMUL_8BIT,
    MATMUL_8BIT_APART,
    MATMUL_8BIT_SPLIT,
    MATMUL_STREAM,
    ROW_MAXIMA,
    TURN_ROWS,
    TURN_TOKENS,
    WIDEN_FOUR_BIT,
    WIDEN_INT8,
)
from zse.kernels.linear.direct_forms import DIRECT_FORMATS, DIRECT_ROWS, direct_forms
from zse.kernels.linear.weight import GROUPED_SCHEMES, PLAIN_SCHEMES
from zse.kernels.variant import Constant, Kernel, Variant, variant

ELEMENT = {"int8": "*i8", "bf16": "*bf16", "fp16": "*fp16"}
SCALE = {
    "int4": "*i32",
    "int3": "*i32",
    "int2": "*i32",
    "nf4": "*fp16",
    "nl4": "*u8",
    "nl4_pairs": "*u16",
    "mxfp4": "*u8",
}
DECODE_ROWS = 4
"""Most tokens of a program that works without tensor cores."""
COMMON_FORMATS = (
    ("int4", 128),
    ("int4", 64),
    ("nf4", 64),
    ("nl4_pairs", 32),
    ("nl4", 32),
    ("mxfp4", 32),
    ("int8", 0),
    ("bf16", 0),
)
"""Schemes and group sizes that get a form for every batch size."""
OTHER_FORMATS = (
    ("int4", 32),
    ("int3", 64),
    ("int3", 32),
    ("int2", 64),
    ("int2", 32),
    ("nf4", 128),
    ("nf4", 32),
    ("fp16", 0),
)
STEP_COLUMNS = 64
"""Columns of a step of a kernel over whole rows; rows are multiples of it."""
TURNED_COLUMNS = 128
"""Columns that are turned together, and of a step of products of 8-bit numbers."""
FEW_TOKENS = 16
"""Tokens of the smallest tile of products of 8-bit numbers."""
TURNED_BLOCKS = 8
"""Runs of such columns that a program turns of each of its rows."""
TOKEN_GROUPS = 32
"""Runs of such columns of a token that a program turns at once."""
_GEMVS = {
    "int4": GEMV_INT4,
    "int3": GEMV_INT3,
    "int2": GEMV_INT2,
    "nf4": GEMV_NF4,
    "nl4": GEMV_NL4,
    "nl4_pairs": GEMV_NL4_PAIRS,
    "mxfp4": GEMV_MXFP4,
    "int8": GEMV_INT8,
}
Constants: TypeAlias = tuple[tuple[str, Constant], ...]


def gemv(scheme: str, group: int, rows: int, *, r: int, t: int, c: int) -> Variant:
    """Return a form for few tokens.

    Args:
        scheme: Of the matrix; plain schemes take 16-bit activations, others int8.
        group: Columns that share a scale; 0 where the scheme has none.
        rows: Tokens of a program: 1, 2 or 4.
        r: Rows of the matrix that a thread works on.
        t: Threads along the rows; a program has r * t of them.
        c: Threads along the columns; t * c is a multiple of 32.
    """
    kernel = _GEMVS.get(scheme, GEMV_16)
    return Variant(
        kernel=kernel,
        constants=(*_scheme(scheme, group)[1:], ("ROWS", rows), ("R", r), ("T", t), ("C", c)),
        num_warps=t * c // 32,
        types=(("weights", ELEMENT[scheme]),) if kernel is GEMV_16 else (),
    )


def dot(scheme: str, group: int, *, bn: int, bm: int, warps: int = 4, stages: int = 4) -> Variant:
    """Return a form for a batch of 16-bit activations: tiles of bn rows and bm tokens."""
    grouped = scheme in GROUPED_SCHEMES
    tile: Constants = (("BN", bn), ("BM", bm), *(() if grouped else (("BK", STEP_COLUMNS),)))
    return Variant(
        kernel=DOT_FOUR_BIT if grouped else DOT_WHOLE,
        constants=(*_scheme(scheme, group), *tile, ("STAGES", stages)),
        num_warps=warps,
        num_stages=stages,
        types=(("scales", SCALE[scheme]),) if grouped else (("weights", ELEMENT[scheme]),),
    )


def imma(scheme: str, group: int, *, bn: int, bm: int, warps: int = 4, stages: int = 4) -> Variant:
    """Return a form for a batch of int8 activations: tiles of bn rows and bm tokens."""
    grouped = scheme in GROUPED_SCHEMES
    head = _scheme(scheme, group) if grouped else ()
    return Variant(
        kernel=IMMA_FOUR_BIT if grouped else IMMA_INT8,
        constants=(*head, ("BN", bn), ("BM", bm), ("STAGES", stages)),
        num_warps=warps,
        num_stages=stages,
        types=(("scales", SCALE[scheme]),) if grouped else (),
    )


def imma_int8_apart() -> Variant:
    """Return the form for a batch of int8 activations whose warps fetch and multiply apart."""
    return variant(IMMA_INT8_APART, num_stages=4, BN=256, BM=128, STAGES=4)


def widen(scheme: str, group: int) -> Variant:
    """Return the form that writes rows of a matrix as bfloat16."""
    if scheme == "int8":
        return variant(WIDEN_INT8, num_warps=4, BK=STEP_COLUMNS, BN=64)
    return Variant(
        kernel=WIDEN_FOUR_BIT,
        constants=(*_scheme(scheme, group), ("BN", 64)),
        num_warps=4,
        types=(("scales", SCALE[scheme]),),
    )


def matmul(
    weights: str,
    outputs: str,
    *,
    even: bool,
    bm: int = 128,
    bn: int = 128,
    warps: int = 8,
    stages: int = 4,
    kernel: Kernel = MATMUL,
) -> Variant:
    """Return a form for many tokens.

    Args:
        weights: ``bf16`` or ``fp16``.
        outputs: ``fp32`` or ``bf16``.
        even: Whether rows of the result are a multiple of 16 long.
        bm: Tokens of a tile.
        bn: Rows of the matrix of a tile.
        warps: Of a program.
        stages: Tiles on their way.
        kernel: ``MATMUL`` or ``MATMUL_STREAM``.
    """
    return variant(
        kernel,
        num_warps=warps,
        num_stages=stages,
        types={"weights": ELEMENT[weights], "outputs": f"*{outputs}"},
        BM=bm,
        BN=bn,
        BK=STEP_COLUMNS,
        GROUPED=8,
        STAGES=stages,
        EVEN=even,
    )


def matmul_forms(weights: str, outputs: str, *, even: bool, stream: bool) -> tuple[Variant, ...]:
    """Return the forms for many tokens, those with the smallest tiles first.

    Args:
        weights: ``bf16`` or ``fp16``.
        outputs: ``fp32`` or ``bf16``.
        even: Whether rows of the result are a multiple of 16 long.
        stream: Whether programs that stay are wanted where there are some.
    """
    if not (stream and even and weights == "bf16"):
        return (matmul(weights, outputs, even=even),)
    return tuple(
        matmul(weights, outputs, even=True, bn=bn, stages=stages, kernel=MATMUL_STREAM)
        for bn, stages in ((128, 4), (256, 3))
    )


def matmul_8bit(
    outputs: str,
    *,
    bm: int = 128,
    bn: int = 128,
    stages: int = 3,
    warps: int = 8,
    kernel: Kernel = MATMUL_8BIT,
    targets: tuple[str, ...] = (),
) -> Variant:
    """Return a form for many tokens by products of 8-bit numbers; see ``matmul``."""
    return variant(
        kernel,
        num_warps=warps,
        num_stages=stages,
        types={"outputs": f"*{outputs}"},
        targets=targets,
        BM=bm,
        BN=bn,
        BK=TURNED_COLUMNS,
        GROUPED=8,
        STAGES=stages,
        EVEN=True,
    )


def matmul_8bit_forms(outputs: str, *, apart: bool) -> tuple[Variant, ...]:
    """Return the forms for many tokens, those with the smallest tiles first.

    Args:
        outputs: ``fp32`` or ``bf16``.
        apart: Whether programs whose warps fetch and multiply apart are wanted.
    """
    if not apart:
        return (matmul_8bit(outputs),)
    return matmul_8bit_split(outputs), matmul_8bit_apart(outputs)


def matmul_8bit_apart(outputs: str, *, stages: int = 4, grouped: int = 8) -> Variant:
    """Return the form whose warps fetch and multiply apart."""
    return variant(
        MATMUL_8BIT_APART,
        num_stages=stages,
        types={"outputs": f"*{outputs}"},
        BM=128,
        BN=256,
        GROUPED=grouped,
        STAGES=stages,
    )


def matmul_8bit_split(outputs: str, tokens: int = 0) -> Variant:
    """Return the form for so many tokens by programs that may share a tile; 0 for many.

    Up to a tile of tokens more rows of the matrix, in smaller tiles, are on their way at once.
    """
    if outputs == "fp32" and 0 < tokens <= 128:
        return matmul_8bit(outputs, bn=64, stages=4, kernel=MATMUL_8BIT_SPLIT)
    return matmul_8bit(outputs, kernel=MATMUL_8BIT_SPLIT)


def matmul_8bit_few() -> Variant:
    """Return the form for up to FEW_TOKENS tokens: little is fetched of tokens that are not there.

    What is not there takes longer to fetch than what is.
    """
    return matmul_8bit("fp32", bm=FEW_TOKENS, bn=64, stages=4, warps=4, kernel=MATMUL_8BIT_SPLIT)


def matmul_8bit_deep() -> Variant:
    """Return the form of shared tiles whose programs have a multiprocessor for themselves."""
    targets = MATMUL_8BIT_APART.targets
    return matmul_8bit("fp32", stages=4, kernel=MATMUL_8BIT_SPLIT, targets=targets)


def turn(scheme: str, group: int) -> tuple[Variant, Variant]:
    """Return the forms that find the largest numbers of turned rows, and that write the rows."""
    types = (("weights", "*i8"), ("scales", "*fp32"))
    if scheme in GROUPED_SCHEMES:
        types = (("weights", "*u8"), ("scales", SCALE[scheme]))
    constants = (
        ("SCHEME", scheme),
        ("SCALED", group or TURNED_COLUMNS),
        ("BLOCKS", TURNED_BLOCKS),
        ("BN", 64),
    )
    maxima, rows = (
        Variant(kernel=kernel, constants=constants, num_warps=4, types=types)
        for kernel in (ROW_MAXIMA, TURN_ROWS)
    )
    return maxima, rows


def turn_tokens(columns: int) -> Variant:
    """Return the form that turns 16-bit activations of so many columns."""
    is_whole = columns <= TOKEN_GROUPS * TURNED_COLUMNS
    return variant(TURN_TOKENS, num_warps=4, GROUPS=TOKEN_GROUPS, WHOLE=is_whole)


def _scheme(scheme: str, group: int) -> Constants:
    if scheme in GROUPED_SCHEMES:
        return (("SCHEME", scheme), ("GROUP", group))
    return (("SCHEME", scheme),)


def decode_forms(scheme: str, group: int, rows: int) -> tuple[Variant, ...]:
    """Return the forms for up to ``DECODE_ROWS`` tokens."""
    width = 1 if rows == 1 else DECODE_ROWS
    shapes = [(4, 4, 8)]
    if (scheme, group) == ("int4", 128):
        width = min(width, 1 << (rows - 1).bit_length())
        shapes.append((4, 2, 32))
        if width == 1:
            shapes += [(4, 4, 32), (4, 4, 16), (8, 1, 32)]
    elif (scheme, group) in COMMON_FORMATS and width == 1:
        shapes.append((4, 2, 32))
        if scheme != "int4" and scheme in _GEMVS:
            shapes.append((4, 1, 32))
    return tuple(gemv(scheme, group, width, r=r, t=t, c=c) for r, t, c in shapes)


def imma_forms(scheme: str, group: int, rows: int) -> tuple[Variant, ...]:
    """Return the forms for a batch of tokens with int8 activations."""
    measured = (scheme, group) == ("int4", 128)
    if rows <= 16:
        # Not eight tokens a tile: as fast alone, but in a step, where kernels start before the ones
        # ahead of them have ended, it made the whole a sixth slower.
        wide = imma(scheme, group, bn=128, bm=16)
        return (imma(scheme, group, bn=64, bm=16), wide) if measured else (wide,)
    if rows <= 32 and scheme != "nf4":
        return (imma(scheme, group, bn=128, bm=32),)
    middle = imma(scheme, group, bn=64, bm=64)
    if measured:
        return (middle, imma(scheme, group, bn=128, bm=64))
    if scheme == "int8" and rows > 64:
        return (middle, imma(scheme, group, bn=64, bm=128, warps=8))
    return (middle,)


def dot_forms(scheme: str, group: int, rows: int) -> tuple[Variant, ...]:
    """Return the forms for a batch of tokens with 16-bit activations."""
    if rows <= 16:
        return (dot(scheme, group, bn=128, bm=16, stages=3),)
    middle = dot(scheme, group, bn=64, bm=64, stages=3)
    if (scheme, group) not in COMMON_FORMATS:
        return (middle,)
    measured = (scheme, group) == ("int4", 128)
    if rows <= 64:
        return (middle, dot(scheme, group, bn=128, bm=64, stages=3)) if measured else (middle,)
    if measured:
        large = (dot(scheme, group, bn=bn, bm=128, stages=3) for bn in (128, 64))
        return (*large, middle)
    return (dot(scheme, group, bn=128, bm=128, warps=8, stages=3), middle)


def _all() -> tuple[Variant, ...]:
    found: list[Variant] = []
    for scheme, group in (*COMMON_FORMATS, *OTHER_FORMATS):
        for rows in (1, 2, 4):
            found += decode_forms(scheme, group, rows)
        for rows in (16, 64, 128):
            found += dot_forms(scheme, group, rows)
        if scheme == "int8" or group >= 64:
            for rows in (16, 32, 64, 128):
                found += imma_forms(scheme, group, rows)
        if scheme not in PLAIN_SCHEMES:
            found.append(widen(scheme, group))
            found += turn(scheme, group)
    for scheme, group in DIRECT_FORMATS:
        for rows in (8, DIRECT_ROWS):
            found += direct_forms(scheme, group, rows)
    found += closed_forms(tuple(found))
    for weights in PLAIN_SCHEMES:
        for outputs in ("fp32", "bf16"):
            for stream in (False, True):
                for even in (True, False):
                    found += matmul_forms(weights, outputs, even=even, stream=stream)
    for outputs in ("fp32", "bf16"):
        for apart in (False, True):
            found += matmul_8bit_forms(outputs, apart=apart)
        found += [matmul_8bit_split(outputs, tokens) for tokens in (0, 1)]
    found += [imma_int8_apart(), matmul_8bit_deep(), matmul_8bit_few()]
    found += [turn_tokens(columns) for columns in (1, TOKEN_GROUPS * TURNED_COLUMNS + 1)]
    return tuple(dict.fromkeys(found))


VARIANTS = _all()
