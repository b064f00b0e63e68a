"""Where credentials come from, in which order, and how they are renewed."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import pytest

from zse.errors import StoreError
from zse.settings import AWSSettings, ProxySettings
from zse.store.http import credentials as module
from zse.store.http.credentials import CredentialChain

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from zse.store.http.sigv4 import Credentials

pytestmark = pytest.mark.usefixtures("no_pauses")
ROLES = "/latest/meta-data/iam/security-credentials/"
NOWHERE = AWSSettings(ec2_metadata_disabled=True)
KEYS = {"access_key_id": "AKID", "secret_access_key": "secret"}


class Giver(ThreadingHTTPServer):
    """An STS, a container's endpoint and a machine's metadata in one."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.forms: list[dict[str, list[str]]] = []
        self.lifetime_seconds = 3600.0
        self.failures: list[tuple[int, str]] = []
        """Answers that are given first."""

    def keys(self, token: str = "Token") -> dict[str, str]:
        moment = time.strftime(
            "%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + self.lifetime_seconds)
        )
        number = len(self.asked)
        return {
            "AccessKeyId": f"AKID{number}",
            "SecretAccessKey": "secret",
            token: "token",
            "Expiration": moment,
        }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Giver

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append(f"{self.command} {self.path}")
        self.server.headers.append({name.lower(): text for name, text in self.headers.items()})
        if self.server.failures:
            self.answer(*self.server.failures.pop(0))
        elif self.command == "POST":
            self.server.forms.append(parse_qs(body.decode()))
            xml = "".join(f"<{k}>{v}</{k}>" for k, v in self.server.keys("SessionToken").items())
            self.answer(200, f"<Response><Credentials>{xml}</Credentials></Response>")
        elif self.command == "PUT":
            self.answer(200, "a-token")
        elif self.path == ROLES:
            self.answer(200, "the-role")
        else:
            keys = self.server.keys()
            self.answer(200, str(keys).replace("'", '"'))

    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


for _method in ("POST", "PUT"):
    setattr(_Handler, f"do_{_method}", _Handler.do_GET)


@pytest.fixture
def giver() -> Iterator[Giver]:
    server = Giver()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def chain(aws: AWSSettings, **profile: str) -> CredentialChain:
    return CredentialChain(aws, profile, ProxySettings())


def found(aws: AWSSettings, **profile: str) -> Credentials:
    held = chain(aws, **profile).credentials()
    assert held is not None
    return held


def web_identity(giver: Giver, folder: Path) -> AWSSettings:
    (folder / "token").write_text("jwt\n")
    return replace(
        NOWHERE,
        role_arn="arn:aws:iam::1:role/reader",
        web_identity_token_file=str(folder / "token"),
        sts_endpoint_url=giver.url,
    )


def machine(giver: Giver) -> AWSSettings:
    return AWSSettings(ec2_metadata_service_endpoint=giver.url)


def container(giver: Giver) -> AWSSettings:
    return replace(NOWHERE, container_credentials_full_uri=f"{giver.url}/keys")


def test_nobody_asks_when_nothing_says_who() -> None:
    assert chain(NOWHERE).credentials() is None


def test_the_environment_comes_first_then_a_web_identity_then_the_profile(
    giver: Giver, tmp_path: Path
) -> None:
    all_of_them = replace(
        web_identity(giver, tmp_path),
        **KEYS,
        session_token="token",
        container_credentials_full_uri=f"{giver.url}/keys",
        ec2_metadata_disabled=False,
        ec2_metadata_service_endpoint=giver.url,
    )
    profile = {"aws_access_key_id": "of the profile", "aws_secret_access_key": "secret"}
    first = found(all_of_them, **profile)
    assert (first.access_key, first.token, giver.asked) == ("AKID", "token", [])
    without_keys = replace(all_of_them, access_key_id="")
    assert found(without_keys, **profile).access_key == "AKID1"
    assert giver.asked == ["POST /"]
    without_role = replace(without_keys, role_arn="")
    assert found(without_role, **profile).access_key == "of the profile"
    assert found(without_role).access_key == "AKID2"
    assert giver.asked[1:] == ["GET /keys"]
    found(replace(without_role, container_credentials_full_uri=""))
    assert giver.asked[2:] == ["PUT /latest/api/token", f"GET {ROLES}", f"GET {ROLES}the-role"]


def test_half_a_key_is_an_error() -> None:
    with pytest.raises(StoreError, match="AWS_SECRET_ACCESS_KEY is not"):
        chain(replace(NOWHERE, access_key_id="AKID")).credentials()


def test_a_web_identity_is_exchanged_for_a_roles_keys(giver: Giver, tmp_path: Path) -> None:
    held = found(web_identity(giver, tmp_path))
    assert (held.secret_key, held.token) == ("secret", "token")
    assert held.expires_at == pytest.approx(time.time() + 3600, abs=600)
    assert giver.forms[0] == {
        "Action": ["AssumeRoleWithWebIdentity"],
        "Version": ["2011-06-15"],
        "RoleArn": ["arn:aws:iam::1:role/reader"],
        "RoleSessionName": ["zse"],
        "WebIdentityToken": ["jwt"],
    }


