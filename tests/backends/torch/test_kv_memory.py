"""How much memory a KV cache may take, said before any of it is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from zse.errors import DeviceError
from zse.models.runner import load_runner
from zse.options import load_options
from zse.quantize.locate import locate_model
from zse.settings import Settings
from zse.units import GIB

if TYPE_CHECKING:
    from pathlib import Path

EXBIBYTE = 1 << 60


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return locate_model("tiny", Settings(cache_dir=tmp_path_factory.mktemp("models")), quant="int8")


def test_a_kv_cache_larger_than_the_memory_is_refused_with_both_sizes(tiny: Path) -> None:
    with pytest.raises(DeviceError) as caught:
        load_runner(tiny, load_options(device="torch", kv_gib=EXBIBYTE / GIB))
    assert "1073741824.0 GiB was asked for" in caught.value.message
    assert "GiB of memory are available" in caught.value.message
    assert "--kv-gib" in caught.value.hint


@pytest.mark.parametrize("kv_dtype", ["fp32", "bf16"])
def test_a_new_cache_holds_zeros_and_can_be_written(tiny: Path, kv_dtype: str) -> None:
    runner = load_runner(tiny, load_options(device="torch", num_blocks=3, kv_dtype=kv_dtype))
    try:
        kept, *_ = runner._backend.new_cache(3).blocks.layers.values()  # type: ignore[attr-defined]
        first = kept.numbers
        assert first.shape[0] == 3
        assert not first.any()
        first[1].fill_(2.0)
        assert first.sum() == 2.0 * first[1].numel()
        assert torch.isfinite(first).all()
    finally:
        runner.close()
