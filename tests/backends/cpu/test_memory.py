"""Memory: it comes with its use, matrices are never copied, and what does not fit is said."""

from __future__ import annotations

import ctypes
import logging
import mmap
import resource
from array import array
from ctypes import sizeof
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from any_layers import attention, experts, layer, model, write_model
from mapped_files import mapped_bytes

from zse.backends.cpu import backend
from zse.backends.cpu.memory import Pages, address_of
from zse.backends.cpu.page_mapping import PageArrival
from zse.backends.cpu.sampling import ROW_BYTES
from zse.backends.cpu.supported import warn_of_size
from zse.backends.types import SequenceChunk, StepBatch, kind_of
from zse.device.probe import DeviceInfo
from zse.errors import DeviceError
from zse.format import ZSEReader
from zse.kernels.lm_head_sample.row import SamplingRow
from zse.kernels.native import structs
from zse.models.runner import load_runner
from zse.options import load_options
from zse.units import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

EXBIBYTE = 1 << 60


@pytest.fixture
def path(make_pair: Callable[..., Any]) -> Path:
    return make_pair("llama", "int8").path


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_a_kv_cache_larger_than_the_memory_is_refused_with_both_sizes(path: Path) -> None:
    with pytest.raises(DeviceError) as caught:
        load_runner(path, load_options(device="cpu", kv_gib=EXBIBYTE / GIB))
    assert "1073741824.0 GiB was asked for" in caught.value.message
    assert "GiB of memory are available" in caught.value.message
    assert "--kv-gib" in caught.value.hint


def test_a_pool_takes_the_memory_of_the_blocks_that_are_written(path: Path) -> None:
    before = resident_bytes()
    runner = load_runner(path, load_options(device="cpu", num_blocks=300_000, threads=1))
    assert runner.memory_bytes()["kv_cache"] > GIB
    row = SamplingRow(temperature=0.0)
    for start in range(3):
        chunk = SequenceChunk(0, [5], start, [299_999], kind_of(1))
        runner.execute(StepBatch(chunks=[chunk], sampling=[[row]]))
    assert resident_bytes() - before < 16 * MIB
    runner.close()


def test_a_runner_that_rests_keeps_the_blocks_in_use_and_gives_the_memory_of_others_back(
    path: Path,
) -> None:
    runner = load_runner(path, load_options(device="cpu", num_blocks=8000, threads=1))

    def step(token_ids: list[int], start: int, block: int) -> Any:
        chunk = SequenceChunk(0, token_ids, start, [block], kind_of(len(token_ids)))
        row = SamplingRow(temperature=0.0, logprobs=1)
        return runner.execute(StepBatch(chunks=[chunk], sampling=[[row]]))

    for block in (0, 7000):
        step([5, 6, 7], 0, block)
    expected = step([8], 3, 0)
    block_bytes = runner.memory_bytes()["kv_cache"] // 8000
    start = runner._backend._memory.blocks.layers[0].data  # type: ignore[attr-defined]
    ctypes.memset(start + block_bytes, 1, 6999 * block_bytes)
    before = resident_bytes()
    runner.rest([[block for block in range(8000) if block not in (0, 7000)]])
    assert before - resident_bytes() > 6900 * block_bytes
    assert [step([8], 3, block) for block in (0, 7000)] == [expected, expected]
    runner.close()


def test_matrices_lie_in_the_mapped_file(path: Path) -> None:
    with ZSEReader(path) as reader:
        runner = load_runner(reader, load_options(device="cpu", num_blocks=1, threads=1))
        first, *_ = runner.spec.layers
        weight = first.mixer.qkv.weight.name
        with runner._backend.layer(first) as weights:
            assert weights.qkv.data == address_of(reader.part(weight, "qweight"))
            assert weights.qkv.scales == address_of(reader.part(weight, "scale"))
        runner.close()


def test_pages_of_experts_that_nobody_chose_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the weights are more than the memory, nothing else has them read either."""
    little = replace(backend.probe(), available_memory_bytes=MIB)
    monkeypatch.setattr(backend, "probe", lambda: little)
    mixture = partial(experts, count=16, chosen=1, width=2048)
    spec, path = model([layer(0, attention, mlp=None, experts=mixture)]), tmp_path / "model.zse"
    write_model(path, spec, "bf16")
    expert_bytes = path.stat().st_size // 16
    runner = load_runner(path, load_options(device="cpu", num_blocks=1, threads=1), spec=spec)
    chunk = SequenceChunk(0, [5], 0, [0], kind_of(1))
    runner.execute(StepBatch(chunks=[chunk], sampling=[[SamplingRow(temperature=0.0)]]))
    assert expert_bytes / 2 < mapped_bytes(path) < 4 * expert_bytes
    runner.close()


def test_pages_that_have_arrived_are_touched_without_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "pages"
    path.write_bytes(bytes(4 * MIB))
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    view = memoryview(mapped)
    arrival = PageArrival(address_of(view) + 5, len(view) - 5)
    arrival._thread.join()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    assert not any(view[:: mmap.PAGESIZE])
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert faults < len(view) // mmap.PAGESIZE // 32  # a fault maps 16 pages where none is mapped
    arrival.close()
    view.release()
    mapped.close()


def test_new_memory_is_zeros_and_can_be_written() -> None:
    pages = Pages(3 * 4096)
    assert not any(pages.view)
    pages.view[4096:4104] = b"\xff" * 8
    assert sum(pages.view) == 8 * 255
    assert address_of(pages.view[4096:]) == pages.address + 4096
    pages.close()


def test_only_pages_that_lie_within_an_emptied_part_are_zeros_again() -> None:
    pages = Pages(4 * mmap.PAGESIZE)
    pages.view[:] = b"\xff" * len(pages.view)
    pages.empty(1, 3 * mmap.PAGESIZE - 1)
    filled = [any(pages.view[i : i + mmap.PAGESIZE]) for i in range(0, 4 * mmap.PAGESIZE, 4096)]
    assert filled == [True, False, True, True]
    pages.empty(5, 9)  # within one page
    assert all(pages.view[: mmap.PAGESIZE])
    pages.close()


def test_the_address_of_numbers_is_theirs() -> None:
    numbers = array("i", [1, 2, 3])
    assert address_of(memoryview(numbers)[1:]) == numbers.buffer_info()[0] + 4


def test_a_row_of_sampling_is_packed_as_its_structure_lies() -> None:
    assert sizeof(structs.Sampling) == ROW_BYTES


def test_a_file_larger_than_the_memory_is_said(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine = DeviceInfo(
        cpu_model="a processor",
        physical_cores=1,
        cpu_quota=0.0,
        total_memory_bytes=1,
        available_memory_bytes=1,
        cuda_driver=False,
    )
    with ZSEReader(path) as reader, caplog.at_level(logging.WARNING):
        warn_of_size(reader, machine)
    assert "reads from the disk what does not fit" in caplog.text
