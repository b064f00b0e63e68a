"""The sampling kernels compile for real architectures, with registers to spare."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from zse.kernels.build.builder import build_pack
from zse.kernels.lm_head_sample.variants import VARIANTS
from zse.kernels.targets import TARGETS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "aligned"),
    [pytest.param("sm_80", False, marks=pytest.mark.nightly), ("sm_90", True)],
)
def test_the_kernels_compile(target: str, aligned: bool, tmp_path: Path) -> None:
    forms = [form for form in VARIANTS if form.kernel.name.endswith("_aligned") == aligned]
    built = build_pack(TARGETS[target], forms, source_digest="", cache_dir=tmp_path)
    assert not built.failed
    assert not built.skipped
    assert {kernel.key for kernel in built.kernels} == {form.key for form in forms}
