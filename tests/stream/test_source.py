"""Files of this machine: whole reads, past the page cache when they are cold, clear errors."""

from __future__ import annotations

import mmap
import os
import random
from typing import TYPE_CHECKING

import pytest
from broken_rules import breaks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zse.errors import NotFoundError, SourceChangedError, UsageError
from zse.format.errors import Rule
from zse.stream import residency
from zse.stream.residency import PageCacheMap
from zse.stream.source import LocalSource

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGES = 24
DATA = random.Random(1).randbytes(PAGES * 4096)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "data"
    found.write_bytes(DATA)
    return found


@pytest.fixture
def buffer() -> Iterator[memoryview]:
    with mmap.mmap(-1, PAGES * 4096) as area, memoryview(area) as view:
        yield view


@settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(offset=st.integers(0, len(DATA)), length=st.integers(0, len(DATA)), data=st.data())
def test_any_range_is_read_whole_with_any_mode(
    path: Path, offset: int, length: int, data: st.DataObject
) -> None:
    mode = data.draw(st.sampled_from(["auto", "always", "never"]))
    length = min(length, len(DATA) - offset)
    found = bytearray(length)
    source = LocalSource(path, direct=mode)
    source.read_into(offset, memoryview(found))
    source.close()
    assert found == DATA[offset : offset + length]


def test_short_reads_are_continued(
    path: Path, buffer: memoryview, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.preadv

    def short(fd: int, views: list[memoryview], offset: int) -> int:
        with views[0][:3000] as part:
            return whole(fd, [part], offset)

    monkeypatch.setattr("os.preadv", short)
    source = LocalSource(path, direct="never")
    source.read_into(0, buffer)
    source.close()
    assert buffer == DATA


def test_a_direct_read_that_ends_off_a_page_is_finished_by_a_buffered_one(
    path: Path, buffer: memoryview, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, sizes = os.preadv, iter([4096, 1000])

    def short(fd: int, views: list[memoryview], offset: int) -> int:
        with views[0][: next(sizes, None)] as part:
            return whole(fd, [part], offset)

    monkeypatch.setattr("os.preadv", short)
    source = LocalSource(path, direct="always")
    source.read_into(0, buffer)
    source.close()
    assert buffer == DATA


def test_a_file_system_that_refuses_direct_reads_is_read_buffered(
    path: Path, buffer: memoryview, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = os.open

    def refuse(name: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return opening(name, flags, mode)

    monkeypatch.setattr("os.open", refuse)
    source = LocalSource(path, direct="always")
    source.read_into(0, buffer)
    assert source.kind == "page cache"
    source.close()
    assert buffer == DATA


@pytest.mark.parametrize(("share", "kind"), [(0.0, "direct"), (0.4, "direct"), (1.0, "page cache")])
def test_cold_chunks_are_read_direct_and_cached_ones_are_not(
    path: Path, buffer: memoryview, monkeypatch: pytest.MonkeyPatch, share: float, kind: str
) -> None:
    monkeypatch.setattr(PageCacheMap, "resident_share", lambda *_: share)
    source = LocalSource(path)
    slow = source.is_slow(0, len(buffer))
    source.read_into(0, buffer)
    found = source.kind
    source.close()
    assert buffer == DATA
    if source_can_be_direct(path):
        assert (found, slow) == (kind, kind == "direct")


def source_can_be_direct(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


def test_the_page_cache_is_seen_without_being_filled(path: Path) -> None:
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    cache = PageCacheMap(fd, len(DATA))
    before = cache.resident_share(0, len(DATA))
    assert cache.resident_share(0, len(DATA)) == before
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead
    os.pread(fd, 4096 * 3, 4096 * 8)
    assert cache.resident_share(4096 * 8, 4096 * 3) == 1.0
    cache.close()
    assert cache.resident_share(0, len(DATA)) == 1.0
    os.close(fd)


def test_of_a_long_range_parts_from_end_to_end_are_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "long"
    pages = 1024
    path.write_bytes(bytes(pages * 4096))
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    cache = PageCacheMap(fd, pages * 4096)
    before = cache.resident_share(0, pages * 4096)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead
    os.pread(fd, 4096 * 512, 4096 * 512)
    half = cache.resident_share(0, pages * 4096)
    os.pread(fd, 4096 * 512, 0)
    assert cache.resident_share(0, pages * 4096) == 1.0
    assert half == (1.0 if before else 0.5)  # some file systems keep what they are told to drop
    cache.close()
    os.close(fd)


def test_whoever_may_not_ask_takes_a_file_for_cached(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residency, "_may_ask", lambda _fd: False)
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    cache = PageCacheMap(fd, len(DATA))
    assert cache.resident_share(0, len(DATA)) == 1.0
    cache.close()
    os.close(fd)


@pytest.mark.parametrize("mode", ["always", "never"])
def test_a_file_that_shrank_names_both_sizes(path: Path, buffer: memoryview, mode: str) -> None:
    source = LocalSource(path, direct=mode)
    os.truncate(path, 4096 * 5 + 100)
    with breaks(Rule.FILE_SHRANK, match=f"has 20580 bytes now; it had {len(DATA)}"):
        source.read_into(0, buffer)
    with breaks(Rule.FILE_SHRANK):
        source.check_unchanged()
    source.close()


def test_a_file_that_grew_or_was_written_to_is_noticed(path: Path) -> None:
    source = LocalSource(path)
    source.check_unchanged()
    with path.open("ab") as file:
        file.write(b"more")
    with pytest.raises(SourceChangedError):
        source.check_unchanged()
    source.close()


def test_interrupting_a_file_is_harmless(path: Path, buffer: memoryview) -> None:
    source = LocalSource(path)
    source.interrupt()
    source.read_into(0, buffer)
    source.close()
    source.close()
    assert buffer == DATA


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no file"):
        LocalSource(tmp_path / "absent")
    with pytest.raises(NotFoundError, match="not a regular file"):
        LocalSource(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotFoundError, match="not a regular file"):
        LocalSource(tmp_path / "pipe")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(UsageError, match="cannot be opened"):
        LocalSource(loop)
