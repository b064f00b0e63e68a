"""Models fetched from object storage, against a server that does what the test says."""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from faulty_s3 import faulty_s3

from zse.errors import NotFoundError, StoreError
from zse.quantize.locate import locate_model
from zse.settings import load_settings
from zse.store.s3_upload import SHA256_KEY

if TYPE_CHECKING:
    from pathlib import Path

    from faulty_s3 import FaultyS3, Handler

__all__ = ["faulty_s3"]
URL = "s3://bucket/models/tiny.zse"
PATH = "/bucket/models/tiny.zse"
OLD, NEW = b"old bytes" * 500, b"new bytes" * 500


def put(server: FaultyS3, data: bytes, *, recorded: bool = True) -> None:
    digest = hashlib.sha256(data).hexdigest()
    server.objects[PATH] = (data, {f"x-amz-meta-{SHA256_KEY}": digest} if recorded else {})


def names(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "models").iterdir() if path.suffix == ".zse")


def test_what_is_fetched_is_fetched_once(faulty_s3: FaultyS3, tmp_path: Path) -> None:
    put(faulty_s3, OLD)
    first = locate_model(URL, replace(load_settings(), cache_dir=tmp_path))
    assert first.read_bytes() == OLD
    reads = len(faulty_s3.seen("^GET"))
    assert locate_model(URL, replace(load_settings(), cache_dir=tmp_path)) == first
    assert len(faulty_s3.seen("^GET")) == reads
    assert names(tmp_path) == [first.name]


def test_an_object_that_was_replaced_by_one_as_long_gets_another_name(
    faulty_s3: FaultyS3, tmp_path: Path
) -> None:
    put(faulty_s3, OLD)
    old = locate_model(URL, replace(load_settings(), cache_dir=tmp_path))
    put(faulty_s3, NEW)
    new = locate_model(URL, replace(load_settings(), cache_dir=tmp_path))
    assert old != new
    assert (old.read_bytes(), new.read_bytes()) == (OLD, NEW)


def test_without_a_recorded_digest_the_servers_version_tells_a_replaced_object(
    faulty_s3: FaultyS3, tmp_path: Path
) -> None:
    put(faulty_s3, OLD, recorded=False)
    old = locate_model(URL, replace(load_settings(), cache_dir=tmp_path))
    put(faulty_s3, NEW, recorded=False)
    faulty_s3.etags[PATH] = "second"
    assert locate_model(URL, replace(load_settings(), cache_dir=tmp_path)).read_bytes() == NEW
    assert old.read_bytes() == OLD


def test_the_same_object_elsewhere_has_a_name_of_its_own(
    faulty_s3: FaultyS3, tmp_path: Path
) -> None:
    put(faulty_s3, OLD)
    faulty_s3.objects["/bucket/other.zse"] = faulty_s3.objects[PATH]
    locate_model(URL, replace(load_settings(), cache_dir=tmp_path))
    locate_model("s3://bucket/other.zse", replace(load_settings(), cache_dir=tmp_path))
    assert len(names(tmp_path)) == 2


def test_those_who_ask_at_the_same_time_share_one_transfer(
    faulty_s3: FaultyS3, tmp_path: Path
) -> None:
    put(faulty_s3, OLD)
    all_have_looked = threading.Barrier(4, timeout=30)

    def meet(request: Handler) -> bool:
        if request.kind == "LOOK":
            all_have_looked.wait()
        return False

    faulty_s3.fault = meet
    with ThreadPoolExecutor(4) as pool:
        found = list(
            pool.map(
                lambda _: locate_model(URL, replace(load_settings(), cache_dir=tmp_path)), range(4)
            )
        )
    assert len(set(found)) == 1
    assert found[0].read_bytes() == OLD
    assert len(faulty_s3.seen("^GET")) == 1
    assert names(tmp_path) == [found[0].name]


def test_damaged_bytes_leave_nothing_under_the_models_name(
    faulty_s3: FaultyS3, tmp_path: Path
) -> None:
    put(faulty_s3, OLD)
    data, metadata = faulty_s3.objects[PATH]
    faulty_s3.objects[PATH] = (data[:-1] + b"X", metadata)
    with pytest.raises(StoreError, match="does not hold what was stored"):
        locate_model(URL, replace(load_settings(), cache_dir=tmp_path))
    assert names(tmp_path) == []
    put(faulty_s3, OLD)
    assert locate_model(URL, replace(load_settings(), cache_dir=tmp_path)).read_bytes() == OLD


def test_an_object_that_is_not_there_is_not_found(faulty_s3: FaultyS3, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        locate_model(URL, replace(load_settings(), cache_dir=tmp_path))
    assert not (tmp_path / "models").exists()
