"""Small .zse files whose groups have chosen sizes, and a device that copies late."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from host_gpu import HostGpu

from zse.format.layout import PlannedTensor
from zse.format.schemes import Scheme
from zse.format.writer import ZSEWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


def write_model(
    path: Path,
    group_pages: Sequence[int],
    *,
    seed: int = 0,
    large_bytes: int = 300_000,
    last_name: str = "",
) -> Path:
    """Write a file whose groups take these numbers of pages, with random bytes in them."""
    source = random.Random(seed)
    with ZSEWriter(path, architecture="llama", model_config={}, provenance={}) as writer:
        writer.add_section("notes.txt", b"hello")
        writer.add_section("large.bin", source.randbytes(large_bytes))
        names = [f"layers.{index}" for index in range(len(group_pages))]
        names[-1:] = [last_name or names[-1]] if names else []
        groups = [
            (
                names[index],
                [PlannedTensor(name=f"t{index}", scheme=Scheme.FP32, shape=(pages * 1024,))],
            )
            for index, pages in enumerate(group_pages)
        ]
        writer.plan(groups)
        for index, pages in enumerate(group_pages):
            writer.write_part(f"t{index}", "data", source.randbytes(pages * 4096))
    return path


@pytest.fixture
def make_file(tmp_path: Path) -> Callable[[Sequence[int]], Path]:
    """Return a function that writes a file with groups of so many pages."""
    return lambda pages: write_model(tmp_path / "model.zse", pages)


@pytest.fixture
def gpu() -> Iterator[HostGpu]:
    """A device, which must have everything back in the end."""
    device = HostGpu()
    yield device
    assert device.live == set()
