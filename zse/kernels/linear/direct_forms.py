"""The forms for a few tokens whose weights go from memory to tensor cores, and what they suit."""

from __future__ import annotations

from zse.kernels.linear.definitions import IMMA_DIRECT
from zse.kernels.variant import Variant

DIRECT_FORMATS = (("int4", 128), ("int8", 0))
"""Schemes and group sizes that have such forms."""
DIRECT_ROWS = 8
"""Most tokens of a product by them."""


def direct(scheme: str, *, bn: int, bm: int, warps: int, depth: int) -> Variant:
    """Return a form: tiles of bn rows and bm tokens, ``depth`` groups of weights on their way."""
    return Variant(
        kernel=IMMA_DIRECT,
        constants=(("SCHEME", scheme), ("BN", bn), ("BM", bm), ("DEPTH", depth)),
        num_warps=warps,
        types=(("scales", "*fp32"),) if scheme == "int8" else (),
    )


def direct_forms(scheme: str, group: int, rows: int) -> tuple[Variant, ...]:
    """Return the forms for so many tokens, preferred ones first; none where there are none."""
    if (scheme, group) not in DIRECT_FORMATS or rows > DIRECT_ROWS:
        return ()
    shapes = ((128, 4, 2), (64, 2, 2), (64, 4, 2), (128, 4, 1))
    return tuple(direct(scheme, bn=bn, bm=8, warps=warps, depth=it) for bn, warps, it in shapes)
