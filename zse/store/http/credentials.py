"""Who asks S3: found where the SDKs of AWS look, in their order, and renewed before it expires.

The environment; a web identity (EKS, GitHub); the profile's files; the container's endpoint (ECS,
EKS); the machine's role. None of them is asked before it is needed.
"""

from __future__ import annotations

import calendar
import json
import math
import re
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from zse.errors import StoreError
from zse.store.http.pool import HttpPool
from zse.store.http.profiles import credentials_of
from zse.store.http.retry import BUSY_STATUSES, RETRIED, BusyServerError, patiently
from zse.store.http.sigv4 import Credentials
from zse.store.location import is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zse.settings import AWSSettings, ProxySettings
    from zse.store.http.profiles import Profile

_RENEW_SECONDS = 300.0
"""Before they expire; also a signature in use must not outlive its key."""
_AGAIN_SECONDS = 60.0
_MACHINE_SECONDS = 1.0
_CONTAINER_SECONDS = 2.0
_MACHINE = "http://169.254.169.254"
_ECS = "http://169.254.170.2"
_CONTAINER_HOSTS = frozenset({"169.254.170.2", "169.254.170.23", "fd00:ec2::23"})
_ROLES = "/latest/meta-data/iam/security-credentials/"


class CredentialChain:
    """Credentials of one account, shared by threads.

    Args:
        proxies: The way to AWS; the machine and the container are asked directly.
    """

    def __init__(self, aws: AWSSettings, profile: Profile, proxies: ProxySettings) -> None:
        self._aws, self._profile, self._proxies = aws, profile, proxies
        self._lock = threading.Lock()
        self._held: Credentials | None = None
        self._renew_at = 0.0

    def credentials(self) -> Credentials | None:
        """Return who asks now; None when there is nobody, so only what is public can be read.

        Raises:
            StoreError: They should be somewhere and are not, or are refused there.
            MissingDependencyError: The profile needs boto3.
        """
        with self._lock:
            now = time.time()
            if now < self._renew_at:
                return self._held
            try:
                self._held = self._find()
            except StoreError:
                # What is held is good a little longer, and whoever gives it may be back by then.
                if self._held is None or self._held.expires_at <= now:
                    raise
                self._renew_at = now + _AGAIN_SECONDS
                return self._held
            self._renew_at = now + _AGAIN_SECONDS
            if self._held is not None:
                expires_at = self._held.expires_at or math.inf
                self._renew_at = max(expires_at - _RENEW_SECONDS, now + 1.0)
            return self._held

    def _find(self) -> Credentials | None:
        for look in (
            self._in_environment,
            self._by_web_identity,
            lambda: credentials_of(self._profile, self._aws),
            self._from_container,
            self._from_machine,
        ):
            if (found := look()) is not None:
                return found
        return None

    def _in_environment(self) -> Credentials | None:
        aws = self._aws
        if not aws.access_key_id:
            return None
        if not aws.secret_access_key:
            raise StoreError(
                "AWS_ACCESS_KEY_ID is set and AWS_SECRET_ACCESS_KEY is not",
                hint="Set both, or neither to look further.",
            )
        return Credentials(
            access_key=aws.access_key_id, secret_key=aws.secret_access_key, token=aws.session_token
        )

    def _by_web_identity(self) -> Credentials | None:
        """Exchange a token that the platform gives, such as a pod's, for a role's keys."""
        aws = self._aws
        if not aws.role_arn or not aws.web_identity_token_file:
            return None
        asked = {
            "Action": "AssumeRoleWithWebIdentity",
            "Version": "2011-06-15",
            "RoleArn": aws.role_arn,
            "RoleSessionName": aws.role_session_name or "zse",
            "WebIdentityToken": _token_in(
                aws.web_identity_token_file, "AWS_WEB_IDENTITY_TOKEN_FILE"
            ),
        }
        found = self._asked(
            f"the role {aws.role_arn}",
            aws.sts_endpoint_url or _sts_url(aws.region or self._profile.get("region", "")),
            {"Content-Type": "application/x-www-form-urlencoded"},
            pool=HttpPool(self._proxies, ca_bundle=aws.ca_bundle),
            body=urlencode(asked).encode(),
        )
        return _credentials_in(dict(re.findall(r"<(\w+)>([^<]+)</\1>", found)), "SessionToken")

    def _from_container(self) -> Credentials | None:
        aws = self._aws
        url = aws.container_credentials_full_uri
        if aws.container_credentials_relative_uri:
            url = _ECS + aws.container_credentials_relative_uri
        if not url:
            return None
        host = urlsplit(url).hostname or ""
        if (
            urlsplit(url).scheme != "https"
            and not is_loopback(host)
            and host not in _CONTAINER_HOSTS
        ):
            raise StoreError(
                f"AWS_CONTAINER_CREDENTIALS_FULL_URI names {host!r}, which is not encrypted and "
                "not this machine's own",
                hint="Use https://, or the address that ECS or EKS set.",
            )
        token = aws.container_authorization_token
        if aws.container_authorization_token_file:
            token = _token_in(
                aws.container_authorization_token_file, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"
            )
        found = self._asked(
            "the container's credentials",
            url,
            {"Accept": "application/json", **({"Authorization": token} if token else {})},
            pool=self._direct(_CONTAINER_SECONDS),
        )
        return _credentials_in(_json_object(found, url))

    def _from_machine(self) -> Credentials | None:
        """Ask the machine for its role's keys, by a token that no forwarded request can get."""
        if self._aws.ec2_metadata_disabled:
            return None
        home = self._aws.ec2_metadata_service_endpoint.rstrip("/") or _MACHINE
        pool = self._direct(_MACHINE_SECONDS)
        try:
            ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}
            url = f"{home}/latest/api/token"
            with pool.ask(url, ttl, method="PUT", follow="nowhere") as answer:
                token = {"X-aws-ec2-metadata-token": answer.read().decode("latin-1")}
                if answer.status != 200:
                    return None
            with pool.ask(home + _ROLES, token, follow="nowhere") as answer:
                role = answer.read().decode("latin-1").strip()
                if answer.status != 200 or not role:
                    return None
        except OSError:
            return None  # no machine of AWS, or one that does not say
        url = f"{home}{_ROLES}{role.splitlines()[0]}"
        found = self._asked("the machine's role", url, token, pool=pool)
        return _credentials_in(_json_object(found, url))

    def _direct(self, timeout_seconds: float) -> HttpPool:
        return HttpPool(type(self._proxies)(), timeout_seconds=timeout_seconds)

    def _asked(
        self, what: str, url: str, headers: Mapping[str, str], *, pool: HttpPool, body: bytes = b""
    ) -> str:

        def ask() -> str:
            method = "POST" if body else "GET"
            with pool.ask(url, headers, method=method, body=body, follow="nowhere") as answer:
                text = answer.read().decode("utf-8", "replace")
                if answer.status in BUSY_STATUSES:
                    raise BusyServerError(f"answered {answer.status}", answer.header("Retry-After"))
                if answer.status != 200:
                    said = " ".join(re.sub(r"<[^>]*>", " ", text).split())[:300]
                    raise StoreError(
                        f"{what} was refused: {answer.status} {said or answer.reason}",
                        hint="Check the role, its trust policy and the AWS_* variables.",
                    )
                return text

        try:
            return patiently(ask)
        except RETRIED as error:
            raise StoreError(
                f"{what} cannot be asked for at {urlsplit(url).netloc}: {error}",
                hint="Check this machine's network and the AWS_* variables.",
            ) from error


