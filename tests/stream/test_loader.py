"""The loader on a device that copies as late as it may: right bytes, nothing leaked, clear errors."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest
from broken_rules import breaks
from host_gpu import DeviceLostError, HostGpu
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loads import start_load

from tests.stream.conftest import write_model
from zse.errors import LoadCancelledError, SourceChangedError, StoreError, UsageError
from zse.format.errors import Rule
from zse.format.reader import ZSEReader
from zse.stream.options import LoaderOptions, LoadReport
from zse.stream.placement import WholeFile
from zse.stream.source import LocalSource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from zse.format.spec import ZSEHeader

    MakeFile = Callable[[Sequence[int]], Path]

SMALL = LoaderOptions(threads=3, chunk_bytes=8192)


def header_of(path: Path) -> ZSEHeader:
    with ZSEReader(path) as reader:
        return reader.header


def region_of(path: Path) -> bytes:
    whole = WholeFile(header_of(path))
    offset, length = whole.origin_bytes, whole.length_bytes
    return path.read_bytes()[offset : offset + length]


def load(gpu: HostGpu, path: Path, options: LoaderOptions) -> tuple[bytes, LoadReport]:
    header = header_of(path)
    address = gpu.memory(WholeFile(header).length_bytes)
    source = LocalSource(path)
    try:
        report = start_load(gpu, source, WholeFile(header), address, options).wait()
    finally:
        source.close()
        assert gpu.live == set()
    return gpu.bytes_of(address), report


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
    is_verified=st.booleans(),
)
def test_the_device_holds_the_region_whatever_the_sizes(
    tmp_path: Path,
    pages: list[int],
    chunk_pages: int,
    threads: int,
    buffers: int,
    is_verified: bool,
) -> None:
    path = write_model(tmp_path / "model.zse", pages)
    gpu = HostGpu()
    options = LoaderOptions(
        threads=threads,
        chunk_bytes=chunk_pages * 4096,
        buffers_per_thread=buffers,
        is_verified=is_verified,
    )
    found, report = load(gpu, path, options)
    assert found == region_of(path)
    assert report.num_bytes == len(found)
    assert gpu.peak_pinned_bytes <= threads * buffers * chunk_pages * 4096


def test_the_report_says_where_the_time_went(gpu: HostGpu, make_file: MakeFile) -> None:
    _, report = load(gpu, make_file([20, 20]), LoaderOptions(chunk_bytes=8192, is_verified=True))
    assert set(report.phase_seconds) >= {"pin", "read", "copy", "digest"}
    assert report.gigabytes_per_second > 0
    assert report.source in ("page cache", "direct", "mixed")


def test_a_small_file_pins_little_and_takes_few_threads(gpu: HostGpu, make_file: MakeFile) -> None:
    _, report = load(gpu, make_file([2]), LoaderOptions())
    assert report.threads == 1
    assert gpu.peak_pinned_bytes == 2 * 4096


def test_each_group_can_be_waited_for_and_is_in_device_memory_then(
    gpu: HostGpu, make_file: MakeFile
) -> None:
    path = make_file([9, 1, 30])
    header = header_of(path)
    address = gpu.memory(WholeFile(header).length_bytes)
    wanted, origin = region_of(path), header.groups[0].offset_bytes
    source = LocalSource(path)
    running = start_load(gpu, source, WholeFile(header), address, SMALL)
    for number, group in enumerate(header.groups):
        running.wait_for_group(number)
        place = slice(group.offset_bytes - origin, group.end_bytes - origin)
        assert gpu.bytes_of(address)[place] == wanted[place]
    running.wait()
    source.close()
    assert running.num_bytes() == (len(wanted), len(wanted))


def test_chosen_groups_leave_the_rest_of_the_block_alone(gpu: HostGpu, make_file: MakeFile) -> None:
    path = make_file([3, 2, 4])
    header = header_of(path)
    address = gpu.memory(WholeFile(header).length_bytes)
    source = LocalSource(path)
    start_load(gpu, source, WholeFile(header), address, SMALL, groups=["layers.1"]).wait()
    source.close()
    found, wanted = gpu.bytes_of(address), region_of(path)
    middle = slice(3 * 4096, 5 * 4096)
    assert found[middle] == wanted[middle]
    assert found[: middle.start] == b"\xee" * middle.start
    assert found[middle.stop :] == b"\xee" * (4 * 4096)


# --- bad days -----------------------------------------------------------------------------------


def test_a_file_cut_short_while_it_is_loaded_names_both_sizes(
    gpu: HostGpu, make_file: MakeFile
) -> None:
    path = make_file([10, 50])
    size = path.stat().st_size

    def cut(count: int) -> None:
        if count == 5:
            os.truncate(path, size - 20 * 4096)

    gpu.on_copy = cut
    with breaks(Rule.FILE_SHRANK, match=f"has {size - 20 * 4096} bytes now; it had {size}"):
        load(gpu, path, SMALL)


def test_a_file_cut_short_before_it_is_loaded_is_refused(gpu: HostGpu, make_file: MakeFile) -> None:
    path = make_file([10])
    header = header_of(path)
    os.truncate(path, path.stat().st_size - 4096)
    source = LocalSource(path)
    with breaks(Rule.FILE_SHRANK, match="its header says that the tensors end"):
        start_load(gpu, source, WholeFile(header), gpu.memory(10 * 4096), SMALL).wait()
    source.close()
    assert gpu.num_copies == 0


def test_a_file_written_to_while_it_is_loaded_is_an_error(
    gpu: HostGpu, make_file: MakeFile
) -> None:
    path = make_file([10])
    gpu.on_copy = lambda _count: os.utime(path, ns=(1, 1))
    with pytest.raises(SourceChangedError, match="was written to while it was read"):
        load(gpu, path, SMALL)


def test_the_first_failure_stops_every_thread_and_frees_everything(
    gpu: HostGpu, make_file: MakeFile
) -> None:
    def fail(count: int) -> None:
        if count >= 4:  # the others may be faster than the first one that fails
            raise DeviceLostError("the device fell off the bus")

    gpu.on_copy = fail
    with pytest.raises(DeviceLostError, match="fell off the bus"):
        load(gpu, make_file([300]), LoaderOptions(threads=4, chunk_bytes=4096))
    assert gpu.num_copies < 300
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("zse-load")]


def test_a_load_can_be_cancelled(gpu: HostGpu, make_file: MakeFile) -> None:
    path = make_file([100])
    header = header_of(path)
    source = LocalSource(path)
    reached, go_on = threading.Event(), threading.Event()

    def hold(count: int) -> None:
        if count == 3:
            reached.set()
            go_on.wait(60)

    gpu.on_copy = hold
    options = LoaderOptions(threads=2, chunk_bytes=4096)
    running = start_load(gpu, source, WholeFile(header), gpu.memory(100 * 4096), options)
    reached.wait(60)
    running.cancel()
    go_on.set()
    with pytest.raises(LoadCancelledError, match="was stopped"):
        running.wait()
    source.close()
    assert gpu.live == set()
    assert gpu.num_copies < 100


def test_a_device_that_cannot_pin_memory_is_an_error(gpu: HostGpu, make_file: MakeFile) -> None:
    def refuse(length_bytes: int) -> None:
        raise DeviceLostError(f"cannot pin {length_bytes} bytes")

    gpu.allocate_host = refuse  # type: ignore[method-assign,assignment]
    with pytest.raises(DeviceLostError, match="cannot pin 8192 bytes"):
        load(gpu, make_file([40]), SMALL)


def test_damaged_bytes_are_found_when_asked(gpu: HostGpu, make_file: MakeFile) -> None:
    path = make_file([5, 5])
    with path.open("r+b") as file:
        file.seek(header_of(path).groups[1].offset_bytes + 7)
        file.write(b"x")
    load(gpu, path, SMALL)
    with breaks(Rule.CHECKSUM_MISMATCH, match=r"group layers\.1 of .*model\.zse has SHA-256"):
        load(gpu, path, LoaderOptions(chunk_bytes=8192, is_verified=True))


def test_a_read_error_names_the_file_and_the_place(
    gpu: HostGpu, make_file: MakeFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_file([5])

    def broken(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.preadv", broken)
    with pytest.raises(StoreError, match=r"cannot read .*model\.zse at byte \d+: Input/output"):
        load(gpu, path, SMALL)


def test_a_load_whose_threads_cannot_all_start_leaves_none_behind(
    gpu: HostGpu, make_file: MakeFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if thread.name == "zse-load-2":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(StoreError, match="2 of 3 threads"):
        load(gpu, make_file([40, 40, 40]), SMALL)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("zse-load")]


def test_options_without_a_thread_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        LoaderOptions(threads=0)
