from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

import pytest

from zse.errors import DiskFullError, NotFoundError, StoreError
from zse.settings import load_settings
from zse.store import open_store
from zse.store.local import LocalWriter

if TYPE_CHECKING:
    from pathlib import Path


def names(folder: Path) -> list[str]:
    return sorted(item.name for item in folder.iterdir())


def test_chunks_are_read_from_their_offset(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(range(100)))
    store = open_store(path, load_settings())
    assert store.size() == 100
    assert [bytes(chunk) for chunk in store.read_chunks(96)] == [b"\x60\x61\x62\x63"]
    assert list(store.read_chunks(100)) == []


def test_a_file_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a", load_settings())
    assert not store.exists()
    for action in (store.size, lambda: list(store.read_chunks()), lambda: list(store.list())):
        with pytest.raises(NotFoundError, match="does not exist"):
            action()


def test_a_folder_is_not_readable_as_a_file(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot read"):
        list(open_store(tmp_path, load_settings()).read_chunks())


def test_a_writer_publishes_only_at_the_end(tmp_path: Path) -> None:
    store = open_store(tmp_path / "new" / "a", load_settings())
    with LocalWriter(store.location.path) as writer:
        assert writer.write(b"one") == 3
        writer.write(memoryview(b"two"))
        assert not store.exists()
    assert store.location.path.read_bytes() == b"onetwo"
    assert names(tmp_path / "new") == ["a"]


def test_a_published_file_has_ordinary_permissions(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with LocalWriter(tmp_path / "a") as writer:
            writer.write(b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def interrupted() -> None:
        with LocalWriter(path) as writer:
            writer.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_a_full_disk_is_its_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", no_room)
    with (
        pytest.raises(DiskFullError),
        LocalWriter(tmp_path / "a") as writer,
    ):
        writer.write(b"x")
    monkeypatch.undo()
    assert names(tmp_path) == []


def test_a_parent_that_is_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    with (
        pytest.raises(StoreError, match="cannot write"),
        LocalWriter(tmp_path / "a/b"),
    ):
        pass


def test_listing_walks_folders_in_order(tmp_path: Path) -> None:
    for name in ("b/2", "a", "b/1"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    found = [
        (str(entry.location), entry.size_bytes)
        for entry in open_store(tmp_path, load_settings()).list()
    ]
    assert found == [(f"{tmp_path}/a", 1), (f"{tmp_path}/b/1", 3), (f"{tmp_path}/b/2", 3)]
    assert [entry.size_bytes for entry in open_store(tmp_path / "b/2", load_settings()).list()] == [
        3
    ]


def test_a_replaced_file_has_another_version(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"1234")
    before = open_store(path, load_settings()).version()
    assert open_store(path, load_settings()).version() == before
    (tmp_path / "b").write_bytes(b"5678")
    (tmp_path / "b").replace(path)
    assert open_store(path, load_settings()).version() != before
    with pytest.raises(NotFoundError):
        open_store(tmp_path / "absent", load_settings()).version()
