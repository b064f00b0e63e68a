"""Loads by threads of C: right bytes on a device that copies late, nothing leaked, clear errors."""

from __future__ import annotations

import ctypes
import os
import random
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from broken_rules import breaks
from host_gpu import DeviceLostError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from late_driver import LateGpu, late_gpu
from loads import start_load
from native_loads import SMALL, begin, load, own_library, region_of

from tests.stream.conftest import write_model
from zse.device.loader import library as loader_library
from zse.device.loader.library import LoaderLibrary, load_library
from zse.errors import LoadCancelledError, SourceChangedError, StoreError
from zse.format.errors import Rule
from zse.format.reader import ZSEReader
from zse.stream.ahead import AheadSource
from zse.stream.native import NativeLoad
from zse.stream.options import LoaderOptions
from zse.stream.placement import WholeFile
from zse.stream.plan import Chunk, GroupReads, ReadPlan
from zse.stream.source import DirectMode, LocalSource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    MakeFile = Callable[[Sequence[int]], Path]

__all__ = ["late_gpu", "own_library"]


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    pages=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    chunk_pages=st.integers(1, 8),
    threads=st.integers(1, 6),
    buffers=st.integers(1, 3),
    direct=st.sampled_from(["auto", "always", "never"]),
)
def test_the_device_holds_the_region_whatever_the_sizes(
    tmp_path: Path,
    pages: list[int],
    chunk_pages: int,
    threads: int,
    buffers: int,
    direct: DirectMode,
) -> None:
    path = write_model(tmp_path / "model.zse", pages, large_bytes=3000)
    gpu = LateGpu()
    options = LoaderOptions(
        threads=threads, chunk_bytes=chunk_pages * 4096, buffers_per_thread=buffers
    )
    found, report = load(gpu, path, options, direct)
    assert found == region_of(path)
    assert report.num_bytes == len(found)
    assert report.source in ("page cache", "direct", "mixed")
    assert gpu.ask("most_pinned") <= threads * buffers * chunk_pages * 4096


def test_large_buffers_are_huge_pages_that_are_pinned_where_they_lie(
    late_gpu: LateGpu, make_file: MakeFile
) -> None:
    path = make_file([1536])
    options = LoaderOptions(threads=2, chunk_bytes=2 << 20)
    late_gpu.fail("allocate", 2)  # nobody asks the driver for memory of its own
    found, report = load(late_gpu, path, options)
    assert found == region_of(path)
    assert set(report.phase_seconds) == {"copy", "pin", "read"}
    assert report.gigabytes_per_second > 0


def test_a_driver_that_pins_no_pages_of_ours_is_asked_for_its_own(
    late_gpu: LateGpu, make_file: MakeFile
) -> None:
    path = make_file([1536])
    late_gpu.fail("pin", 801)
    found, _ = load(late_gpu, path, LoaderOptions(threads=2, chunk_bytes=2 << 20))
    assert found == region_of(path)


@pytest.mark.parametrize(
    ("piece_bytes", "stride_bytes", "num_pieces"),
    [
        (100, 1000, 3),
        (231, 462, 3000),  # of several spans
        (64, 8255, 40),  # the widest gap that is read
        (64, 8256, 40),
        (1000, 20_000, 4),
        (70_000, 70_001, 9),  # more than half a span
        (5000, 5000, 50),  # no gap
    ],
)
def test_pieces_of_rows_are_gathered_into_one_copy(
    late_gpu: LateGpu, tmp_path: Path, piece_bytes: int, stride_bytes: int, num_pieces: int
) -> None:
    """The last piece is the file's end, behind which nothing can be read."""
    path = tmp_path / "rows"
    content = random.Random(3).randbytes(10 + (num_pieces - 1) * stride_bytes + piece_bytes)
    path.write_bytes(content)
    total = piece_bytes * num_pieces
    chunks = (Chunk(0, 10, total, 0, num_pieces, stride_bytes),)
    plan = ReadPlan(
        groups=(GroupReads(name="rows", sha256="", chunks=chunks),),
        end_bytes=len(content),
        total_bytes=total,
        largest_chunk_bytes=total,
    )
    address, source = late_gpu.memory(total), LocalSource(path)
    functions, found = late_gpu.copy_functions(), load_library()
    assert found is not None
    NativeLoad(found, functions, source, source, plan, address, SMALL).wait()
    source.close()
    wanted = [content[10 + stride_bytes * at :][:piece_bytes] for at in range(num_pieces)]
    assert late_gpu.bytes_of(address) == b"".join(wanted)


