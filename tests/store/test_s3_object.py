"""Where an object in S3 is asked for, and what the server's answers change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from range_server import serving

from zse.errors import StoreError
from zse.settings import AWSSettings, ProxySettings, load_settings
from zse.store.location import parse_location
from zse.store.objects import open_object
from zse.store.s3_object import S3Account, S3Place

if TYPE_CHECKING:
    from range_server import Handler

DATA = b"0123456789"


def account(**aws: object) -> S3Account:
    return S3Account(AWSSettings(**aws), ProxySettings())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "region", "address"),
    [
        ("s3://models/a.zse", "eu-west-1", "https://models.s3.eu-west-1.amazonaws.com /a.zse"),
        ("s3://my.models/a", "eu-west-1", "https://s3.eu-west-1.amazonaws.com /my.models/a"),
        ("s3://models/a", "cn-north-1", "https://models.s3.cn-north-1.amazonaws.com.cn /a"),
        (
            "s3://models/a b+%",
            "us-east-1",
            "https://models.s3.us-east-1.amazonaws.com /a%20b%2B%25",
        ),
    ],
)
def test_aws_is_addressed_by_bucket_and_region(url: str, region: str, address: str) -> None:
    assert " ".join(account().address(parse_location(url), region)) == address


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [
        ("http://minio:9000/", "http://minio:9000 /models/a"),
        ("https://host/s3", "https://host /s3/models/a"),
    ],
)
def test_another_server_is_addressed_by_path(endpoint: str, address: str) -> None:
    found = account(endpoint_url=endpoint).address(parse_location("s3://models/a"), "us-east-1")
    assert " ".join(found) == address


@pytest.mark.parametrize("endpoint", ["not a url", "ftp://host", "https://"])
def test_an_endpoint_that_is_no_server_is_an_error(endpoint: str) -> None:
    with pytest.raises(StoreError, match="is not usable"):
        account(endpoint_url=endpoint)


@pytest.mark.parametrize("status", [301, 400])
def test_a_bucket_in_another_region_is_asked_with_its_signature(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    with serving("/models/a", DATA) as server:

        def elsewhere(request: Handler) -> bool:
            if "/eu-central-1/s3/" in request.headers["Authorization"]:
                return False
            request.answer(status, headers={"x-amz-bucket-region": "eu-central-1"})
            return True

        server.fault = elsewhere
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        found = open_object(parse_location("s3://models/a"), load_settings())
        assert found.prefix == DATA
        assert len(server.requests) == 2


def test_signatures_are_made_anew_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    signer = account(access_key_id="AKID", secret_access_key="secret")
    place = S3Place(parse_location("s3://models/a"), signer)
    made = []
    for moment in (1000.0, 1030.0, 1060.0, 1061.0, 1062.0):
        now[0] = moment
        made.append(place.request())
    assert "authorization" in made[0].private
    assert [request is made[0] for request in made] == [True, True, True, False, False]
    assert made[4] is made[3]
