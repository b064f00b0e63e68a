from __future__ import annotations

import httpx
import pytest
from oci_builders import FakeRegistry, sha256_hex

from zse.oci.errors import RegistryError
from zse.oci.layout.manifest import Descriptor
from zse.oci.registry import upload
from zse.oci.registry.client import Registry
from zse.oci.registry.reference import parse_reference
from zse.oci.registry.upload import Upload, push_blob, push_blobs

BLOB = b"0123456789" * 10
DIGEST = f"sha256:{sha256_hex(BLOB)}"
DESCRIPTOR = Descriptor(media_type="x", digest=DIGEST, size_bytes=len(BLOB))


@pytest.fixture
def fake():
    return FakeRegistry()


@pytest.fixture
def registry(fake):
    return Registry(
        parse_reference("127.0.0.1:5000/app:1"),
        transport=fake.transport(),
        sleep=lambda _: None,
    )


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "blob"
    path.write_bytes(BLOB)
    return lambda: path


def push(registry, source, **options) -> Upload:
    return push_blob(registry, DESCRIPTOR, source, sleep=lambda _: None, **options)


def methods(fake) -> list[str]:
    return [method for method, _, _ in fake.log]


def test_small_blob_goes_in_one_request(registry, source, fake):
    assert push(registry, source) is Upload.SENT
    assert fake.blobs["app"][DIGEST] == BLOB
    assert methods(fake) == ["HEAD", "POST", "PUT"]


def test_blob_that_is_there_is_not_sent(registry, source, fake):
    fake.blobs["app"] = {DIGEST: BLOB}
    assert push(registry, source) is Upload.EXISTED
    assert methods(fake) == ["HEAD"]


def test_blob_of_another_repository_is_mounted_without_its_file(registry, fake):
    fake.blobs["base"] = {DIGEST: BLOB}

    def never():
        raise AssertionError("the file was asked for")

    assert push(registry, never, mount_from="base") is Upload.MOUNTED
    assert fake.blobs["app"][DIGEST] == BLOB


def test_blob_is_sent_when_the_registry_does_not_mount(registry, source, fake):
    assert push(registry, source, mount_from="elsewhere") is Upload.SENT


def test_large_blob_goes_in_chunks(registry, source, fake, monkeypatch):
    monkeypatch.setattr(upload, "WHOLE_MAX_BYTES", 10)
    monkeypatch.setattr(upload, "CHUNK_BYTES", 40)
    push(registry, source)
    assert fake.blobs["app"][DIGEST] == BLOB
    assert methods(fake) == ["HEAD", "POST", "PATCH", "PATCH", "PATCH", "PUT"]


def test_upload_that_would_go_on_in_the_clear_is_refused(source, fake):
    fake.session_base = "http://registry.example"
    reference = parse_reference("registry.example/app:1")
    registry = Registry(reference, transport=fake.transport(), sleep=lambda _: None)
    with pytest.raises(RegistryError, match="plain HTTP"):
        push(registry, source)
    assert "PUT" not in methods(fake)


def test_upload_without_a_place_to_go_on_is_an_error_with_words(registry, source, fake):
    fake.failures = [httpx.Response(404), *[httpx.Response(202) for _ in range(9)]]
    with pytest.raises(RegistryError, match="202 without a Location"):
        push(registry, source)


def test_lost_session_begins_the_blob_again(registry, source, fake, monkeypatch):
    monkeypatch.setattr(upload, "WHOLE_MAX_BYTES", 10)
    monkeypatch.setattr(upload, "CHUNK_BYTES", 40)
    fake.lose_sessions = 2
    assert push(registry, source) is Upload.SENT
    assert fake.blobs["app"][DIGEST] == BLOB


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(upload, "WHOLE_MAX_BYTES", 10)
    monkeypatch.setattr(upload, "CHUNK_BYTES", 40)


def test_cut_chunk_goes_on_where_the_registry_is(registry, source, fake, small_chunks):
    fake.cut_patches = 2
    assert push(registry, source) is Upload.SENT
    assert fake.blobs["app"][DIGEST] == BLOB
    assert methods(fake).count("POST") == 1
    assert methods(fake).count("GET") == 2


def test_cut_chunk_begins_again_where_the_registry_forgot_it(registry, source, fake, small_chunks):
    fake.cut_patches, fake.forget_cut_sessions = 1, True
    assert push(registry, source) is Upload.SENT
    assert fake.blobs["app"][DIGEST] == BLOB
    assert methods(fake).count("POST") == 2


def test_connection_that_is_always_cut_is_an_error(registry, source, fake, small_chunks):
    fake.cut_patches = 999
    with pytest.raises(RegistryError, match="cut"):
        push(registry, source)


def test_progress_counts_the_bytes_that_arrived(registry, source, fake, small_chunks):
    seen: list[int] = []
    push(registry, source, progress=seen.append)
    assert seen == [40, 80, 100]


def test_registry_that_answers_500_twice_gets_the_blob(registry, source, fake):
    fake.failures = [httpx.Response(500), httpx.Response(500)]
    assert push(registry, source) is Upload.SENT
    assert fake.blobs["app"][DIGEST] == BLOB


def test_only_blobs_that_are_not_there_are_sent(registry, source, fake, tmp_path):
    other = b"other"
    (tmp_path / "other").write_bytes(other)
    descriptor = Descriptor(media_type="x", digest=f"sha256:{sha256_hex(other)}", size_bytes=5)
    fake.blobs["app"] = {DIGEST: BLOB}
    said: list[str] = []
    blobs = [(DESCRIPTOR, source), (descriptor, lambda: tmp_path / "other")]
    push_blobs(registry, blobs, mount_from={}, report=said.append)
    assert sorted(line.split()[0] for line in said) == ["exists", "sent"]
    assert methods(fake).count("POST") == 1


def test_registry_that_always_loses_sessions_is_an_error(registry, source, fake):
    fake.lose_sessions = 99
    with pytest.raises(RegistryError):
        push(registry, source)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, upload.CHUNK_BYTES),
        ({"oci-chunk-max-length": "1000"}, 1000),
        ({"oci-chunk-min-length": str(1 << 30)}, 1 << 30),
    ],
)
def test_chunks_stay_within_what_the_registry_states(headers, expected):
    assert upload._chunk_bytes(httpx.Headers(headers)) == expected


def test_every_blob_is_reported(registry, source):
    said: list[str] = []
    push_blobs(registry, [(DESCRIPTOR, source)], mount_from={}, report=said.append)
    assert said == [f"sent {DIGEST[:19]} (0.0 MB)"]
