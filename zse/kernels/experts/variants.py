"""The compiled forms of ``experts``."""

from __future__ import annotations

from zse.kernels.experts.weight import STEP_COLUMNS
from zse.kernels.layout import PIECE_CODES
from zse.kernels.linear.variants import (
    COMMON_FORMATS,
    ELEMENT,
    OTHER_FORMATS,
    SCALE,
    decode_forms,
)
from zse.kernels.linear.weight import GROUPED_SCHEMES, PLAIN_SCHEMES
from zse.kernels.route.rules import MAX_EXPERTS
from zse.kernels.variant import Argument, Kernel, Variant, number, pointer, variant

PAIR_TILES = (16, 64, 128)
"""Pairs of one expert that a program multiplies together."""
TILE_ROWS = 128
"""Rows of an expert's matrix in such a tile."""
DIRECT_FORMATS = (("int4", 128), ("mxfp4", 32))
"""Schemes and group sizes whose weights go to tensor cores directly, for some tokens."""
DIRECT_TILES = (8, 16, 32)
"""Pairs of one expert that a program of them multiplies together."""
UNSORTED_PAIRS = 128
"""Pairs that a program looks through for those of its expert, where they are not sorted."""
_DEPTHS = {("int4", 8): 2, ("int4", 16): 2}
CHUNK_COLUMNS = 1024
"""Columns that a program of ``combine`` adds."""
GROUPS = MAX_EXPERTS * 2
"""Room for the experts of a layer and the shared one; a power of two."""


def _kernel(file: str, function: str, *arguments: Argument) -> Kernel:
    return Kernel(
        name=f"experts.{function}",
        module=f"zse.kernels.experts.triton.{file}",
        function=function,
        arguments=arguments,
    )


_MATRICES = (pointer("weights", "i32"), pointer("weight_scales", "i32"), pointer("bias", "fp32"))
_SHARED = (
    number("shared_weights", "i64", aligned=True),
    number("shared_scales", "i64"),
    number("N", aligned=True),
    number("units"),
)
PAIR_PRODUCTS = _kernel(
    "decode",
    "pair_products",
    pointer("codes", "i32"),
    pointer("scales", "fp32"),
    pointer("sums", "fp32"),
    *_MATRICES,
    pointer("experts", "i32"),
    pointer("expert_weights", "fp32"),
    pointer("outputs", "fp32"),
    *_SHARED,
    number("rows"),
    number("slots"),
    number("num_experts"),
    number("has_bias"),
    number("is_down"),
)
GROUPED_PRODUCTS = _kernel(
    "grouped",
    "grouped_products",
    pointer("values", "bf16"),
    *_MATRICES,
    pointer("order", "i32"),
    pointer("starts", "i32"),
    pointer("outputs", "bf16"),
    *_SHARED,
    number("slots"),
    number("num_experts"),
    number("groups"),
    number("has_bias"),
    number("is_down"),
)
_DIRECT = (
    pointer("codes", "i32"),
    pointer("x_scales", "fp32"),
    pointer("x_sums", "fp32"),
    *_MATRICES,
    pointer("order", "i32"),
    pointer("starts", "i32"),
)
DIRECT_PRODUCTS = Kernel(
    name="experts.direct_products",
    module="zse.kernels.experts.triton.direct",
    function="direct_products",
    arguments=(
        *_DIRECT,
        pointer("expert_weights", "fp32"),
        pointer("outputs", "fp32"),
        *_SHARED,
        number("rows"),
        number("slots"),
        number("num_experts"),
        number("groups"),
        number("has_bias"),
        number("is_down"),
    ),
    targets=("sm_90",),
)
COMBINE = _kernel(
    "grouped",
    "combine",
    pointer("residual", "fp32"),
    pointer("pairs", "bf16"),
    pointer("expert_weights", "fp32"),
    pointer("shared", "fp32"),
    number("hidden", aligned=True),
    number("slots"),
    number("shared_rows"),
    number("shared_splits"),
    number("shared_slot"),
    number("adds"),
    number("scale", "fp32"),
)


def pair_variant(scheme: str, group: int, *, r: int, t: int, c: int) -> Variant:
    """Return a form for a few tokens; the sizes are those of ``linear.variants.gemv``."""
    plain = scheme in PLAIN_SCHEMES
    pieces = group // PIECE_CODES if group else 1 if plain else 2
    inputs = (("codes", "*bf16"),) if plain else ()
    return Variant(
        kernel=PAIR_PRODUCTS,
        constants=(
            ("SCHEME", "16-bit" if plain else scheme), ("GROUP", group), ("PIECES", pieces),
            ("R", r), ("T", t), ("C", c),
        ),
        num_warps=t * c // 32,
        types=(*inputs, *_types(scheme, words=True)),
    )  # fmt: skip


