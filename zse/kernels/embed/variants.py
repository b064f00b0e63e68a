"""The compiled forms of ``embed``."""

from __future__ import annotations

from zse.errors import UnsupportedModelError
from zse.kernels.variant import Kernel, Variant, number, pointer, variant

_MODULE = "zse.kernels.embed.triton.kernel"
_ARGUMENTS = (
    pointer("weights", "bf16"),
    pointer("scales", "fp32"),
    pointer("tokens", "i32"),
    pointer("slots", "i32"),
    pointer("last_tokens", "i32"),
    pointer("residual", "fp32"),
    number("hidden", aligned=True),
)
EMBED = Kernel(name="embed.embed", module=_MODULE, function="embed", arguments=_ARGUMENTS)
EMBED_SCALED = Kernel(
    name="embed.embed_scaled",
    module=_MODULE,
    function="embed_scaled",
    arguments=(*_ARGUMENTS, number("scale", "fp32")),
)
EMBED_PLACED = Kernel(
    name="embed.embed_placed",
    module=_MODULE,
    function="embed_placed",
    arguments=(
        *_ARGUMENTS[:-1],
        pointer("positions", "i32"),
        pointer("prefill_positions", "i32"),
        pointer("types", "i32"),
        pointer("position_rows", "fp32"),
        pointer("type_rows", "fp32"),
        number("hidden", aligned=True),
        number("scale", "fp32"),
        number("decode_rows"),
        number("first_position"),
        number("has_positions"),
        number("has_types"),
        number("tells_types"),
    ),
)
BLOCK = 1024
"""Columns a program."""
PLAIN_SCHEMES = ("bf16", "fp16", "fp32")
GROUPED_SCHEMES = {"int4": ("u8", "i32"), "nf4": ("u8", "fp16")}
"""Element types of codes and scales."""
GROUP_SIZES = (128, 64, 32)


PLACED_SCHEMES = ("bf16", "fp16", "int8")
"""Schemes of tables whose rows are not all that a token begins with."""


def embed_variant(
    scheme: str, group_size: int, *, scaled: bool = False, placed: bool = False
) -> Variant:
    """Return the form for a table.

    Args:
        scheme: ``bf16 fp16 fp32 int8 int4 nf4``.
        group_size: Columns that share a scale for int4 and nf4, else 0.
        scaled: Whether rows are multiplied by a factor.
        placed: Whether rows of positions or of types are added.

    Raises:
        UnsupportedModelError: No kernel reads such a table.
    """
    if scheme in PLAIN_SCHEMES and group_size == 0:
        types, form = {"weights": f"*{scheme}"}, "plain"
    elif scheme == "int8" and group_size == 0:
        types, form = {"weights": "*i8"}, "int8"
    elif scheme in GROUPED_SCHEMES and group_size in GROUP_SIZES:
        codes, scales = GROUPED_SCHEMES[scheme]
        types, form = {"weights": f"*{codes}", "scales": f"*{scales}"}, scheme
    else:
        raise UnsupportedModelError(
            f"embedding of scheme {scheme!r} with groups of {group_size}; expected "
            f"{', '.join(PLAIN_SCHEMES)}, int8, or int4 and nf4 with groups of 128, 64 or 32"
        )
    if placed and scheme not in PLACED_SCHEMES:
        raise UnsupportedModelError(
            f"embedding of scheme {scheme!r} beside learned positions or types; expected "
            f"{', '.join(PLACED_SCHEMES)}"
        )
    kernel = EMBED_PLACED if placed else EMBED_SCALED if scaled else EMBED
    return variant(kernel, types=types, SCHEME=form, GROUP_SIZE=group_size, BLOCK=BLOCK)


_TABLES = (
    *((scheme, 0) for scheme in (*PLAIN_SCHEMES, "int8")),
    *((scheme, size) for scheme in GROUPED_SCHEMES for size in GROUP_SIZES),
)
VARIANTS: tuple[Variant, ...] = (
    *(
        embed_variant(scheme, size, scaled=scaled)
        for scaled in (False, True)
        for scheme, size in _TABLES
    ),
    *(embed_variant(scheme, 0, placed=True) for scheme in PLACED_SCHEMES),
)