def test_each_group_can_be_waited_for_while_the_load_is_waited_for_as_well(
    late_gpu: LateGpu, make_file: MakeFile
) -> None:
    path = make_file([9, 1, 30, 4])
    wanted = region_of(path)
    running, source, address = begin(late_gpu, path)
    right: list[bool] = []

    def look() -> None:
        for group, (first, last) in enumerate([(0, 9), (9, 10), (10, 40), (40, 44)]):
            running.wait_for_group(group)
            there = late_gpu.bytes_of(address)[4096 * first : 4096 * last]
            right.append(there == wanted[4096 * first : 4096 * last])

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    running.wait()
    for thread in threads:
        thread.join()
    running.wait_for_group(3)  # also behind its end
    source.close()
    assert right == [True] * 12
    assert running.num_bytes() == (len(wanted), len(wanted))


def test_who_waits_for_a_group_is_told_what_stopped_the_load(
    late_gpu: LateGpu, make_file: MakeFile
) -> None:
    path = make_file([3, 400])
    late_gpu.tell(hold_at=1)
    running, source, _ = begin(late_gpu, path)
    found: list[BaseException] = []

    def look() -> None:
        try:
            running.wait_for_group(1)
        except LoadCancelledError as error:
            found.append(error)

    thread = threading.Thread(target=look)
    thread.start()
    running.cancel()
    late_gpu.tell(hold_at=0)
    thread.join()
    with pytest.raises(LoadCancelledError):
        running.wait()
    with pytest.raises(LoadCancelledError):
        running.wait_for_group(0)
    source.close()
    assert len(found) == 1


