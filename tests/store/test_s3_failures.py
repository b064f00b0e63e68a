"""What the S3 store does when the server, the network or the file misbehaves."""

from __future__ import annotations

import hashlib
import os
import socket
from typing import TYPE_CHECKING

import pytest
from object_ranges import opened, read_range

from zse.errors import NotFoundError, StoreError, UsageError
from zse.settings import load_settings
from zse.store import fetch, open_store, put_file, s3_upload
from zse.store.http.retry import ATTEMPTS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from faulty_s3 import FaultyS3, Handler

URL = "s3://bucket/folder/object"
PATH = "/bucket/folder/object"
DATA = bytes(range(256)) * 40
PART_BYTES = 4096


@pytest.fixture
def stored(faulty_s3: FaultyS3) -> FaultyS3:
    """The server, holding one object with its recorded digest."""
    digest = hashlib.sha256(DATA).hexdigest()
    faulty_s3.objects[PATH] = (DATA, {f"x-amz-meta-{s3_upload.SHA256_KEY}": digest})
    return faulty_s3


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is uploaded in three small parts."""
    monkeypatch.setattr(s3_upload, "PART_BYTES", PART_BYTES)
    monkeypatch.setattr(s3_upload, "MIB", PART_BYTES)
    path = tmp_path / "source"
    path.write_bytes(DATA)
    return path


def test_a_good_answer_is_fetched_and_verified(stored: FaultyS3, tmp_path: Path) -> None:
    assert fetch(URL, tmp_path / "a", load_settings()).verified
    assert (tmp_path / "a").read_bytes() == DATA


def test_a_server_that_answers_200_to_a_range_is_refused(stored: FaultyS3, tmp_path: Path) -> None:
    def ignore_range(request: Handler) -> bool:
        if request.kind == "GET":
            request.answer(200, DATA)
        return request.kind == "GET"

    stored.fault = ignore_range
    with pytest.raises(StoreError, match="the server answered 200"):
        fetch(URL, tmp_path / "a", load_settings())
    assert list(tmp_path.iterdir()) == []


def test_a_content_range_other_than_asked_is_refused(stored: FaultyS3) -> None:
    def shifted(request: Handler) -> bool:
        if request.kind == "GET":
            request.answer(206, DATA[:4], {"Content-Range": f"bytes 0-3/{len(DATA)}"})
        return request.kind == "GET"

    stored.fault = shifted
    with pytest.raises(StoreError, match="bytes 4-7/10240"):
        read_range(URL, 4, 4)


def cut_after(count: int, times: int) -> Callable[[Handler], bool]:
    """Return a fault that sends ``count`` bytes of a range and closes, the first ``times`` times."""
    left = [times]

    def fault(request: Handler) -> bool:
        if request.kind != "GET" or not left[0]:
            return False
        left[0] -= 1
        first, last = map(int, request.headers["Range"].removeprefix("bytes=").split("-"))
        request.send_response(206)
        request.send_header("Content-Length", str(last - first + 1))
        request.send_header("Content-Range", f"bytes {first}-{last}/{len(DATA)}")
        request.end_headers()
        request.wfile.write(DATA[first : first + count])
        request.close_connection = True
        return True

    return fault


def test_a_cut_connection_goes_on_where_it_stopped(stored: FaultyS3) -> None:
    stored.fault = cut_after(100, times=2)
    assert read_range(URL, 1000, 5000) == DATA[1000:6000]
    asked = [line.split("bytes=")[1] for line in stored.seen("^GET")]
    assert asked == ["1000-5999", "1100-5999", "1200-5999"]


def test_a_connection_that_is_always_cut_is_an_error(stored: FaultyS3, tmp_path: Path) -> None:
    stored.fault = cut_after(100, times=1000)
    with pytest.raises(StoreError, match=f"{ATTEMPTS} attempts failed, the last one at byte 500"):
        fetch(URL, tmp_path / "a", load_settings())
    assert list(tmp_path.iterdir()) == []


def fail_times(method: str, status: int, code: str, times: int) -> Callable[[Handler], bool]:
    left = [times]

    def fault(request: Handler) -> bool:
        if request.kind != method or not left[0]:
            return False
        left[0] -= 1
        return request.refuse(status, code)

    return fault


@pytest.mark.parametrize("method", ["LOOK", "GET"])
def test_two_server_errors_are_tried_again(stored: FaultyS3, method: str) -> None:
    stored.fault = fail_times(method, 500, "InternalError", times=2)
    assert read_range(URL, 0, 10) == DATA[:10]
    assert len(stored.seen(f"^{method}")) == 3


def test_a_server_that_keeps_failing_is_an_error(stored: FaultyS3) -> None:
    stored.fault = fail_times("GET", 503, "SlowDown", times=1000)
    with pytest.raises(StoreError, match="SlowDown") as caught:
        read_range(URL, 0, 10)
    assert "fewer requests" in caught.value.hint


def test_an_object_replaced_during_the_read_is_an_error(stored: FaultyS3) -> None:
    source = opened(URL)
    stored.fault = fail_times("GET", 412, "PreconditionFailed", times=2)
    with pytest.raises(StoreError, match="was replaced while it was read"):
        read_range(source, 0, 10)


def test_damaged_bytes_are_not_published(stored: FaultyS3, tmp_path: Path) -> None:
    stored.objects[PATH] = (DATA[::-1], stored.objects[PATH][1])
    with pytest.raises(StoreError, match="does not hold what was stored"):
        fetch(URL, tmp_path / "a", load_settings())
    assert list(tmp_path.iterdir()) == []


def test_an_object_without_a_recorded_digest_is_fetched_unverified(
    stored: FaultyS3, tmp_path: Path
) -> None:
    stored.objects[PATH] = (DATA, {})
    assert not fetch(URL, tmp_path / "a", load_settings()).verified


@pytest.mark.parametrize(
    ("status", "code", "words", "hint"),
    [
        (403, "AccessDenied", "access to .* was refused: AccessDenied", "AWS_ACCESS_KEY_ID"),
        (403, "SignatureDoesNotMatch", "SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"),
        (507, "QuotaExceeded", "QuotaExceeded", "quota"),
        (418, "Teapot", "Teapot", "ask whoever runs the storage"),
    ],
)
def test_a_refusal_says_what_to_do(
    faulty_s3: FaultyS3, source: Path, status: int, code: str, words: str, hint: str
) -> None:
    faulty_s3.fault = lambda request: request.refuse(status, code)
    with pytest.raises(StoreError, match=words) as caught:
        put_file(source, URL, load_settings())
    assert hint in caught.value.hint


def test_a_question_that_is_refused_says_so(faulty_s3: FaultyS3) -> None:
    faulty_s3.fault = lambda request: request.refuse(403, "AccessDenied")
    with pytest.raises(StoreError, match="refused: AccessDenied: told to"):
        open_store(URL, load_settings()).exists()


def test_a_missing_bucket_is_told_from_a_missing_object(faulty_s3: FaultyS3) -> None:
    with pytest.raises(NotFoundError, match=f"{URL} does not exist"):
        open_store(URL, load_settings()).size()
    assert not open_store(URL, load_settings()).exists()
    faulty_s3.fault = lambda request: request.refuse(404, "NoSuchBucket")
    for action in (
        open_store(URL, load_settings()).size,
        open_store(URL, load_settings()).exists,
        lambda: list(open_store(URL, load_settings()).list()),
    ):
        with pytest.raises(NotFoundError, match="the bucket 'bucket' does not exist"):
            action()


def test_an_endpoint_that_is_down_is_an_error(
    monkeypatch: pytest.MonkeyPatch, faulty_s3: FaultyS3
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(StoreError, match="cannot be reached") as caught:
            open_store(URL, load_settings()).size()
    assert "AWS_ENDPOINT_URL_S3" in caught.value.hint


def test_missing_credentials_are_an_error(
    monkeypatch: pytest.MonkeyPatch, faulty_s3: FaultyS3
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    faulty_s3.objects[PATH] = (DATA, {})
    faulty_s3.fault = lambda request: (
        "Authorization" not in request.headers and request.refuse(403, "AccessDenied")
    )
    with pytest.raises(StoreError, match="no S3 credentials") as caught:
        open_store(URL, load_settings()).size()
    assert "AWS_ACCESS_KEY_ID" in caught.value.hint


def test_what_is_for_everybody_is_read_without_credentials(
    monkeypatch: pytest.MonkeyPatch, stored: FaultyS3
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    shown: list[str] = []

    def note(request: Handler) -> bool:
        shown.append(request.headers.get("Authorization", ""))
        return False

    stored.fault = note
    assert read_range(URL, 0, 4) == DATA[:4]
    assert shown == ["", ""]


def test_an_endpoint_that_is_no_url_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "not a url")
    with pytest.raises(StoreError, match="'not a url' is not usable"):
        open_store(URL, load_settings())


def test_a_profile_that_does_not_exist_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(StoreError, match="nobody"):
        open_store(URL, load_settings())


def test_parts_are_sent_and_published_once(faulty_s3: FaultyS3, source: Path) -> None:
    done: list[int] = []
    result = put_file(
        source, URL, load_settings(), progress=lambda so_far, _total: done.append(so_far)
    )
    assert result.sha256 == hashlib.sha256(DATA).hexdigest()
    assert faulty_s3.objects[PATH][0] == DATA
    assert len(done) == 3
    assert done[-1] == len(DATA)
    assert faulty_s3.seen("DELETE") == []


def test_a_part_that_fails_aborts_the_upload(faulty_s3: FaultyS3, source: Path) -> None:
    faulty_s3.fault = lambda request: (
        "partNumber=2" in request.path and request.refuse(500, "InternalError")
    )
    with pytest.raises(StoreError, match="InternalError"):
        put_file(source, URL, load_settings())
    assert faulty_s3.seen("DELETE .*uploadId=u1")
    assert faulty_s3.objects == {}


def test_an_interrupted_upload_is_aborted(faulty_s3: FaultyS3, source: Path) -> None:
    def stop(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        put_file(source, URL, load_settings(), progress=stop)
    assert faulty_s3.seen("DELETE .*uploadId=u1")
    assert faulty_s3.objects == {}


def test_the_first_error_is_reported_even_when_the_abort_fails_too(
    faulty_s3: FaultyS3, source: Path
) -> None:
    faulty_s3.fault = lambda request: (
        request.kind in {"PUT", "DELETE"}
        and request.refuse(403, "AccessDenied" if request.kind == "PUT" else "Other")
    )
    with pytest.raises(StoreError, match="AccessDenied"):
        put_file(source, URL, load_settings())


def test_a_file_that_changes_during_the_upload_is_not_published(
    faulty_s3: FaultyS3, source: Path
) -> None:
    def touch(_done: int, _total: int) -> None:
        os.utime(source, ns=(1, 1))

    with pytest.raises(StoreError, match="changed while it was uploaded"):
        put_file(source, URL, load_settings(), progress=touch)
    assert faulty_s3.objects == {}


def test_an_object_that_reads_back_differently_is_an_error(
    faulty_s3: FaultyS3, source: Path
) -> None:
    def lose_metadata(request: Handler) -> bool:
        if request.kind == "HEAD":
            request.answer(200, headers={"Content-Length": "5", "ETag": '"x"'})
        return request.kind == "HEAD"

    faulty_s3.fault = lose_metadata
    with pytest.raises(StoreError, match="reads back as 5 bytes"):
        put_file(source, URL, load_settings())


def test_another_etag_than_that_of_the_bytes_is_an_error(faulty_s3: FaultyS3, source: Path) -> None:
    wrong = {"ETag": f'"{"0" * 32}-3"'}

    def other_etag(request: Handler) -> bool:
        if request.kind != "HEAD":
            return False
        data, metadata = faulty_s3.objects[PATH]
        request.answer(200, headers={**metadata, **wrong, "Content-Length": str(len(data))})
        return True

    faulty_s3.fault = other_etag
    with pytest.raises(StoreError, match="has the ETag"):
        put_file(source, URL, load_settings())


def test_a_prefix_cannot_be_read_or_written(faulty_s3: FaultyS3, source: Path) -> None:
    for action in (
        open_store("s3://bucket/folder/", load_settings()).size,
        lambda: put_file(source, "s3://bucket/folder/", load_settings()),
    ):
        with pytest.raises(UsageError, match="names a folder") as caught:
            action()
    assert caught.value.hint == "Add a name: s3://bucket/folder/NAME"


def test_a_file_that_is_not_there_is_not_uploaded(faulty_s3: FaultyS3, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        put_file(tmp_path / "a", URL, load_settings())
    with pytest.raises(StoreError):
        put_file(tmp_path, URL, load_settings())
    assert faulty_s3.requests == []


def test_parts_grow_so_that_ten_thousand_are_enough() -> None:
    mebibyte = 1 << 20
    assert s3_upload.part_bytes_for(1) == 16 * mebibyte
    assert s3_upload.part_bytes_for(160_000 * mebibyte) == 16 * mebibyte
    assert s3_upload.part_bytes_for(160_000 * mebibyte + 1) == 17 * mebibyte
