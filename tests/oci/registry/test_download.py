from __future__ import annotations

import pytest
from oci_builders import FakeRegistry, sha256_hex

from zse.oci.errors import DigestMismatchError, RegistryError
from zse.oci.image.source import RegistrySource
from zse.oci.layout.manifest import Descriptor
from zse.oci.registry.client import Registry
from zse.oci.registry.download import stream_blob
from zse.oci.registry.reference import parse_reference

BLOB = bytes(range(256)) * 12
DESCRIPTOR = Descriptor(media_type="x", digest=f"sha256:{sha256_hex(BLOB)}", size_bytes=len(BLOB))


@pytest.fixture
def fake():
    return FakeRegistry(blobs={"app": {DESCRIPTOR.digest: BLOB}})


@pytest.fixture
def registry(fake):
    return Registry(
        parse_reference("127.0.0.1:5000/app:1"), transport=fake.transport(), sleep=lambda _: None
    )


def read(registry) -> bytes:
    return b"".join(stream_blob(registry, DESCRIPTOR, sleep=lambda _: None))


@pytest.mark.parametrize("has_ranges", [True, False])
def test_cut_download_goes_on(registry, fake, has_ranges):
    fake.cut_downloads, fake.has_ranges = 3, has_ranges
    assert read(registry) == BLOB


def test_download_that_ends_too_early_goes_on(registry, fake):
    fake.short_downloads = 2
    assert read(registry) == BLOB


def test_blob_that_is_always_too_short_is_an_error(registry, fake):
    fake.blobs["app"][DESCRIPTOR.digest] = BLOB[:-1]
    with pytest.raises(RegistryError, match=f"after {len(BLOB) - 1} bytes of {len(BLOB)}: .*short"):
        read(registry)


def test_connection_that_is_always_cut_is_an_error(registry, fake):
    fake.cut_downloads = 99
    with pytest.raises(RegistryError, match="broke off after"):
        read(registry)


def test_blob_with_too_many_bytes_is_refused(registry, fake):
    fake.blobs["app"][DESCRIPTOR.digest] = BLOB + b"!"
    with pytest.raises(DigestMismatchError, match="more than"):
        read(registry)


def test_broken_download_leaves_nothing(registry, fake, tmp_path):
    fake.blobs["app"][DESCRIPTOR.digest] = BLOB[::-1]
    with pytest.raises(DigestMismatchError):
        RegistrySource(registry).fetch(DESCRIPTOR, tmp_path)
    assert list(tmp_path.iterdir()) == []