def like_gemv(scheme: str, group: int, gemv: Variant) -> Variant:
    """Return the form with the sizes of one of ``linear`` for a token."""
    sizes = dict(gemv.constants)
    return pair_variant(scheme, group, r=int(sizes["R"]), t=int(sizes["T"]), c=int(sizes["C"]))


def grouped_variant(
    scheme: str, group: int, *, bm: int, bn: int = TILE_ROWS, warps: int = 0, stages: int = 3
) -> Variant:
    """Return the form for tiles of ``bm`` pairs of an expert and ``bn`` rows of its matrix."""
    return Variant(
        kernel=GROUPED_PRODUCTS,
        constants=(
            ("SCHEME", scheme), ("GROUP", group), ("UNIT", group or STEP_COLUMNS),
            ("BN", bn), ("BM", bm), ("STAGES", stages), ("EXPERTS", GROUPS),
        ),
        num_warps=warps or (8 if bm == 128 else 4),
        num_stages=stages,
        types=_types(scheme, words=False),
    )  # fmt: skip


def direct_variant(
    scheme: str, *, bn: int = 128, bm: int, depth: int, warps: int = 4, pairs: int = 0
) -> Variant:
    """Return the form for tiles of ``bm`` pairs, ``depth`` blocks of weights on their way.

    Args:
        pairs: Most pairs, a power of two, that each program looks through; 0 for sorted ones.
    """
    return Variant(
        kernel=DIRECT_PRODUCTS,
        constants=(
            ("SCHEME", scheme), ("BN", bn), ("BM", bm), ("DEPTH", depth),
            ("EXPERTS", 0 if pairs else GROUPS), ("PAIRS", pairs),
        ),
        num_warps=warps,
        types=(("weight_scales", "*u16"),) if scheme == "mxfp4" else (),
    )  # fmt: skip


def direct_form(scheme: str, bm: int) -> Variant:
    """Return the form for tiles of ``bm`` sorted pairs, one of ``DIRECT_TILES``."""
    return direct_variant(scheme, bm=bm, depth=_DEPTHS.get((scheme, bm), 1))


def unsorted_form(scheme: str) -> Variant:
    """Return the form for up to ``UNSORTED_PAIRS``, as they come."""
    tile = DIRECT_TILES[0]
    depth = _DEPTHS.get((scheme, tile), 1)
    return direct_variant(scheme, bm=tile, depth=depth, pairs=UNSORTED_PAIRS)


def is_sorted(form: Variant) -> bool:
    """Return whether a form for weights to tensor cores takes pairs in the order of experts."""
    return not dict(form.constants)["PAIRS"]


def combine_variant() -> Variant:
    """Return the form that adds what experts made to the residual stream."""
    return variant(COMBINE, num_warps=4, COLUMNS=CHUNK_COLUMNS)


def _types(scheme: str, *, words: bool) -> tuple[tuple[str, str], ...]:
    """Return the types of a scheme's matrices; ``words`` reads codes four bytes at a time."""
    if scheme in PLAIN_SCHEMES:
        return (("weights", ELEMENT[scheme]), ("weight_scales", ELEMENT[scheme]))
    element = "*i32" if words else "*u8" if scheme in GROUPED_SCHEMES else ELEMENT[scheme]
    return (("weights", element), ("weight_scales", SCALE.get(scheme, "*fp32")))


def _all() -> tuple[Variant, ...]:
    formats = (*COMMON_FORMATS, *OTHER_FORMATS)
    pairs = (
        like_gemv(scheme, group, form)
        for scheme, group in formats
        for form in decode_forms(scheme, group, 1)
    )
    grouped = (
        grouped_variant(scheme, group, bm=bm) for scheme, group in formats for bm in PAIR_TILES
    )
    direct = tuple(direct_form(scheme, bm) for scheme, _ in DIRECT_FORMATS for bm in DIRECT_TILES)
    looked = tuple(unsorted_form(scheme) for scheme, _ in DIRECT_FORMATS)
    return (*pairs, *grouped, *direct, *looked, combine_variant())


VARIANTS = _all()