@pytest.mark.parametrize(
    ("region", "url"),
    [
        ("", "https://sts.amazonaws.com/"),
        ("eu-west-1", "https://sts.eu-west-1.amazonaws.com/"),
        ("cn-north-1", "https://sts.cn-north-1.amazonaws.com.cn/"),
    ],
)
def test_the_exchange_is_the_one_of_the_region(region: str, url: str) -> None:
    assert module._sts_url(region) == url


def test_a_role_that_is_refused_says_why(giver: Giver, tmp_path: Path) -> None:
    giver.failures = [(403, "<Error><Code>AccessDenied</Code><Message>no trust</Message></Error>")]
    with pytest.raises(StoreError, match="role/reader was refused: 403 AccessDenied no trust"):
        chain(web_identity(giver, tmp_path)).credentials()
    aws = replace(web_identity(giver, tmp_path), web_identity_token_file="/nonexistent")
    with pytest.raises(StoreError, match="cannot read /nonexistent") as caught:
        chain(aws).credentials()
    assert "AWS_WEB_IDENTITY_TOKEN_FILE" in caught.value.hint


def test_a_giver_that_is_busy_is_asked_again(giver: Giver) -> None:
    giver.failures = [(500, ""), (503, "")]
    assert found(container(giver)).access_key == "AKID3"


def test_a_container_shows_its_token_which_may_change(giver: Giver, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    giver.lifetime_seconds = 200.0
    aws = replace(
        container(giver),
        container_authorization_token="other",
        container_authorization_token_file=str(token),
    )
    one = chain(aws)
    one.credentials()
    token.write_text("second")
    one._renew_at = 0.0
    one.credentials()
    assert [headers["authorization"] for headers in giver.headers] == ["first", "second"]


@pytest.mark.parametrize(
    "url", ["http://example.com/keys", "http://169.254.169.254/x", "file:///etc/keys", "ftp://a/b"]
)
def test_a_container_is_asked_only_on_this_machine_or_by_tls(url: str) -> None:
    aws = replace(NOWHERE, container_credentials_full_uri=url)
    with pytest.raises(StoreError, match="not this machine's own"):
        chain(aws).credentials()


def test_what_gives_no_keys_is_an_error(giver: Giver) -> None:
    for said, words in (
        ("<html>", "answered no credentials"),
        ('{"Token": "t"}', "no AccessKeyId"),
    ):
        giver.failures = [(200, said)]
        with pytest.raises(StoreError, match=words):
            chain(container(giver)).credentials()


def test_a_machine_is_asked_by_a_token_that_is_never_forwarded(giver: Giver) -> None:
    held = found(machine(giver))
    assert held.access_key == "AKID3"
    assert giver.headers[0]["x-aws-ec2-metadata-token-ttl-seconds"] == "21600"
    assert [h.get("x-aws-ec2-metadata-token") for h in giver.headers] == [
        None,
        "a-token",
        "a-token",
    ]


@pytest.mark.parametrize("status", [403, 404, 405])
def test_a_machine_that_gives_no_token_or_has_no_role_gives_nothing(
    giver: Giver, status: int
) -> None:
    giver.failures = [(status, "")]
    assert chain(machine(giver)).credentials() is None
    giver.failures = [(200, "a-token"), (404, "")]
    assert chain(machine(giver)).credentials() is None
    assert len(giver.asked) == 3


def test_what_is_no_machine_of_a_cloud_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setattr(module, "_MACHINE_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        aws = AWSSettings(
            ec2_metadata_service_endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}"
        )
        assert chain(aws).credentials() is None


@contextmanager
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    now = [time.time()]
    monkeypatch.setattr("time.time", lambda: now[0])
    yield now


def test_credentials_are_renewed_before_they_expire(
    giver: Giver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with clock(monkeypatch) as now:
        one = chain(container(giver))
        keys = []
        for seconds in (0, 3200, 200):
            now[0] += seconds
            held = one.credentials()
            assert held is not None
            keys.append(held.access_key)
        assert keys == ["AKID1", "AKID1", "AKID2"]


def test_what_is_held_serves_while_the_giver_is_away_and_no_longer(
    giver: Giver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with clock(monkeypatch) as now:
        one = chain(container(giver))
        first = one.credentials()
        now[0] += 3400
        giver.failures = [(403, "away")]
        assert one.credentials() is first
        assert one.credentials() is first  # and it is not asked at once again
        assert len(giver.asked) == 2
        now[0] += 300
        giver.failures = [(403, "away")]
        with pytest.raises(StoreError, match="403 away"):
            one.credentials()


def test_threads_that_ask_together_make_one_request(giver: Giver) -> None:
    one = chain(container(giver))
    threads = [threading.Thread(target=one.credentials) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(giver.asked) == 1


def test_a_renewed_key_is_never_shown(giver: Giver) -> None:
    shown = repr(found(container(giver)))
    assert "secret" not in shown
    assert "token='token'" not in shown
