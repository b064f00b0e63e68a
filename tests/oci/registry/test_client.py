from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from oci_builders import FakeRegistry, sha256_hex

from zse.oci.errors import DigestMismatchError, LayoutError, RegistryAuthError, RegistryError
from zse.oci.image.source import RegistrySource, platform_manifests
from zse.oci.layout.manifest import (
    MEDIA_TYPE_INDEX,
    MEDIA_TYPE_MANIFEST,
    Descriptor,
    canonical_json,
)
from zse.oci.registry.client import Registry
from zse.oci.registry.connection import MAX_ANSWER_BYTES
from zse.oci.registry.credentials import Credentials
from zse.oci.registry.reference import parse_reference

ME = Credentials(user="me", password="secret")
BLOB = b"blob content"
DIGEST = f"sha256:{sha256_hex(BLOB)}"
DESCRIPTOR = Descriptor(media_type="x", digest=DIGEST, size_bytes=len(BLOB))


@pytest.fixture
def fake():
    return FakeRegistry(blobs={"app": {DIGEST: BLOB}})


@pytest.fixture
def waits():
    return []


@pytest.fixture
def connect(fake, waits):
    def connect(credentials=None, name="127.0.0.1:5000/app:1"):
        return Registry(
            parse_reference(name), credentials, transport=fake.transport(), sleep=waits.append
        )

    return connect


def test_manifest_comes_back_as_it_was_pushed(connect):
    registry = connect()
    digest = f"sha256:{sha256_hex(b'{}')}"
    assert not registry.push_manifest("1", b"{}", MEDIA_TYPE_MANIFEST)
    for name in ("1", digest):
        assert registry.manifest(name) == b"{}"


@pytest.mark.parametrize("auth", ["basic", "bearer"])
def test_registry_that_asks_gets_credentials(connect, fake, auth):
    fake.auth = auth
    assert connect(ME).has_blob(DIGEST)


def test_token_is_asked_for_once_per_scope(connect, fake):
    fake.auth = "bearer"
    registry = connect(ME)
    for _ in range(3):
        RegistrySource(registry).document(DESCRIPTOR)
    assert len(fake.tokens_asked) == 1
    assert "scope=repository%3Aapp%3Apull" in fake.tokens_asked[0]


def test_token_for_a_push_may_read_the_repositories_to_mount_from(fake):
    fake.auth = "bearer"
    registry = Registry(
        parse_reference("127.0.0.1:5000/app:1"),
        ME,
        mounts=frozenset({"base", "app"}),
        transport=fake.transport(),
    )
    registry.has_blob(DIGEST)
    assert "scope=repository%3Abase%3Apull" in fake.tokens_asked[0]
    assert fake.tokens_asked[0].count("scope=") == 2


def test_referrers_are_taken_from_the_api_or_from_the_agreed_tag(connect, fake):
    subject = {"mediaType": "m", "digest": DIGEST, "size": 1}
    document = canonical_json({"artifactType": "a", "subject": subject})
    fake.has_referrers = True
    assert connect().push_manifest(f"sha256:{sha256_hex(document)}", document, "m")
    assert [item.artifact_type for item in connect().referrers(DIGEST)] == ["a"]
    fake.has_referrers = False
    assert connect().referrers(DIGEST) == []
    tag = DIGEST.replace(":", "-")
    item = {"mediaType": "m", "digest": DIGEST, "size": 1, "artifactType": "b"}
    connect().push_manifest(tag, canonical_json({"manifests": [item]}), MEDIA_TYPE_INDEX)
    assert [item.artifact_type for item in connect().referrers(DIGEST)] == ["b"]


def test_missing_credentials_are_said(connect, fake):
    fake.auth = "basic"
    with pytest.raises(RegistryAuthError, match="wants a user") as caught:
        connect().has_blob(DIGEST)
    assert "Log in" in caught.value.hint


def test_wrong_credentials_are_said_without_the_password(connect, fake):
    fake.auth = "basic"
    with pytest.raises(RegistryAuthError, match="refused") as caught:
        connect(Credentials(user="me", password="wrong-word")).has_blob(DIGEST)
    assert "wrong-word" not in str(caught.value)


def test_threads_that_are_asked_to_sign_in_at_once_all_succeed(connect, fake):
    fake.auth = "basic"
    registry = connect(ME)
    together = threading.Barrier(4)
    answer = fake._answer

    def wait_for_the_others(request):
        if not request.headers.get("authorization"):
            together.wait(60)
        return answer(request)

    registry._client._transport = httpx.MockTransport(wait_for_the_others)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(registry.has_blob, [DIGEST] * 4)) == [True] * 4


def test_plain_http_is_spoken_with_this_machine_only(connect, fake):
    connect().has_blob(DIGEST)
    connect(name="registry.example/app:1").has_blob(DIGEST)
    assert [url.partition(":")[0] for _, url, _ in fake.log] == ["http", "https"]


def test_redirected_download_carries_no_token(connect, fake, tmp_path):
    fake.auth, fake.redirect_blobs_to = "basic", "https://blobs.example"
    RegistrySource(connect(ME)).fetch(DESCRIPTOR, tmp_path)
    assert fake.log[-1][1].startswith("https://blobs.example")
    assert fake.log[-1][2] == ""


def test_redirect_to_plain_http_is_refused(connect, fake, tmp_path):
    fake.redirect_blobs_to = "http://blobs.example"
    with pytest.raises(RegistryError, match="plain HTTP"):
        RegistrySource(connect(name="registry.example/app:1")).fetch(DESCRIPTOR, tmp_path)


