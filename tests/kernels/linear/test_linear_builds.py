"""Matrix kernels compile ahead of time for the architectures that packs are built for."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from zse.kernels.build.builder import build_pack
from zse.kernels.linear.definitions import MATMUL_STREAM
from zse.kernels.linear.direct_forms import direct
from zse.kernels.linear.variants import (
    VARIANTS,
    dot,
    gemv,
    imma,
    matmul,
    matmul_8bit,
    matmul_8bit_apart,
    turn,
    turn_tokens,
    widen,
)
from zse.kernels.pack import KernelPack
from zse.kernels.targets import target_named

if TYPE_CHECKING:
    from pathlib import Path

SOME = (
    gemv("int4", 128, 1, r=4, t=2, c=32),
    gemv("int3", 64, 1, r=4, t=4, c=8),
    gemv("int2", 32, 4, r=4, t=4, c=8),
    gemv("nf4", 64, 1, r=4, t=4, c=8),
    gemv("mxfp4", 32, 1, r=4, t=1, c=32),
    gemv("nl4_pairs", 32, 1, r=4, t=1, c=32),
    gemv("int8", 0, 4, r=4, t=4, c=8),
    gemv("bf16", 0, 1, r=4, t=4, c=8),
    dot("int4", 128, bn=128, bm=16, stages=3),
    dot("nf4", 64, bn=64, bm=64, stages=3),
    dot("mxfp4", 32, bn=128, bm=16, stages=3),
    dot("nl4_pairs", 32, bn=128, bm=16, stages=3),
    imma("int4", 64, bn=128, bm=16),
    imma("int3", 64, bn=128, bm=16),
    imma("int8", 0, bn=128, bm=16),
    direct("int4", bm=8, depth=2),
    direct("int8", bm=16, depth=1),
    widen("int4", 128),
    widen("mxfp4", 32),
    widen("int8", 0),
    *turn("int4", 128),
    *turn("int2", 64),
    *turn("nl4_pairs", 32),
    *turn("int8", 0),
    turn_tokens(3584),
    turn_tokens(18944),
    matmul_8bit("fp32"),
    matmul_8bit_apart("bf16"),
    matmul("bf16", "bf16", even=True),
    matmul("bf16", "fp32", even=True, bn=256, stages=3, kernel=MATMUL_STREAM),
)


def test_what_is_compiled_here_is_in_a_pack() -> None:
    assert set(SOME) <= set(VARIANTS)


def test_keys_differ_and_there_are_not_too_many() -> None:
    assert len({variant.key for variant in VARIANTS}) == len(VARIANTS) <= 210


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="building needs triton")
@pytest.mark.parametrize("name", [pytest.param("sm_80", marks=pytest.mark.nightly), "sm_90"])
def test_the_forms_compile(name: str, tmp_path: Path) -> None:
    built = build_pack(target_named(name), SOME, source_digest="test", cache_dir=tmp_path)
    pack = KernelPack.open(built.data)
    assert set(pack) == {one.key for one in SOME if one.suits(name)}
    for variant in SOME:
        assert pack.entry(variant.key).programmatic == (name == "sm_90")
