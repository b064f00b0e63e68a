"""Uploads in parts that a killed process left: listed, taken up, removed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from s3_clients import default_client

from zse.errors import StoreError
from zse.settings import load_settings
from zse.store import Transfer, parse_location, put_file, s3_upload
from zse.store.s3_unfinished import list_unfinished

if TYPE_CHECKING:
    from pathlib import Path

    from faulty_s3 import FaultyS3, Handler

URL = "s3://bucket/folder/object"
PATH = "/bucket/folder/object"
DATA = bytes(range(256)) * 40
PART_BYTES = 4096


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of three small parts; records go to a cache folder of this test."""
    monkeypatch.setattr(s3_upload, "PART_BYTES", PART_BYTES)
    monkeypatch.setattr(s3_upload, "MIB", PART_BYTES)
    monkeypatch.setattr(s3_upload, "WRITERS", 1)
    monkeypatch.setenv("ZSE_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "source"
    path.write_bytes(DATA)
    return path


def fail_at_part(server: FaultyS3, number: int, source: Path) -> None:
    """Push until a part is refused; what was sent stays."""
    server.fault = lambda request: (
        f"partNumber={number}" in request.path and request.refuse(403, "AccessDenied")
    )
    with pytest.raises(StoreError):
        put_file(source, URL, load_settings(), resume=True)
    server.fault = lambda _request: False
    server.requests.clear()


def resumed(server: FaultyS3, source: Path) -> Transfer:
    transfer = put_file(source, URL, load_settings(), resume=True)
    assert server.objects[PATH][0] == source.read_bytes()
    assert server.uploads == {}
    return transfer


def test_an_upload_goes_on_with_the_parts_that_are_there(faulty_s3: FaultyS3, source: Path) -> None:
    fail_at_part(faulty_s3, 3, source)
    assert list(faulty_s3.uploads) == ["u1"]
    assert resumed(faulty_s3, source).resumed_bytes == 2 * PART_BYTES
    assert len(faulty_s3.seen("PUT .*partNumber")) == 1
    assert not list((source.parent / "cache" / "pushes").iterdir())


def test_a_part_that_differs_is_sent_again(faulty_s3: FaultyS3, source: Path) -> None:
    fail_at_part(faulty_s3, 3, source)
    faulty_s3.parts[1] = bytes(PART_BYTES)
    assert resumed(faulty_s3, source).resumed_bytes == PART_BYTES


def test_an_upload_of_another_file_is_removed(faulty_s3: FaultyS3, source: Path) -> None:
    fail_at_part(faulty_s3, 3, source)
    source.write_bytes(DATA[:-1] + b"!")
    assert resumed(faulty_s3, source).resumed_bytes == 0
    assert faulty_s3.seen("DELETE .*uploadId=u1")


def test_without_a_record_what_is_there_is_removed(faulty_s3: FaultyS3, source: Path) -> None:
    fail_at_part(faulty_s3, 3, source)
    for record in (source.parent / "cache" / "pushes").iterdir():
        record.write_text("{damaged")
    assert resumed(faulty_s3, source).resumed_bytes == 0
    assert faulty_s3.seen("DELETE .*uploadId=u1")


def test_uploads_to_other_keys_are_left_alone(faulty_s3: FaultyS3, source: Path) -> None:
    faulty_s3.uploads = {"other": "/bucket/folder/object/below", "same": PATH}
    put_file(source, URL, load_settings(), resume=True)
    assert list(faulty_s3.uploads) == ["other"]


def test_a_small_push_removes_what_a_larger_one_left(faulty_s3: FaultyS3, source: Path) -> None:
    fail_at_part(faulty_s3, 3, source)
    source.write_bytes(b"small")
    assert resumed(faulty_s3, source).resumed_bytes == 0


def test_where_no_record_can_be_written_a_push_still_works(
    faulty_s3: FaultyS3, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZSE_CACHE_DIR", os.devnull)
    assert put_file(source, URL, load_settings()).size_bytes == len(DATA)


def test_what_is_left_is_listed_with_its_time(faulty_s3: FaultyS3, source: Path) -> None:
    faulty_s3.uploads = {"x": PATH, "y": "/bucket/folder/objects"}
    found = list(list_unfinished(default_client(), parse_location(URL)))
    assert [(one.key, one.upload_id) for one in found] == [("folder/object", "x")]
    assert found[0].started.startswith("2026-01-02T03:04:05")
    assert len(list(list_unfinished(default_client(), parse_location("s3://bucket/folder/")))) == 2


def test_a_failed_push_is_removed_even_when_a_part_lands_after_the_abort(
    faulty_s3: FaultyS3, source: Path
) -> None:
    def late(request: Handler) -> bool:
        # A part that is being sent while the upload is aborted revives it, as on some servers.
        if "partNumber=2" in request.path:
            return request.refuse(403, "AccessDenied")
        if "partNumber=1" in request.path:
            faulty_s3.uploads["u1"] = PATH
        return False

    faulty_s3.fault = late
    with pytest.raises(StoreError):
        put_file(source, URL, load_settings())
    assert faulty_s3.uploads == {}
    assert len(faulty_s3.seen("DELETE .*uploadId=u1")) == 2
