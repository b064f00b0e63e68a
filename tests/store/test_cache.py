"""The cache of fetched objects: limit, order of eviction, and what is never evicted."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from zse.errors import DiskFullError, StoreError
from zse.store import cache as cache_module
from zse.store.cache import Cache, CacheEntry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from faulty_s3 import FaultyS3


@pytest.fixture(autouse=True)
def nothing_held() -> Iterator[None]:
    """Forget what this process holds, before and after."""
    release_all()
    yield
    release_all()


def release_all() -> None:
    for descriptor in cache_module._held.values():
        os.close(descriptor)
    cache_module._held.clear()


def put(server: FaultyS3, name: str, size_bytes: int = 1000) -> str:
    server.objects[f"/bucket/{name}"] = (name[0].encode() * size_bytes, {})
    return f"s3://bucket/{name}"


def fetch_in_order(cache: Cache, server: FaultyS3, *names: str) -> list[Path]:
    """Fetch objects whose last use is a second apart; hold none of them."""
    paths = [cache.fetch(put(server, name)) for name in names]
    release_all()
    for second, path in enumerate(paths):
        os.utime(path.with_suffix(".json"), (second, second))
    return paths


def urls(cache: Cache) -> list[str]:
    return [entry.url.rpartition("/")[2] for entry in cache.entries()]


def test_what_was_used_longest_ago_makes_room(faulty_s3: FaultyS3, tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit_bytes=3500)
    fetch_in_order(cache, faulty_s3, "a.zse", "b.zse", "c.zse")
    cache.fetch("s3://bucket/a.zse")  # used again: b is the oldest now
    release_all()
    cache.fetch(put(faulty_s3, "d.zse"))
    assert sorted(urls(cache)) == ["a.zse", "c.zse", "d.zse"]
    leftovers = {path.suffix for path in cache.folder.iterdir()}
    assert leftovers == {".zse", ".json", ".lock"}
    assert len(list(cache.folder.glob("*.json"))) == 3


def test_what_this_process_fetched_is_not_evicted(faulty_s3: FaultyS3, tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit_bytes=2000)
    first = cache.fetch(put(faulty_s3, "a.zse"))
    second = cache.fetch(put(faulty_s3, "b.zse"))
    third = cache.fetch(put(faulty_s3, "c.zse"))
    assert all(path.exists() for path in (first, second, third))


def test_what_another_process_has_open_is_not_evicted(faulty_s3: FaultyS3, tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    old, new = fetch_in_order(cache, faulty_s3, "a.zse", "b.zse")
    code = "import sys; file = open(sys.argv[1], 'rb'); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, old], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert [cache.is_in_use(entry) for entry in cache.entries()] == [True, False]
        assert [entry.path for entry in cache.shrink(0)] == [new]
        assert child.stdin is not None
        child.stdin.close()
    assert [entry.path for entry in cache.shrink(0)] == [old]
    assert list(cache.folder.iterdir()) == []


def test_an_object_over_the_limit_is_refused_and_evicts_nothing(
    faulty_s3: FaultyS3, tmp_path: Path
) -> None:
    cache = Cache(tmp_path, limit_bytes=1500)
    fetch_in_order(cache, faulty_s3, "a.zse")
    with pytest.raises(DiskFullError, match="the cache may hold 1500") as caught:
        cache.fetch(put(faulty_s3, "b.zse", 1501))
    assert caught.value.hint == "Raise ZSE_CACHE_GIB."
    assert urls(cache) == ["a.zse"]


def test_a_full_disk_evicts_and_then_is_an_error(
    faulty_s3: FaultyS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path)
    fetch_in_order(cache, faulty_s3, "a.zse", "b.zse")
    monkeypatch.setattr(
        "shutil.disk_usage", lambda _: type("Usage", (), {"free": cache_module._SPARE_BYTES - 1})
    )
    cache.fetch(put(faulty_s3, "c.zse", 500))
    assert urls(cache) == ["b.zse", "c.zse"]
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with pytest.raises(DiskFullError, match="has 10 free"):
        cache.fetch(put(faulty_s3, "d.zse", 500))


def test_a_download_that_stopped_is_listed_and_taken_up(
    faulty_s3: FaultyS3, tmp_path: Path
) -> None:
    cache = Cache(tmp_path)

    def stop(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.fetch(put(faulty_s3, "a.zse"), stop)
    (left,) = cache.entries()
    assert (left.is_whole, left.size_bytes, left.url) == (False, 1000, "s3://bucket/a.zse")
    reads = len(faulty_s3.seen("GET"))
    path = cache.fetch("s3://bucket/a.zse")
    assert path.read_bytes() == b"a" * 1000
    assert len(faulty_s3.seen("GET")) == reads
    assert [entry.is_whole for entry in cache.entries()] == [True]


def test_what_is_being_fetched_is_not_removed(faulty_s3: FaultyS3, tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    seen: list[tuple[CacheEntry, bool]] = []

    def look(_done: int, _total: int) -> None:
        seen.extend((entry, cache.remove(entry)) for entry in cache.entries())

    path = cache.fetch(put(faulty_s3, "a.zse"), look)
    assert [removed for _, removed in seen] == [False]
    assert path.read_bytes() == b"a" * 1000


def test_files_that_the_cache_did_not_fetch_are_left_alone(
    faulty_s3: FaultyS3, tmp_path: Path
) -> None:
    cache = Cache(tmp_path)
    fetch_in_order(cache, faulty_s3, "a.zse")
    (cache.folder / "tiny-int8.zse").write_bytes(b"converted here")
    assert len(cache.shrink(0)) == 1
    assert [path.name for path in cache.folder.iterdir()] == ["tiny-int8.zse"]


def test_an_entry_that_was_deleted_by_hand_is_fetched_again(
    faulty_s3: FaultyS3, tmp_path: Path
) -> None:
    cache = Cache(tmp_path)
    path = cache.fetch(put(faulty_s3, "a.zse"))
    path.unlink()
    assert cache.fetch("s3://bucket/a.zse").read_bytes() == b"a" * 1000


def test_an_empty_cache_holds_nothing(tmp_path: Path) -> None:
    assert Cache(tmp_path).entries() == []
    assert Cache(tmp_path).shrink(0) == []


def test_a_cache_folder_that_cannot_be_made_is_an_error_with_words(
    faulty_s3: FaultyS3, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file")
    with pytest.raises(StoreError, match=r"cannot use .*/file/models: Not a directory"):
        cache.fetch(put(faulty_s3, "a.zse"))
