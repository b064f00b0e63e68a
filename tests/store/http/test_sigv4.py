"""Signatures, against a published example and against botocore."""

from __future__ import annotations

import calendar

import pytest

from zse.store.http.sigv4 import Credentials, sign

MOMENT = calendar.timegm((2026, 3, 4, 5, 6, 7))


@pytest.mark.parametrize("token", ["", "a/session+token="])
@pytest.mark.parametrize("path", ["/bucket/model.zse", "/bucket/a%20b/%C3%A4%2B.zse"])
def test_the_signature_is_the_one_botocore_makes(
    monkeypatch: pytest.MonkeyPatch, token: str, path: str
) -> None:
    import datetime

    from botocore import auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials as Theirs

    now = datetime.datetime.fromtimestamp(MOMENT, datetime.UTC)
    monkeypatch.setattr(auth, "get_current_datetime", lambda *_, **__: now, raising=False)
    request = AWSRequest(method="GET", url=f"http://127.0.0.1:99{path}")
    auth.S3SigV4Auth(Theirs("AKID", "secret", token or None), "s3", "eu-west-1").add_auth(request)
    found = sign(
        Credentials(access_key="AKID", secret_key="secret", token=token),
        host="127.0.0.1:99",
        path=path,
        region="eu-west-1",
        seconds=MOMENT,
    )
    theirs = {name.lower(): value for name, value in request.headers.items()}
    assert found["x-amz-date"] == theirs["x-amz-date"]
    assert found["authorization"] == theirs["authorization"]


EXAMPLE = Credentials(
    access_key="AKIAIOSFODNN7EXAMPLE", secret_key="wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
)


@pytest.mark.parametrize(
    ("path", "query", "headers", "signature"),
    [
        (
            "/test.txt",
            "",
            {"Range": "bytes=0-9"},
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (
            "/",
            "lifecycle=",
            {},
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
        ),
        (
            "/",
            "max-keys=2&prefix=J",
            {},
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
    ],
)
def test_the_signatures_are_those_that_aws_publishes(
    path: str, query: str, headers: dict[str, str], signature: str
) -> None:
    found = sign(
        EXAMPLE,
        host="examplebucket.s3.amazonaws.com",
        path=path,
        query=query,
        headers=headers,
        region="us-east-1",
        seconds=calendar.timegm((2013, 5, 24, 0, 0, 0)),
    )
    assert found["authorization"].endswith(f"Signature={signature}")


def test_credentials_are_not_shown() -> None:
    shown = repr(Credentials(access_key="AKID", secret_key="hidden", token="hidden"))
    assert "AKID" in shown
    assert "hidden" not in shown
