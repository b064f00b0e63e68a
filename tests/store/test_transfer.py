from __future__ import annotations

import hashlib
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from zse.errors import MissingDependencyError, NotFoundError, StoreError
from zse.settings import load_settings
from zse.store import base as store_base
from zse.store import fetch, open_store, put_file
from zse.store.checksum import Checksum
from zse.store.copying import copy_object
from zse.store.local import LocalStore, LocalWriter
from zse.store.location import parse_location
from zse.store.s3_client import client_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from faulty_s3 import FaultyS3

CONTENT = b"0123456789" * 1000


def test_fetch_and_put_copy_local_files_and_tell_the_digest(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(CONTENT)
    steps: list[tuple[int, int]] = []
    put = put_file(
        tmp_path / "a", tmp_path / "b", load_settings(), progress=lambda *step: steps.append(step)
    )
    fetched = fetch(str(tmp_path / "b"), tmp_path / "c", load_settings())
    assert (tmp_path / "c").read_bytes() == CONTENT
    assert put == fetched
    assert put.sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert put.size_bytes == len(CONTENT)
    assert not put.verified
    assert steps == [(len(CONTENT), len(CONTENT))]


def test_an_empty_file_is_copied(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert fetch(tmp_path / "a", tmp_path / "b", load_settings()).size_bytes == 0
    assert (tmp_path / "b").read_bytes() == b""


def test_fetching_what_is_not_there_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        fetch(tmp_path / "a", tmp_path / "b", load_settings())
    assert list(tmp_path.iterdir()) == []


def test_progress_may_stop_a_copy(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(CONTENT)

    def stop(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(tmp_path / "a", tmp_path / "b", load_settings(), progress=stop)
    assert [item.name for item in tmp_path.iterdir()] == ["a"]


class Damaged(LocalStore):
    """A file whose recorded digest is another one's."""

    def checksum(self) -> Checksum | None:
        return Checksum(algorithm="sha256", value="0" * 64)


class Shortened(LocalStore):
    """A file that loses its end between two requests."""

    def read_chunks(self, offset: int = 0) -> Iterator[memoryview]:
        yield memoryview(CONTENT)[:-1]


@pytest.mark.parametrize("kind", [Damaged, Shortened])
def test_bytes_that_are_not_those_stored_are_never_published(
    kind: type[LocalStore], tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(CONTENT)
    target = LocalStore(parse_location(tmp_path / "b"))
    with pytest.raises(StoreError, match="does not hold what was stored"):
        copy_object(kind(parse_location(tmp_path / "a")), LocalWriter(target.location.path))
    assert not target.exists()


def test_importing_the_store_imports_no_boto3() -> None:
    code = "import sys, zse.store; sys.exit(any(m.startswith('boto') for m in sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_boto3_an_object_is_read_and_only_a_listing_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, faulty_s3: FaultyS3, tmp_path: Path
) -> None:
    client_of.cache_clear()
    faulty_s3.objects["/bucket/key"] = (CONTENT, {})
    for name in ("boto3", "botocore"):
        monkeypatch.setitem(sys.modules, name, None)
    fetch("s3://bucket/key", tmp_path / "a", load_settings())
    assert (tmp_path / "a").read_bytes() == CONTENT
    with pytest.raises(MissingDependencyError) as caught:
        list(open_store("s3://bucket/", load_settings()).list())
    assert "[s3]" in caught.value.hint


def test_every_store_keeps_the_protocol(tmp_path: Path) -> None:
    store: store_base.Store = LocalStore(parse_location(tmp_path))
    assert store.location.path == tmp_path
