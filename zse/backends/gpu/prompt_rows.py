"""How many rows fill a device's multiprocessors in each product of a step with prompts.

A product is cut into tiles, which are computed in rounds of as many as there are multiprocessors. A
tile of tokens more may cost a round more of every matrix: on an H200 a step of a 7B takes 15.9 ms
with 1,152 rows and 20.7 with 1,280.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from zse.kernels.linear.launch_8bit import TILE_TOKENS, relative_time

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zse.device.facts import DeviceFacts

LEAST_SHARE = 3 / 4
"""Of the rows that a step may have: fewer would make a prompt take more steps than it gains."""
AS_GOOD = 1.02
"""Times per row within which more rows are better: a step takes time of its own."""


def filled_rows(matrices: Iterable[tuple[int, int]], device: DeviceFacts, most_rows: int) -> int:
    """Return at how many rows one of them takes least, whole tiles of them and at most so many.

    Args:
        matrices: Rows and columns of those of a step. Without any it is ``most_rows``.
        device: What computes the step.
        most_rows: Rows that it may have.
    """
    shapes = Counter(matrices)
    least = int(most_rows * LEAST_SHARE)
    wholes = range(most_rows // TILE_TOKENS * TILE_TOKENS, least - 1, -TILE_TOKENS)
    if not shapes or not wholes or not wholes[-1]:
        return most_rows

    def row_time(rows: int) -> float:
        times = (
            count * relative_time(*shape, rows, device) / rows for shape, count in shapes.items()
        )
        return sum(times)

    best = min(map(row_time, wholes))
    return next(rows for rows in wholes if row_time(rows) <= best * AS_GOOD)