def _sts_url(region: str) -> str:
    if not region:
        return "https://sts.amazonaws.com/"
    return f"https://sts.{region}.amazonaws.com" + (".cn/" if region.startswith("cn-") else "/")


def _token_in(file: str, variable: str) -> str:
    """Return what a file holds now: platforms write it anew."""
    try:
        return Path(file).read_text(encoding="latin-1").strip()
    except OSError as error:
        raise StoreError(
            f"cannot read {file}: {error.strerror}", hint=f"Check {variable}."
        ) from error


def _json_object(text: str, url: str) -> dict[str, str]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise StoreError(
            f"{urlsplit(url).netloc} answered no credentials", hint="Check the AWS_* variables."
        )
    return {str(name): str(value) for name, value in found.items()}


def _credentials_in(found: Mapping[str, str], token: str = "Token") -> Credentials:
    missing = [name for name in ("AccessKeyId", "SecretAccessKey", token) if not found.get(name)]
    if missing:
        raise StoreError(
            f"the credentials that came have no {', '.join(missing)}",
            hint=found.get("Message") or "Check the AWS_* variables.",
        )
    return Credentials(
        access_key=found["AccessKeyId"],
        secret_key=found["SecretAccessKey"],
        token=found[token],
        expires_at=_seconds(found.get("Expiration", "")),
    )


def _seconds(moment: str) -> float:
    """Return ``2026-01-02T03:04:05Z`` as seconds since 1970; 0 for what never ends."""
    if not moment:
        return 0.0
    try:
        return calendar.timegm(time.strptime(moment[:19], "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        raise StoreError(
            f"credentials expire at {moment!r}, which is no time", hint="Ask whoever gave them."
        ) from None
