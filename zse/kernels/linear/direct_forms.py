"""The forms for a few tokens whose weights go from memory to tensor cores, and what they suit.

On an H200 gate and up of a 7B in INT4 take 21 us for eight tokens, and 29 by tiles in shared
memory; for sixteen 27 and 31.
"""

from __future__ import annotations

from zse.kernels.linear.definitions import IMMA_DIRECT
from zse.kernels.variant import Variant

DIRECT_FORMATS = (("int4", 128), ("int8", 0))
"""Schemes and group sizes that have such forms."""
DIRECT_ROWS = 16
"""Most tokens of a product by them: more take longer than by tiles in shared memory."""
DIRECT_PROGRAMS = 3.4
"""Programs for each multiprocessor that splits make up for."""
LEAST_BLOCKS = 4
"""Fewest blocks of 128 columns of a split."""
_DEPTHS = {("int4", 8): (2, 4), ("int4", 16): (2, 1), ("int8", 8): (2,), ("int8", 16): (1,)}


def direct(scheme: str, *, bm: int, depth: int) -> Variant:
    """Return a form: tiles of bm tokens, ``depth`` blocks of weights on their way.

    Each warp has 32 rows of the matrix, so that what it loads of the activations serves two tiles.
    """
    return Variant(
        kernel=IMMA_DIRECT,
        constants=(("SCHEME", scheme), ("BN", 128), ("BM", bm), ("DEPTH", depth)),
        num_warps=4,
        types=(("scales", "*fp32"),) if scheme == "int8" else (),
    )


def direct_forms(scheme: str, group: int, rows: int) -> tuple[Variant, ...]:
    """Return the forms for so many tokens, preferred ones first; none where there are none."""
    if (scheme, group) not in DIRECT_FORMATS or rows > DIRECT_ROWS:
        return ()
    bm = 8 if rows <= 8 else 16
    return tuple(direct(scheme, bm=bm, depth=depth) for depth in _DEPTHS[scheme, bm])


def direct_splits(tiles: int, columns: int, multiprocessors: int, most: int) -> int:
    """Return how often sums are split, for so many tiles of rows of so many columns.

    Short programs hide each other's ends: on an H200 the best of each of a 7B's matrices.
    """
    wanted = round(multiprocessors * DIRECT_PROGRAMS / tiles)
    return max(1, min(wanted, columns // 128 // LEAST_BLOCKS, most))
