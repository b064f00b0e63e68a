"""What threads of C read before there is a device: a load copies out of that, and gives it back."""

from __future__ import annotations

import random
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from host_gpu import DeviceLostError
from late_driver import LateGpu, late_gpu

from tests.stream.conftest import write_model
from zse.device.loader import library as loader_library
from zse.device.loader.library import load_library
from zse.errors import MissingDependencyError
from zse.format.reader import ZSEReader
from zse.kernels.native.build_loader import build_loader
from zse.stream import loader
from zse.stream.ahead import AheadSource
from zse.stream.loader import begin_load, begin_to_read, plan_load
from zse.stream.options import LoaderOptions, LoadReport
from zse.stream.placement import WholeFile
from zse.stream.source import LocalSource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    MakeFile = Callable[[Sequence[int]], Path]

__all__ = ["late_gpu"]

OPTIONS = LoaderOptions(threads=3, chunk_bytes=1 << 20, ahead_bytes=1 << 40)


@pytest.fixture(scope="module", autouse=True)
def _library() -> None:
    """Have the library that this checkout's sources give."""
    try:
        build_loader([loader_library.architecture()])
    except MissingDependencyError as error:
        pytest.skip(str(error))
    load_library.cache_clear()


def load(
    gpu: LateGpu, path: Path, options: LoaderOptions = OPTIONS, *, is_read: bool = True
) -> tuple[bytes, LoadReport]:
    """Load a file of which all that may be has been read before, or whatever has come by then."""
    with ZSEReader(path) as reader:
        whole = WholeFile(reader.header.loaded())
    with closing(AheadSource(LocalSource(path), whole)) as source:
        plan = plan_load(source, whole, options)
        threads = num_threads()
        ahead = begin_to_read(source, plan, options)
        if is_read:
            wait_for_threads(threads)
        address = gpu.memory(whole.length_bytes)
        report = begin_load(gpu, source, plan, address, options, ahead=ahead).wait()
    assert gpu.ask("live") == 0
    assert gpu.ask("pinned") == 0
    return gpu.bytes_of(address), report


def num_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def wait_for_threads(most: int) -> None:
    """Wait until all is read: whoever reads it ends then."""
    deadline = time.monotonic() + 60
    while num_threads() > most and time.monotonic() < deadline:
        time.sleep(0.001)
    assert num_threads() <= most


def region_of(path: Path) -> bytes:
    with ZSEReader(path) as reader:
        whole = WholeFile(reader.header)
    return path.read_bytes()[whole.origin_bytes :][: whole.length_bytes]


@pytest.mark.parametrize("seed", range(6))
def test_the_device_holds_the_region_however_much_was_read_before(
    tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    pages = [draw.randint(1, 3000) for _ in range(draw.randint(1, 5))]
    path = write_model(tmp_path / "model.zse", pages, large_bytes=3000)
    options = replace(
        OPTIONS,
        threads=draw.randint(1, 6),
        chunk_bytes=draw.choice([4096, 65536, 1 << 20]),
        buffers_per_thread=draw.randint(1, 2),
        ahead_bytes=draw.choice([4096, 5 << 20, 1 << 40]),
    )
    found, report = load(LateGpu(), path, options, is_read=draw.random() < 0.5)
    assert found == region_of(path)
    assert report.num_bytes == len(found)
    assert report.source == "page cache"


def test_what_was_read_before_is_copied_from_where_it_lies(
    late_gpu: LateGpu, make_file: MakeFile
) -> None:
    path = make_file([5000, 5000])
    found, _ = load(late_gpu, path)
    assert found == region_of(path)
    assert late_gpu.ask("most_pinned") >= len(found)


def test_little_memory_is_left_to_others(
    make_file: MakeFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_file([3000])
    with ZSEReader(path) as reader:
        whole = WholeFile(reader.header.loaded())
    monkeypatch.setattr(loader, "host_memory", lambda: (1 << 40, 16 * (3 << 20)))
    with closing(AheadSource(LocalSource(path), whole)) as source:
        ahead = begin_to_read(source, plan_load(source, whole, OPTIONS), OPTIONS)
        assert ahead is not None
        ahead.close()
    assert ahead.count == 3


def test_memory_that_cannot_be_pinned_is_copied_once_more(
    late_gpu: LateGpu, make_file: MakeFile
) -> None:
    path = make_file([3000])
    late_gpu.fail("pin", 801)
    assert load(late_gpu, path)[0] == region_of(path)


@pytest.mark.parametrize("function", ["copy", "synchronize", "create_stream"])
def test_a_device_that_fails_has_everything_back(
    late_gpu: LateGpu, make_file: MakeFile, function: str
) -> None:
    late_gpu.fail(function, 719)
    with pytest.raises(DeviceLostError, match=function):
        load(late_gpu, make_file([3000, 3000]))


def test_what_no_load_takes_is_given_back(make_file: MakeFile) -> None:
    path = make_file([3000])
    with ZSEReader(path) as reader:
        whole = WholeFile(reader.header.loaded())
    with closing(AheadSource(LocalSource(path), whole)) as source:
        before = num_threads()
        ahead = begin_to_read(source, plan_load(source, whole, OPTIONS), OPTIONS)
        assert ahead is not None
        ahead.close()
        ahead.close()
        assert num_threads() <= before


@pytest.mark.parametrize(
    "options",
    [
        replace(OPTIONS, ahead_bytes=0),
        replace(OPTIONS, ahead_bytes=4096, chunk_bytes=8192),
        replace(OPTIONS, is_verified=True),
    ],
    ids=["not asked for", "less than a chunk", "checked on its way"],
)
def test_nothing_is_read_before(make_file: MakeFile, options: LoaderOptions) -> None:
    path = make_file([64])
    with ZSEReader(path) as reader:
        whole = WholeFile(reader.header.loaded())
    with closing(AheadSource(LocalSource(path), whole)) as source:
        assert begin_to_read(source, plan_load(source, whole, options), options) is None
