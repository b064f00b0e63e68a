"""Signatures, against a published example and against botocore."""

from __future__ import annotations

import calendar

import pytest

from zse.stream.signing import Credentials, Signatures, credentials_from, sign_get

KEYS = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "secret"}
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
    found = sign_get(
        Credentials(access_key="AKID", secret_key="secret", token=token),
        host="127.0.0.1:99",
        path=path,
        region="eu-west-1",
        seconds=MOMENT,
    )
    theirs = {name.lower(): value for name, value in request.headers.items()}
    assert found["x-amz-date"] == theirs["x-amz-date"]
    assert found["authorization"] == theirs["authorization"]


def test_keys_in_the_environment_are_taken() -> None:
    found = credentials_from({**KEYS, "AWS_SESSION_TOKEN": "token"})
    assert found == Credentials(access_key="AKID", secret_key="secret", token="token")
    assert "secret" not in repr(found)
    assert "token='" not in repr(found)


@pytest.mark.parametrize(
    "environ", [{}, {"AWS_ACCESS_KEY_ID": "AKID"}, {**KEYS, "AWS_PROFILE": "work"}]
)
def test_without_keys_or_with_a_profile_others_are_asked(environ: dict[str, str]) -> None:
    assert credentials_from(environ) is None


def test_signatures_are_made_anew_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now, made = [1000.0], []

    def sign() -> dict[str, str]:
        made.append(now[0])
        return {"authorization": str(now[0])}

    monkeypatch.setattr("time.monotonic", lambda: now[0])
    signatures = Signatures(sign)
    for moment in (1000.0, 1030.0, 1060.0, 1061.0):
        now[0] = moment
        signatures.headers()
    assert made == [1000.0, 1061.0]
    assert signatures.headers() == {"authorization": "1061.0"}