def test_busy_registry_is_asked_again_after_the_time_it_names(connect, fake, waits):
    fake.failures = [httpx.Response(429, headers={"Retry-After": "7"}), httpx.Response(503)]
    assert connect().has_blob(DIGEST)
    assert waits[0] == 7.0
    assert len(waits) == 2


def test_manifest_that_breaks_off_is_asked_for_again(connect, fake):
    connect().push_manifest("1", b"{}", MEDIA_TYPE_MANIFEST)
    fake.cut_manifests = 2
    assert connect().manifest("1") == b"{}"
    fake.cut_manifests = 99
    with pytest.raises(RegistryError, match="connection was cut"):
        connect().manifest("1")


def test_busy_sign_in_service_is_asked_again(connect, fake, waits):
    fake.auth = "bearer"
    fake.token_answers = [httpx.Response(429, headers={"Retry-After": "9"}), httpx.Response(503)]
    assert connect(ME).has_blob(DIGEST)
    assert waits == [9.0, 2.0]


@pytest.mark.parametrize("content", [b"<html>", b"[]", b'{"token": 7}'])
def test_sign_in_answer_without_a_token_is_an_error_with_words(connect, fake, content):
    fake.auth = "bearer"
    fake.token_answers = [httpx.Response(200, content=content)]
    with pytest.raises(RegistryAuthError, match="holds no token"):
        connect(ME).has_blob(DIGEST)


def test_token_that_is_refused_again_ends_the_call(connect, fake):
    fake.auth = "bearer"
    fake.token_answers = [httpx.Response(200, json={"token": "bad"}) for _ in range(9)]
    with pytest.raises(RegistryAuthError, match="401"):
        connect(ME).has_blob(DIGEST)
    assert len(fake.tokens_asked) == 2


def test_redirects_in_a_circle_end(connect, fake):
    fake.failures = [httpx.Response(307, headers={"Location": "/v2/app"}) for _ in range(99)]
    with pytest.raises(RegistryError, match="307"):
        connect().manifest("1")


@pytest.mark.parametrize("target", ["", "https://[", "ftp://blobs.example/x"])
def test_redirect_to_nowhere_is_an_error_with_words(connect, fake, target):
    fake.failures = [httpx.Response(307, headers={"Location": target} if target else {})]
    with pytest.raises(RegistryError):
        connect().manifest("1")


def test_manifest_larger_than_memory_should_hold_is_refused(connect, fake):
    fake.manifests["app", "1"] = (MEDIA_TYPE_MANIFEST, bytes(MAX_ANSWER_BYTES + 1))
    with pytest.raises(RegistryError, match="more than"):
        connect().manifest("1")


@pytest.mark.parametrize("content", [b"<html>", b"[]"])
def test_manifest_that_is_no_json_object_is_an_error_with_words(connect, fake, content):
    fake.manifests["app", "1"] = (MEDIA_TYPE_MANIFEST, content)
    with pytest.raises(LayoutError, match="is not an image"):
        platform_manifests(RegistrySource(connect()))


def test_wait_is_never_longer_than_a_minute(connect, fake, waits):
    fake.failures = [httpx.Response(429, headers={"Retry-After": "86400"})]
    connect().has_blob(DIGEST)
    assert waits == [60.0]


def test_patience_ends(connect, fake):
    fake.failures = [httpx.Response(503) for _ in range(9)]
    with pytest.raises(RegistryError, match="503"):
        connect().has_blob(DIGEST)


def test_refusal_says_what_the_registry_said(connect):
    with pytest.raises(RegistryError, match="manifest unknown") as caught:
        connect().manifest("missing")
    assert "tag" in caught.value.hint


def test_reader_in_a_hurry_tries_an_unreachable_registry_once():
    def refuse(request):
        tried.append(request)
        raise httpx.ConnectError("connection refused")

    tried, waited = [], []
    registry = Registry(
        parse_reference("registry.example.com/app:1"),
        transport=httpx.MockTransport(refuse),
        sleep=waited.append,
        is_hurried=True,
    )
    with registry, pytest.raises(RegistryError):
        registry.manifest("1")
    assert (len(tried), waited) == (1, [])


def test_unreachable_registry_is_an_error_with_words():
    def refuse(request):
        raise httpx.ConnectError("no route")

    waits: list[float] = []
    registry = Registry(
        parse_reference("127.0.0.1:5000/a"),
        transport=httpx.MockTransport(refuse),
        sleep=waits.append,
    )
    with pytest.raises(RegistryError, match="could not be reached: no route"):
        registry.manifest("1")
    assert sum(waits) <= 1  # who never answered is not waited for


def test_blob_with_other_bytes_is_refused_and_not_kept(connect, fake, tmp_path):
    fake.blobs["app"][DIGEST] = b"other bytes!"
    with pytest.raises(DigestMismatchError):
        RegistrySource(connect()).fetch(DESCRIPTOR, tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DigestMismatchError):
        RegistrySource(connect()).document(DESCRIPTOR)


def test_manifest_with_other_bytes_is_refused(connect, fake):
    wanted = "sha256:" + "0" * 64
    fake.manifests["app", wanted] = (MEDIA_TYPE_MANIFEST, b"{}")
    with pytest.raises(DigestMismatchError):
        connect().manifest(wanted)


def test_blob_that_is_there_is_not_fetched_again(connect, fake, tmp_path):
    RegistrySource(connect()).fetch(DESCRIPTOR, tmp_path)
    fake.log.clear()
    assert RegistrySource(connect()).fetch(DESCRIPTOR, tmp_path).read_bytes() == BLOB
    assert fake.log == []
