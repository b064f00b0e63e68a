"""The S3 store against a real server (Ceph's gateway on loopback)."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import pytest
from object_ranges import opened, read_range
from s3_clients import default_client

from zse.errors import NotFoundError, StoreError
from zse.settings import load_settings
from zse.store import fetch, open_store, put_file
from zse.store.s3_upload import PART_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from ceph_s3 import S3Server

pytestmark = pytest.mark.system


def open_uploads(bucket: str) -> list[str]:
    answer = default_client().list_multipart_uploads(Bucket=bucket)
    return [upload["Key"] for upload in answer.get("Uploads", ())]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of three parts, the last one short."""
    path = tmp_path_factory.mktemp("large") / "file"
    path.write_bytes(os.urandom(2 * PART_BYTES + 12345))
    return path


@pytest.mark.parametrize("size_bytes", [0, 1, 100_000])
def test_a_small_file_comes_back_as_it_was(s3_bucket: str, tmp_path: Path, size_bytes: int) -> None:
    url = f"s3://{s3_bucket}/folder/näme with space+%.zse"
    (tmp_path / "a").write_bytes(os.urandom(size_bytes))
    put = put_file(tmp_path / "a", url, load_settings())
    fetched = fetch(url, tmp_path / "b", load_settings())
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
    assert put == fetched
    assert fetched.verified


def test_a_large_file_goes_in_parts_and_comes_back_in_ranges(
    s3_bucket: str, large: Path, tmp_path: Path
) -> None:
    url = f"s3://{s3_bucket}/large"
    uploaded: list[int] = []
    fetched: list[int] = []
    put_file(large, url, load_settings(), progress=lambda done, _total: uploaded.append(done))
    result = fetch(
        url, tmp_path / "b", load_settings(), progress=lambda done, _total: fetched.append(done)
    )
    data = large.read_bytes()
    assert (tmp_path / "b").read_bytes() == data
    assert result.sha256 == hashlib.sha256(data).hexdigest()
    assert (len(uploaded), uploaded[-1], fetched[-1]) == (3, len(data), len(data))
    assert fetched == sorted(fetched)
    assert open_uploads(s3_bucket) == []
    head = default_client().head_object(Bucket=s3_bucket, Key="large")
    assert head["ETag"].endswith('-3"')


def test_ranges_of_an_object_are_exact(s3_bucket: str, large: Path) -> None:
    put_file(large, f"s3://{s3_bucket}/large", load_settings())
    source = opened(f"s3://{s3_bucket}/large")
    data = large.read_bytes()
    assert source.size_bytes == len(data)
    edge = PART_BYTES - 5
    for at, length in [(0, 1), (edge, 10), (len(data) - 3, 3), (7, 0)]:
        assert read_range(source, at, length) == data[at : at + length]
    buffer = bytearray(100)
    source.read_into(edge, memoryview(buffer)[:50])
    assert buffer == data[edge : edge + 50] + bytes(50)
    with pytest.raises(StoreError, match="the range asked for ends at"):
        read_range(source, len(data) - 1, 2)


def test_an_object_replaced_between_two_reads_is_noticed(s3_bucket: str) -> None:
    url = f"s3://{s3_bucket}/a"
    default_client().put_object(Bucket=s3_bucket, Key="a", Body=b"first")
    source, store = opened(url), open_store(url, load_settings())
    before = store.version()
    assert read_range(source, 0, 5) == b"first"
    default_client().put_object(Bucket=s3_bucket, Key="a", Body=b"other")
    with pytest.raises(StoreError, match="was replaced while it was read"):
        read_range(source, 0, 5)
    assert store.version() == before
    assert store.exists()  # which finds it anew
    assert store.version() != before
    assert read_range(url, 0, 5) == b"other"


def test_an_interrupted_upload_leaves_no_parts_and_no_object(s3_bucket: str, large: Path) -> None:
    def stop(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        put_file(large, f"s3://{s3_bucket}/large", load_settings(), progress=stop)
    assert open_uploads(s3_bucket) == []
    assert list(open_store(f"s3://{s3_bucket}", load_settings()).list()) == []


def test_listing_shows_an_object_or_what_lies_below_a_prefix(s3_bucket: str) -> None:
    for key in ("a/1", "a/2", "ab", "b"):
        default_client().put_object(Bucket=s3_bucket, Key=key, Body=key.encode())

    def keys(rest: str) -> list[str]:
        return [
            e.location.key for e in open_store(f"s3://{s3_bucket}{rest}", load_settings()).list()
        ]

    assert keys("") == ["a/1", "a/2", "ab", "b"]
    assert keys("/a") == keys("/a/") == ["a/1", "a/2"]
    assert keys("/b") == ["b"]
    assert keys("/c") == []


def test_what_does_not_exist_is_not_found(s3_bucket: str, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="/nothing does not exist"):
        fetch(f"s3://{s3_bucket}/nothing", tmp_path / "a", load_settings())
    (tmp_path / "a").write_bytes(b"x")
    actions = [
        lambda: fetch("s3://no-such-bucket/a", tmp_path / "b", load_settings()),
        lambda: put_file(tmp_path / "a", "s3://no-such-bucket/a", load_settings()),
        lambda: open_store("s3://no-such-bucket/a", load_settings()).exists(),
        lambda: list(open_store("s3://no-such-bucket", load_settings()).list()),
    ]
    for action in actions:
        with pytest.raises(NotFoundError, match="bucket 'no-such-bucket' does not exist"):
            action()


def test_a_wrong_key_is_refused(
    s3_server: S3Server, s3_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    # Another spelling of the address makes a client of its own.
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_server.endpoint_url + "/")
    with pytest.raises(StoreError, match="refused: SignatureDoesNotMatch") as caught:
        put_file(tmp_path / "a", f"s3://{s3_bucket}/a", load_settings())
    assert "AWS_SECRET_ACCESS_KEY" in caught.value.hint


def test_an_object_that_another_tool_stored_is_checked_by_its_etag(
    s3_bucket: str, tmp_path: Path
) -> None:
    client = default_client()
    client.put_object(Bucket=s3_bucket, Key="a", Body=b"data")
    assert fetch(f"s3://{s3_bucket}/a", tmp_path / "a", load_settings()).verified
    checksum = open_store(f"s3://{s3_bucket}/a", load_settings()).checksum()
    assert checksum is not None
    assert str(checksum) == f"md5 {hashlib.md5(b'data').hexdigest()}"


def test_an_object_that_another_tool_stored_in_parts_is_fetched(
    s3_bucket: str, large: Path, tmp_path: Path
) -> None:
    from boto3.s3.transfer import TransferConfig

    config = TransferConfig(multipart_threshold=6 << 20, multipart_chunksize=6 << 20)
    default_client().upload_file(str(large), s3_bucket, "large", Config=config)
    store = open_store(f"s3://{s3_bucket}/large", load_settings())
    transfer = fetch(f"s3://{s3_bucket}/large", tmp_path / "a", load_settings())
    assert (tmp_path / "a").read_bytes() == large.read_bytes()
    # A server that does not tell where parts end leaves nothing to check against.
    assert transfer.verified is (store.checksum() is not None)


def test_a_presigned_address_is_fetched_and_checked(
    s3_bucket: str, large: Path, tmp_path: Path
) -> None:
    put_file(large, f"s3://{s3_bucket}/large", load_settings())
    parameters = {"Bucket": s3_bucket, "Key": "large"}
    url = default_client().generate_presigned_url("get_object", parameters)
    assert fetch(url, tmp_path / "a", load_settings()).verified
    assert (tmp_path / "a").read_bytes() == large.read_bytes()
