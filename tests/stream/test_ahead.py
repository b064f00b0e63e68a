"""Reading before the device is open: the same bytes, nothing read twice, nothing left behind."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loads import start_load

from tests.stream.conftest import write_model
from zse.errors import StoreError
from zse.format.reader import ZSEReader
from zse.stream.ahead import AheadSource
from zse.stream.options import LoaderOptions
from zse.stream.placement import WholeFile

if TYPE_CHECKING:
    from pathlib import Path

    from host_gpu import HostGpu

    from zse.format.spec import ZSEHeader

PAGES = [7, 1, 20]
OPTIONS = LoaderOptions(threads=3, chunk_bytes=8192)


class SlowSource:
    """Bytes in memory that count as far away; it notes what is read."""

    name, kind = "far", "http"

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size_bytes = len(data)
        self.reads: list[tuple[int, int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.is_closed = self.was_interrupted = False
        self.failure: Exception | None = None

    def is_slow(self, offset_bytes: int, length_bytes: int) -> bool:
        return True

    def read_into(self, offset_bytes: int, view: memoryview) -> None:
        self.gate.wait(60)
        if self.failure:
            raise self.failure
        self.reads.append((offset_bytes, len(view)))
        view[:] = self.data[offset_bytes : offset_bytes + len(view)]

    def check_unchanged(self) -> None:
        pass

    def interrupt(self) -> None:
        self.was_interrupted = True
        self.gate.set()

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def model(tmp_path: Path) -> tuple[SlowSource, ZSEHeader]:
    path = write_model(tmp_path / "model.zse", PAGES)
    with ZSEReader(path) as reader:
        return SlowSource(path.read_bytes()), reader.header


def region_of(source: SlowSource, header: ZSEHeader) -> bytes:
    whole = WholeFile(header)
    offset, length = whole.origin_bytes, whole.length_bytes
    return source.data[offset : offset + length]


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(num_pages=st.integers(0, 40), threads=st.integers(1, 4))
def test_every_byte_is_read_once_and_arrives(
    model: tuple[SlowSource, ZSEHeader], gpu: HostGpu, num_pages: int, threads: int
) -> None:
    source, header = model
    source.reads.clear()
    address = gpu.memory(WholeFile(header).length_bytes)
    ahead = AheadSource(
        source, WholeFile(header), num_bytes=num_pages * 4096, threads=threads, chunk_bytes=8192
    )
    start_load(gpu, ahead, WholeFile(header), address, OPTIONS).wait()
    ahead.close()
    assert gpu.bytes_of(address) == region_of(source, header)
    assert len(set(source.reads)) == len(source.reads)
    assert sum(length for _, length in source.reads) == sum(PAGES) * 4096
    assert source.is_closed


def test_memory_is_filled_before_there_is_a_device(model: tuple[SlowSource, ZSEHeader]) -> None:
    source, header = model
    ahead = AheadSource(source, WholeFile(header), num_bytes=5 * 4096, chunk_bytes=4096)
    ahead._pool.shutdown()  # waits for what was begun
    assert sorted(source.reads) == [
        (header.groups[0].offset_bytes + index * 4096, 4096) for index in range(5)
    ]
    assert (ahead.name, ahead.kind, ahead.size_bytes) == ("far", "http", source.size_bytes)
    ahead.close()


def test_what_is_cached_is_not_read_ahead(
    model: tuple[SlowSource, ZSEHeader], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, header = model
    monkeypatch.setattr(source, "is_slow", lambda *_: False)
    ahead = AheadSource(source, WholeFile(header))
    ahead.close()
    assert source.reads == []


def test_a_chunk_that_no_thread_has_begun_is_read_by_who_wants_it(
    model: tuple[SlowSource, ZSEHeader],
) -> None:
    source, header = model
    source.gate.clear()
    ahead = AheadSource(source, WholeFile(header), threads=1, chunk_bytes=8192)
    last = list(ahead._held)[-1]
    threading.Timer(0.05, source.gate.set).start()
    found = bytearray(last[1])
    ahead.read_into(last[0], memoryview(found))
    assert found == source.data[last[0] : sum(last)]
    ahead.close()


def test_an_error_ahead_reaches_the_load(model: tuple[SlowSource, ZSEHeader], gpu: HostGpu) -> None:
    source, header = model
    source.failure = StoreError("the line is dead")
    whole = WholeFile(header)
    ahead = AheadSource(source, whole, chunk_bytes=8192)
    with pytest.raises(StoreError, match="the line is dead"):
        start_load(gpu, ahead, whole, gpu.memory(whole.length_bytes), OPTIONS).wait()
    ahead.close()
    assert source.is_closed
    assert source.was_interrupted
