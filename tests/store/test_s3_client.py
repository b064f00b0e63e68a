"""How the client is set up for servers of different makers, and how it waits for busy ones."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from s3_clients import default_client

from zse.errors import StoreError
from zse.settings import load_settings
from zse.store import open_store, put_file, s3_client
from zse.store.http.retry import ATTEMPTS, FIRST_ATTEMPTS
from zse.store.s3_client import client_of
from zse.store.s3_object import account_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from faulty_s3 import FaultyS3, Handler

R2 = "https://0123456789abcdef.r2.cloudflarestorage.com"
GCS = "https://storage.googleapis.com"
MINIO = "https://minio.example.com:9000"


@pytest.fixture(autouse=True)
def fresh_clients() -> Iterator[None]:
    client_of.cache_clear()
    yield
    client_of.cache_clear()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


def signed_url() -> str:
    place = {"Bucket": "models", "Key": "a"}
    return str(default_client().generate_presigned_url("get_object", place))


@pytest.mark.parametrize(
    ("endpoint", "environment", "region"),
    [
        (R2, {}, "auto"),
        (GCS, {}, "auto"),
        (MINIO, {}, "us-east-1"),
        (MINIO, {"AWS_REGION": "eu-west-3"}, "eu-west-3"),
        (MINIO, {"AWS_DEFAULT_REGION": "eu-west-3"}, "eu-west-3"),
        (R2, {"AWS_REGION": "auto"}, "auto"),
        ("", {"AWS_REGION": "eu-west-3", "AWS_DEFAULT_REGION": "us-west-2"}, "eu-west-3"),
        ("", {"AWS_REGION": "auto"}, "us-east-1"),
        ("", {}, "us-east-1"),
    ],
)
def test_the_region_is_what_was_set_or_what_the_server_takes(
    endpoint: str, environment: dict[str, str], region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**environment, "AWS_ENDPOINT_URL_S3": endpoint}.items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert account_of(settings.aws, settings.proxies).region == region
    assert default_client().meta.region_name == region


@pytest.mark.parametrize("endpoint", [R2, GCS, MINIO])
def test_a_custom_endpoint_is_addressed_by_path(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    assert signed_url().startswith(f"{endpoint}/models/a?")


def test_the_configuration_file_may_ask_for_virtual_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text("[default]\ns3 =\n    addressing_style = virtual\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", MINIO)
    assert signed_url().startswith("https://models.minio.example.com:9000/a?")


def test_uploads_carry_no_checksum_but_the_md5_that_every_server_knows(
    faulty_s3: FaultyS3, tmp_path: Path
) -> None:
    seen: list[dict[str, str]] = []

    def note(request: Handler) -> bool:
        seen.append({name.lower(): value for name, value in request.headers.items()})
        return False

    faulty_s3.fault = note
    (tmp_path / "a").write_bytes(b"data")
    put_file(tmp_path / "a", "s3://bucket/a", load_settings())
    put = next(headers for headers in seen if "content-md5" in headers)
    assert not [name for name in put if "checksum" in name or name in ("trailer", "x-amz-trailer")]
    assert "content-encoding" not in put


def list_bucket() -> None:
    list(open_store("s3://bucket/", load_settings()).list())


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again_after_the_time_it_names(
    faulty_s3: FaultyS3, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    left = [1, 1]

    def busy(request: Handler) -> bool:
        if left:
            left.pop()
            request.answer(status, b"", {"Retry-After": "7"})
        else:
            request.answer(200, b"<ListBucketResult/>")
        return True

    faulty_s3.fault = busy
    list_bucket()
    assert sum(waited) == pytest.approx(14.0)


def test_a_server_that_stays_busy_is_an_error(faulty_s3: FaultyS3) -> None:
    faulty_s3.fault = lambda request: request.answer(429, b"", {"Retry-After": "1"}) is None
    with pytest.raises(StoreError, match="429"):
        list_bucket()
    assert len(faulty_s3.requests) == ATTEMPTS


def test_a_server_that_never_answered_is_given_up_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    attempts: list[int] = []
    default_client().meta.events.register_first("before-send.s3", lambda **_: attempts.append(1))
    with pytest.raises(StoreError, match="cannot be reached"):
        list_bucket()
    assert len(attempts) == FIRST_ATTEMPTS


def test_a_server_that_answered_before_gets_all_attempts() -> None:
    lost = ConnectionError("lost")
    patience = s3_client._Patience()
    with pytest.raises(ConnectionError):
        patience(None, FIRST_ATTEMPTS, lost)
    assert patience((SimpleNamespace(status_code=200), {}), 1) is None
    assert patience(None, FIRST_ATTEMPTS, lost) is None
