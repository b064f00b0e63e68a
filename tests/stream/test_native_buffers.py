"""Buffers of loads by threads of C: made ahead, kept for the next load, and given back."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from host_gpu import DeviceLostError
from late_driver import LateGpu, late_gpu
from native_loads import begin, own_library, region_of

from zse.device.loader.library import driver_of, load_library
from zse.format.reader import ZSEReader
from zse.stream.loader import begin_areas, begin_load, plan_load
from zse.stream.options import LoaderOptions
from zse.stream.placement import WholeFile
from zse.stream.plan import CHUNK_BYTES
from zse.stream.source import LocalSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    MakeFile = Callable[[Sequence[int]], Path]

__all__ = ["late_gpu", "own_library"]


@pytest.fixture
def keeping(late_gpu: LateGpu) -> Iterator[LateGpu]:
    """A device whose loads keep up to 16 MiB of buffers."""
    library = load_library()
    assert library is not None
    late_gpu.kept = library.keep(driver_of(late_gpu.copy_functions()), 16 << 20)
    yield late_gpu
    kept, late_gpu.kept = late_gpu.kept, 0
    assert library.drop(kept) == 0


def test_the_next_load_finds_the_buffers_of_the_last_one(
    keeping: LateGpu, make_file: MakeFile
) -> None:
    path = make_file([768] * 4)
    options = LoaderOptions(threads=1, chunk_bytes=2 << 20, buffers_per_thread=2)
    held = []
    for _ in range(3):
        running, source, address = begin(keeping, path, options)
        running.wait()
        source.close()
        assert keeping.bytes_of(address) == region_of(path)
        held.append((keeping.ask("live"), keeping.ask("pinned")))
    assert held[0] == held[1] == held[2]  # nothing was made by the second and third
    assert held[0][1] == 2 * CHUNK_BYTES


def test_buffers_take_the_memory_that_was_made_for_them(
    late_gpu: LateGpu, make_file: MakeFile
) -> None:
    path = make_file([700] * 3)  # buffers of 700 pages; memory is of whole huge pages
    options = LoaderOptions(threads=1)
    for is_made in (True, False):
        with ZSEReader(path) as reader:
            whole = WholeFile(reader.header)
        source = LocalSource(path)
        plan, threads = plan_load(source, whole, options), num_threads()
        areas = begin_areas(source, plan, options) if is_made else None
        wait_for_threads(threads)  # else the load may be first, and make its own
        address = late_gpu.memory(whole.length_bytes)
        late_gpu.tell(most_pinned=0)
        begin_load(late_gpu, source, plan, address, options, areas=areas).wait()
        source.close()
        assert late_gpu.bytes_of(address) == region_of(path)
        assert late_gpu.ask("most_pinned") == (4 << 20 if is_made else 700 * 4096)
        assert areas is None or areas.address is None  # given back


def test_memory_that_no_load_takes_is_given_back(make_file: MakeFile) -> None:
    path = make_file([700] * 3)
    with ZSEReader(path) as reader, closing(LocalSource(path)) as source:
        threads = num_threads()
        areas = begin_areas(source, plan_load(source, WholeFile(reader.header)))
        assert areas is not None
        wait_for_threads(threads)
        before = mapped_bytes()
        areas.close()
        areas.close()
        assert mapped_bytes() <= before - 3 * (4 << 20)


def num_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def wait_for_threads(most: int) -> None:
    """Wait until memory is made: whoever makes it ends then."""
    for _ in range(1000):
        if num_threads() <= most:
            return
        time.sleep(0.01)


def mapped_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * 4096


def test_who_waits_for_a_load_need_not_wait_for_its_buffers(
    late_gpu: LateGpu, make_file: MakeFile
) -> None:
    giving: list[threading.Thread] = []
    late_gpu.stays_for = giving.append
    path = make_file([20] * 4)
    running, source, address = begin(late_gpu, path)
    running.wait()
    running.wait()
    source.close()
    assert late_gpu.bytes_of(address) == region_of(path)
    [thread] = giving  # which the device waits for before it is closed
    thread.join(60)
    assert late_gpu.ask("live") == 0
    late_gpu.fail("copy", 700)
    running, source, _ = begin(late_gpu, path)
    with pytest.raises(DeviceLostError):
        running.wait()
    source.close()
    assert len(giving) == 1  # of a load that fails all is given back before it is told


def test_without_a_thread_to_spare_buffers_are_given_back_before_the_load_is_over(
    late_gpu: LateGpu, make_file: MakeFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    giving: list[threading.Thread] = []
    late_gpu.stays_for = giving.append
    path = make_file([20] * 4)
    running, source, address = begin(late_gpu, path)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        running.wait()
    source.close()
    assert late_gpu.bytes_of(address) == region_of(path)
    assert giving == []
    assert late_gpu.ask("live") == 0


def test_no_more_is_kept_than_there_is_room_for(keeping: LateGpu, make_file: MakeFile) -> None:
    path = make_file([3072] * 2)
    for mebibytes in (2, 12):  # longer buffers take the place of shorter ones
        options = LoaderOptions(threads=2, chunk_bytes=mebibytes << 20)
        running, source, address = begin(keeping, path, options)
        running.wait()
        source.close()
        assert keeping.bytes_of(address) == region_of(path)
        library = load_library()
        assert library is not None
        assert keeping.ask("pinned") == library.kept_bytes(keeping.kept) <= 16 << 20


def test_a_load_that_fails_keeps_nothing_that_it_used(
    keeping: LateGpu, make_file: MakeFile
) -> None:
    keeping.fail("copy", 700, at=2)
    running, source, _ = begin(keeping, make_file([20] * 4))
    with pytest.raises(DeviceLostError):
        running.wait()
    source.close()
    assert keeping.ask("live") == 0
