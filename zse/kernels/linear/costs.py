"""What products cost on a GPU, as far as it was measured: numbers of its model, by its name.

Those of an H200 are fitted to the times of all forms there, where the choices that follow take
1.07 times the best time on average.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zse.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.device.facts import DeviceFacts


@record
class CostModel:
    """What products cost on one kind of GPU, beside the bytes that memory delivers."""

    flight_bytes: int
    """Bytes on their way to one multiprocessor that keep the memory busy."""
    resident_warps: int
    """Warps that one multiprocessor holds of the kernels for few tokens, by their registers."""
    resident_warps_batch: int
    """The same of the kernels on tensor cores."""
    resident_warps_wide: int
    """The same of those for ``wide_tokens`` and more."""
    wide_tokens: int
    unpack_seconds: float
    """What a weight costs the multiprocessor that unpacks it, once a tile of tokens."""
    product_seconds: float
    """What its product with one token costs there."""
    input_seconds: float
    """What bringing a token's value for it costs there, shared by the rows of a tile."""
    split_seconds: float
    """What one more split costs its reader beside the bytes."""
    tile_rounds: Mapping[int, float]
    """Of many tokens: time of a tile by the rows of the matrix in it, in those of 128 rows."""
    slab_rounds: float
    """What a slab of widened weights costs beside its product, in the same."""


FITTED = "NVIDIA H200"
COSTS: Mapping[str, CostModel] = {
    FITTED: CostModel(
        flight_bytes=50 << 10,
        resident_warps=20,
        resident_warps_batch=40,
        resident_warps_wide=28,
        wide_tokens=64,
        unpack_seconds=1e-12,
        product_seconds=6.5e-15,
        input_seconds=3.4e-11,
        split_seconds=1.4e-7,
        tile_rounds={128: 1.0, 256: 1.83},
        slab_rounds=0.3,
    )
}


def costs_on(device: DeviceFacts) -> CostModel:
    """Return the costs on a GPU; those on ``FITTED`` where nothing was measured."""
    return COSTS.get(device.name, COSTS[FITTED])
