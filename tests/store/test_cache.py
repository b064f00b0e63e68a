"""The cache of fetched objects: limit, order of eviction, and what is never evicted."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from zse.errors import DiskFullError, StoreError
from zse.settings import load_settings
from zse.store import cache as cache_module
from zse.store.cache import Cache
from zse.store.cache_items import (
    find_items,
    is_item_used,
    remove_idle_locks,
    remove_item,
    shrink,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from faulty_s3 import FaultyS3

    from zse.store.cache_kinds import CacheItem


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


def urls(cache_dir: Path) -> list[str]:
    return [item.name.rpartition("/")[2] for item in find_items(cache_dir)]


def test_what_was_used_longest_ago_makes_room(faulty_s3: FaultyS3, tmp_path: Path) -> None:
    cache = Cache(replace(load_settings(), cache_dir=tmp_path, cache_gib=3500 / (1 << 30)))
    fetch_in_order(cache, faulty_s3, "a.zse", "b.zse", "c.zse")
    cache.fetch("s3://bucket/a.zse")  # used again: b is the oldest now
    release_all()
    cache.fetch(put(faulty_s3, "d.zse"))
    assert sorted(urls(tmp_path)) == ["a.zse", "c.zse", "d.zse"]
    leftovers = {path.suffix for path in cache.folder.iterdir()}
    assert leftovers == {".zse", ".json", ".lock"}
    assert len(list(cache.folder.glob("*.json"))) == 3


def test_what_this_process_fetched_is_not_evicted(faulty_s3: FaultyS3, tmp_path: Path) -> None:
    cache = Cache(replace(load_settings(), cache_dir=tmp_path, cache_gib=2000 / (1 << 30)))
    first = cache.fetch(put(faulty_s3, "a.zse"))
    second = cache.fetch(put(faulty_s3, "b.zse"))
    third = cache.fetch(put(faulty_s3, "c.zse"))
    assert all(path.exists() for path in (first, second, third))


def test_what_another_process_has_open_is_not_evicted(faulty_s3: FaultyS3, tmp_path: Path) -> None:
    cache = Cache(replace(load_settings(), cache_dir=tmp_path))
    old, new = fetch_in_order(cache, faulty_s3, "a.zse", "b.zse")
    code = "import sys; file = open(sys.argv[1], 'rb'); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, old], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert [is_item_used(tmp_path, entry) for entry in find_items(tmp_path)] == [True, False]
        assert [entry.path for entry in shrink(tmp_path, 0)] == [new]
        assert child.stdin is not None
        child.stdin.close()
    assert [entry.path for entry in shrink(tmp_path, 0)] == [old]
    assert [path.name for path in tmp_path.iterdir()] == ["CACHEDIR.TAG"]


def test_an_object_over_the_limit_is_refused_and_evicts_nothing(
    faulty_s3: FaultyS3, tmp_path: Path
) -> None:
    cache = Cache(replace(load_settings(), cache_dir=tmp_path, cache_gib=1500 / (1 << 30)))
    fetch_in_order(cache, faulty_s3, "a.zse")
    with pytest.raises(DiskFullError, match="the cache may hold 1500") as caught:
        cache.fetch(put(faulty_s3, "b.zse", 1501))
    assert caught.value.hint == "Raise ZSE_CACHE_GIB."
    assert urls(tmp_path) == ["a.zse"]
    shrink(tmp_path, 0)
    remove_idle_locks(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["CACHEDIR.TAG"]


def test_a_full_disk_evicts_and_then_is_an_error(
    faulty_s3: FaultyS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(replace(load_settings(), cache_dir=tmp_path))
    fetch_in_order(cache, faulty_s3, "a.zse", "b.zse")
    monkeypatch.setattr(
        "shutil.disk_usage", lambda _: type("Usage", (), {"free": cache_module._SPARE_BYTES - 1})
    )
    cache.fetch(put(faulty_s3, "c.zse", 500))
    assert urls(tmp_path) == ["b.zse", "c.zse"]
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with pytest.raises(DiskFullError, match="has 10 free"):
        cache.fetch(put(faulty_s3, "d.zse", 500))


def test_a_download_that_stopped_is_listed_and_taken_up(
    faulty_s3: FaultyS3, tmp_path: Path
) -> None:
    cache = Cache(replace(load_settings(), cache_dir=tmp_path))

    def stop(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.fetch(put(faulty_s3, "a.zse"), stop)
    (left,) = find_items(tmp_path)
    assert (left.is_whole, left.size_bytes, left.name) == (False, 1000, "s3://bucket/a.zse")
    reads = len(faulty_s3.seen("^GET"))
    path = cache.fetch("s3://bucket/a.zse")
    assert path.read_bytes() == b"a" * 1000
    assert len(faulty_s3.seen("^GET")) == reads
    assert [entry.is_whole for entry in find_items(tmp_path)] == [True]


def test_what_is_being_fetched_is_not_removed(faulty_s3: FaultyS3, tmp_path: Path) -> None:
    cache = Cache(replace(load_settings(), cache_dir=tmp_path))
    seen: list[tuple[CacheItem, bool]] = []

    def look(_done: int, _total: int) -> None:
        seen.extend((entry, remove_item(tmp_path, entry)) for entry in find_items(tmp_path))

    path = cache.fetch(put(faulty_s3, "a.zse"), look)
    assert [removed for _, removed in seen] == [False]
    assert path.read_bytes() == b"a" * 1000


def test_files_with_names_that_zse_does_not_give_are_left_alone(
    faulty_s3: FaultyS3, tmp_path: Path
) -> None:
    cache = Cache(replace(load_settings(), cache_dir=tmp_path))
    fetch_in_order(cache, faulty_s3, "a.zse")
    (cache.folder / "my-model-int8.zse").write_bytes(b"put here by its owner")
    assert len(shrink(tmp_path, 0)) == 1
    assert [path.name for path in cache.folder.iterdir()] == ["my-model-int8.zse"]


def test_a_model_that_is_made_is_made_once_and_counts_like_one_that_is_fetched(
    faulty_s3: FaultyS3, tmp_path: Path
) -> None:
    cache = Cache(replace(load_settings(), cache_dir=tmp_path, cache_gib=3500 / (1 << 30)))
    made = []

    def write(path: Path) -> None:
        made.append(path)
        path.write_bytes(bytes(2000))

    name = f"tiny-int8-{'0' * 20}.zse"
    path = cache.make(name, "tiny as int8", write)
    assert cache.make(name, "tiny as int8", write) == path
    assert made == [path]
    release_all()
    os.utime(path.with_suffix(".json"), (0, 0))
    assert urls(tmp_path) == ["tiny as int8"]
    cache.fetch(put(faulty_s3, "a.zse", 2000))
    assert urls(tmp_path) == ["a.zse"]


def test_making_a_model_makes_room_for_it(tmp_path: Path, faulty_s3: FaultyS3) -> None:
    cache = Cache(replace(load_settings(), cache_dir=tmp_path, cache_gib=2500 / (1 << 30)))
    fetch_in_order(cache, faulty_s3, "a.zse", "b.zse")
    path = cache.make(
        f"m-int4-{'1' * 20}.zse", "m as int4", lambda path: path.write_bytes(bytes(1000))
    )
    assert path.exists()
    assert urls(tmp_path) == ["b.zse", "m as int4"]


def test_what_a_stopped_conversion_left_is_one_unfinished_item_and_goes(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    name = f"Qwen2.5-0.5B-int4-{'a' * 20}.zse"
    for suffix in (".partial", ".partial.json", ".lock"):
        (folder / f"{name}{suffix}").write_bytes(b"12345")
    (item,) = find_items(tmp_path)
    assert (item.name, item.size_bytes, item.is_whole) == (name[:-4], 5, False)
    assert remove_item(tmp_path, item)
    assert list(tmp_path.iterdir()) == []


def test_an_entry_that_was_deleted_by_hand_is_fetched_again(
    faulty_s3: FaultyS3, tmp_path: Path
) -> None:
    cache = Cache(replace(load_settings(), cache_dir=tmp_path))
    path = cache.fetch(put(faulty_s3, "a.zse"))
    path.unlink()
    assert cache.fetch("s3://bucket/a.zse").read_bytes() == b"a" * 1000


def test_an_empty_cache_holds_nothing(tmp_path: Path) -> None:
    assert find_items(tmp_path / "absent") == []
    assert shrink(tmp_path / "absent", 0) == []


def test_a_cache_folder_that_cannot_be_made_is_an_error_with_words(
    faulty_s3: FaultyS3, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    cache = Cache(replace(load_settings(), cache_dir=tmp_path / "file"))
    with pytest.raises(StoreError, match=r"/file \(ZSE_CACHE_DIR\) cannot be used: "):
        cache.fetch(put(faulty_s3, "a.zse"))
