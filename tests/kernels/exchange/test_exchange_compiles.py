"""Exchanges compile without a GPU, and fit as many programs as wait for each other at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from zse.kernels.build.builder import build_pack
from zse.kernels.exchange.variants import VARIANTS, rank_norm_variant, rank_sum_in_two_variant
from zse.kernels.targets import target_named

if TYPE_CHECKING:
    from pathlib import Path

    from zse.kernels.variant import Variant

REGISTERS, WARP_THREADS, SPILLED_BYTES = 65536, 32, 128
"""Registers of a multiprocessor; of what is kept on the stack, the widest norm has a little."""
SOME = (
    rank_norm_variant(64, quantized=True, narrow=False),
    rank_norm_variant(32, quantized=False, narrow=True),
    rank_sum_in_two_variant(),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "variants"),
    [
        ("sm_90", SOME),
        pytest.param("sm_80", VARIANTS, marks=pytest.mark.nightly),
        pytest.param("sm_90", VARIANTS, marks=pytest.mark.nightly),
    ],
)
def test_a_program_of_every_exchange_fits_on_a_multiprocessor(
    name: str, variants: tuple[Variant, ...], tmp_path: Path
) -> None:
    pytest.importorskip("triton")
    target = target_named(name)
    built = build_pack(target, variants, source_digest="", cache_dir=tmp_path, processes=2)
    assert not built.skipped
    assert len(built.kernels) == len(variants)
    for kernel in built.kernels:
        facts = kernel.facts
        assert facts["registers"] * facts["num_warps"] * WARP_THREADS <= REGISTERS, kernel.key
        assert facts["stack_bytes"] <= SPILLED_BYTES, kernel.key
        assert facts["programmatic"] == target.programmatic
        assert not facts["cooperative"]