def test_what_was_read_ahead_is_not_read_again(late_gpu: LateGpu, tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.zse", [12, 7])
    with ZSEReader(path) as reader:
        whole = WholeFile(reader.header)
    region = region_of(path)
    plain = LocalSource(path)
    plain.is_slow = lambda *_: True  # type: ignore[method-assign]
    ahead = AheadSource(plain, whole, threads=2, chunk_bytes=8192)
    while any(not one.done() for one in ahead._held.values()):
        time.sleep(0.001)
    address = late_gpu.memory(whole.length_bytes)
    mark = plain.as_struct()
    plain.as_struct = lambda: _without_file(mark)  # type: ignore[method-assign]
    start_load(late_gpu, ahead, whole, address, SMALL).wait()
    ahead.close()
    assert late_gpu.bytes_of(address) == region


def _without_file(file: Any) -> Any:
    file.fd = file.direct_fd = -1
    return file


def test_a_chunk_that_is_still_being_read_is_waited_for(late_gpu: LateGpu, tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.zse", [12, 7])
    with ZSEReader(path) as reader:
        whole = WholeFile(reader.header)
    plain, go_on, usual = LocalSource(path), threading.Event(), LocalSource.read_into

    def slow(offset_bytes: int, view: memoryview) -> None:
        go_on.wait(60)
        usual(plain, offset_bytes, view)

    plain.is_slow = lambda *_: True  # type: ignore[method-assign]
    plain.read_into = slow  # type: ignore[method-assign]
    ahead = AheadSource(plain, whole, threads=2, chunk_bytes=8192)
    address = late_gpu.memory(whole.length_bytes)
    running = start_load(late_gpu, ahead, whole, address, SMALL)
    time.sleep(0.02)
    assert running.num_bytes()[0] < whole.length_bytes
    go_on.set()
    running.wait()
    ahead.close()
    assert late_gpu.bytes_of(address) == region_of(path)


def test_a_chunk_whose_reading_ahead_failed_is_read_again(
    late_gpu: LateGpu, tmp_path: Path
) -> None:
    path = write_model(tmp_path / "model.zse", [12])
    with ZSEReader(path) as reader:
        whole = WholeFile(reader.header)
    plain = LocalSource(path)

    def broken(offset_bytes: int, view: memoryview) -> None:
        raise StoreError("not now")

    plain.is_slow = lambda *_: True  # type: ignore[method-assign]
    plain.read_into = broken  # type: ignore[method-assign]
    ahead = AheadSource(plain, whole, threads=2, chunk_bytes=8192)
    address = late_gpu.memory(whole.length_bytes)
    start_load(late_gpu, ahead, whole, address, SMALL).wait()
    ahead.close()
    assert late_gpu.bytes_of(address) == region_of(path)


# --- bad days -----------------------------------------------------------------------------------


@pytest.mark.parametrize("direct", ["never", "always"])
def test_a_file_cut_short_while_it_is_loaded_names_both_sizes(
    late_gpu: LateGpu, make_file: MakeFile, direct: DirectMode
) -> None:
    path = make_file([10, 50])
    size = path.stat().st_size
    with path.open("r+b") as file:
        late_gpu.tell(cut_at=5, cut_fd=file.fileno(), cut_bytes=size - 20 * 4096)
        with breaks(Rule.FILE_SHRANK, match=f"has {size - 20 * 4096} bytes now; it had {size}"):
            load(late_gpu, path, SMALL, direct)


def test_a_file_written_to_while_it_is_loaded_is_an_error(
    late_gpu: LateGpu, make_file: MakeFile
) -> None:
    path = make_file([10])
    late_gpu.tell(hold_at=1)
    running, source, _ = begin(late_gpu, path)
    os.utime(path, ns=(1, 1))
    late_gpu.tell(hold_at=0)
    with pytest.raises(SourceChangedError, match="was written to while it was read"):
        running.wait()
    source.close()


@pytest.mark.parametrize(
    "function",
    ["set_current", "create_stream", "synchronize", "copy", "allocate", "destroy_stream"],
)
def test_a_function_that_fails_is_named_and_everything_is_given_back(
    late_gpu: LateGpu, make_file: MakeFile, function: str
) -> None:
    late_gpu.fail(function, 719, at=2 if function == "copy" else 1)
    options = LoaderOptions(threads=4, chunk_bytes=4096)
    with pytest.raises(DeviceLostError, match=f"^{function} of 4096 bytes: 719"):
        load(late_gpu, make_file([100]), options)
    assert late_gpu.ask("copies") <= 100


def test_a_failure_in_the_middle_stops_every_thread(late_gpu: LateGpu, make_file: MakeFile) -> None:
    late_gpu.fail("copy", 700, at=4)
    with pytest.raises(DeviceLostError, match="700"):
        load(late_gpu, make_file([300]), LoaderOptions(threads=4, chunk_bytes=4096))
    assert late_gpu.ask("copies") == 3


def test_a_load_can_be_cancelled(late_gpu: LateGpu, make_file: MakeFile) -> None:
    late_gpu.tell(hold_at=3)
    options = LoaderOptions(threads=2, chunk_bytes=4096)
    running, source, _ = begin(late_gpu, make_file([100]), options)
    while not late_gpu.ask("held"):
        time.sleep(0.001)
    running.cancel()
    late_gpu.tell(hold_at=0)
    with pytest.raises(LoadCancelledError, match="was stopped"):
        running.wait()
    running.cancel()  # behind the end it does nothing
    source.close()
    assert late_gpu.ask("copies") <= 6


def test_a_read_error_names_the_file_and_the_place(late_gpu: LateGpu, make_file: MakeFile) -> None:
    running_source = LocalSource.as_struct

    def of_a_folder(source: LocalSource) -> Any:
        file = running_source(source)
        file.direct_fd, file.fd = -1, os.open("/", os.O_RDONLY)
        return file

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalSource, "as_struct", of_a_folder)
        with pytest.raises(StoreError, match=r"cannot read .*model\.zse at byte \d+: Is a dir"):
            load(late_gpu, make_file([5]))


def test_more_threads_than_the_system_gives_leave_none_behind(
    late_gpu: LateGpu, make_file: MakeFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = load_library()
    assert found is not None

    def none_started(order: Any, started: Any) -> None:
        started._obj.value = 2

    monkeypatch.setattr(found, "start", none_started)
    with pytest.raises(StoreError, match="2 of 3 threads"):
        begin(late_gpu, make_file([40, 40, 40]))


def test_a_library_of_another_version_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / loader_library.architecture() / loader_library.FILE_NAME
    path.parent.mkdir()
    monkeypatch.setattr(loader_library, "LIBRARIES", tmp_path)
    load_library.cache_clear()
    assert load_library() is None
    path.write_bytes(b"\x7fELF and no more")
    load_library.cache_clear()
    assert load_library() is None
    assert "cannot be used" in caplog.text
    load_library.cache_clear()


def test_structures_of_another_size_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = load_library()
    assert found is not None
    monkeypatch.setattr(loader_library.structs, "Ahead", ctypes.c_int64)
    with pytest.raises(ValueError, match="expected"):
        LoaderLibrary(found.path)
